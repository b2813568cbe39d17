"""Prepare sources part by part: read, filter, render and encode rows, write sequences to disk.

A job is a pure function of its part's rows and of the recipe, wherever it runs. What an earlier,
killed run prepared is kept.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_builders.decontamination.match import Decontaminator
from data_builders.dedup.columns import column_batch, write_columns
from data_builders.progress import Stages
from data_builders.rows.parts import Part, estimate_rows, open_part
from data_builders.rows.raw import Dropped
from data_builders.rows.read import PlacedExample, examples_of, matching_rows
from data_builders.rows.where import SeenFields
from data_builders.sft.inputs import Input
from data_builders.sft.prepare import Prepared, Preparer, prepare
from data_builders.sft.prepared import (
    PART_FORMAT,
    PartWriter,
    PreparedSource,
    read_counts,
    read_sample,
)
from data_builders.sft.stats import PartCounts, left_out_exceeded, losses_exceeded, merged
from data_builders.workers import Executor, OnProgress
from posttrain.config.build_sft import BuildSftConfig, SftSource
from posttrain.errors import ConfigError, DataError
from posttrain.hashing import digest_of
from posttrain.tokens.encode import batches
from posttrain.versions import package_versions

if TYPE_CHECKING:  # loads transformers
    from posttrain.tokens.renderer import DataRenderer

BATCH_ROWS = 128
BATCH_CHARACTERS = 4_000_000  # a batch of long rows is smaller, so that memory knows a bound
SAMPLES_PER_BUILD = 20


def prepare_sources(
    recipe: BuildSftConfig,
    parts: Mapping[str, Sequence[Part]],
    folder: Path,
    *,
    tokens: Mapping[str, Any],
    evaluation: Sequence[Input] = (),
    scratch: str,
    executor: Executor,
    stages: Stages,
) -> list[PreparedSource]:
    """Prepare every part that `folder` does not hold yet.

    Args:
        parts: of each source by its name.
        tokens: digests of what makes tokens.
        evaluation: what decontamination reads.
        scratch: names this build; parts that it left unfinished are removed.

    Raises:
        DataError: a source lost more to a reason than the recipe allows; after its last part.
    """
    folder = folder.resolve()  # workers may have been started elsewhere
    for unfinished in folder.glob(f"*/*.{scratch}-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    folders: dict[str, list[Path]] = {}
    jobs: dict[Path, PartJob] = {}  # parts with the same rows are done once
    for source in recipe.sources:
        key = _source_key(recipe, source, tokens, evaluation)
        folders[source.name] = []
        for part in parts[source.name]:
            rows = part.content(placed=recipe.write_dropped)
            own = folder / source.name / digest_of({**key, "rows": rows})[:32]
            folders[source.name].append(own)
            if own not in jobs and read_counts(own) is None:
                jobs[own] = PartJob(part, source, str(own), scratch)
    waiting = list(jobs.values())
    total = estimate_rows([part for own in parts.values() for part in own])
    left = estimate_rows([job.part for job in waiting])
    done = 0 if total is None or left is None else max(total - left, 0)
    stages.start("preparing", total=total, unit="rows", done=done)
    left_of = Counter(job.source.name for job in waiting)
    finished = {
        s.name: _finished(recipe, s, folders[s.name]) for s in recipe.sources if not left_of[s.name]
    }
    for number, _ in executor.run(waiting, stages.advance):
        source = waiting[number].source
        left_of[source.name] -= 1
        if not left_of[source.name]:
            finished[source.name] = _finished(recipe, source, folders[source.name])
    return [finished[source.name] for source in recipe.sources]


def _finished(recipe: BuildSftConfig, source: SftSource, folders: Sequence[Path]) -> PreparedSource:
    """A source all of whose parts are there, with their counts merged and checked."""
    counts = [own for folder in folders if (own := read_counts(folder)) is not None]
    assert len(counts) == len(folders), "every part was finished"
    fields = SeenFields(source)
    for own in counts:
        fields.add(own["fields"])
    if wrong := fields.problem(source.name):
        raise ConfigError(wrong)
    stats = merged(counts, samples=_samples_of_each(recipe))
    stats["samples"] = [read_sample(folders[part], k) for part, k in stats["samples"]]
    problems = losses_exceeded(source.name, stats, recipe.limits)
    if left_out := left_out_exceeded(source.name, stats, recipe.limits):
        problems.append(left_out)
    if problems:
        raise DataError("\n  ".join(problems))
    return PreparedSource(source.name, stats, tuple(folders))


# what of a source is looked at only after its rows are prepared, or not by what its rows become
_LATER = {"path", "share", "rows", "tokens", "max_epochs", "held_out"}


def _source_key(
    recipe: BuildSftConfig,
    source: SftSource,
    tokens: Mapping[str, Any],
    evaluation: Sequence[Input],
) -> dict[str, Any]:
    """All that decides how rows of a source are prepared, and nothing else."""
    key: dict[str, Any] = {
        **recipe.model_dump(mode="json", include={"reasoning", "licenses", "seed"}),
        **tokens,
        "packing": recipe.packing.model_dump(mode="json"),
        "source": source.model_dump(mode="json", exclude=_LATER),
        "samples": _samples_of_each(recipe),
        "steps": recipe.tokenizer.split_steps,
        "allowed": sorted(recipe.tokenizer.allow_left_out),
        "dropped": recipe.write_dropped,
        "versions": package_versions(),
        "format": PART_FORMAT,
    }
    if recipe.deduplication is not None:  # what `column_batch` writes: the rest is for the plan
        near = recipe.deduplication.near_threshold(source.name) is not None
        key["deduplication"] = {"near": near}
    if recipe.decontamination is not None:
        key["decontamination"] = recipe.decontamination.model_dump(mode="json")
        key["evaluation"] = [[i.path, i.sha256] for i in evaluation]
    return key


def _samples_of_each(recipe: BuildSftConfig) -> int:
    """How many rendered samples are kept of a source."""
    return max(2, -(-SAMPLES_PER_BUILD // len(recipe.sources)))


class WorkerState:
    """What every job of one process uses, loaded when a job first needs it.

    Args:
        load: gives tokenizer with template, and evaluation items; called at most once.
    """

    def __init__(
        self,
        recipe: BuildSftConfig,
        load: Callable[[], tuple[DataRenderer, Decontaminator | None]],
    ) -> None:
        self.recipe, self._load = recipe, functools.cache(load)
        self._preparers: dict[str, Preparer] = {}

    def preparer(self, source: SftSource) -> Preparer:
        """What turns this source's records into sequences."""
        if source.name not in self._preparers:
            self._preparers[source.name] = Preparer(self.recipe, source, *self._load())
        return self._preparers[source.name]


@dataclass(frozen=True, slots=True)
class PartJob:
    """Prepare one part into `folder`. `scratch` names this build, as `PartWriter` wants it."""

    part: Part
    source: SftSource
    folder: str
    scratch: str

    def describe(self) -> str:
        """For messages."""
        return self.part.describe()

    def run(self, state: WorkerState, on_progress: OnProgress) -> None:
        """Do it; `on_progress` is called with the number of rows read since its last call."""
        recipe, preparer = state.recipe, state.preparer(self.source)
        counts = PartCounts(_samples_of_each(recipe), recipe.seed)
        fields = SeenFields(self.source)
        dedup = recipe.deduplication
        near = dedup is not None and dedup.near_threshold(self.source.name) is not None
        columns = dedup is not None or recipe.write_dropped  # which say where a record was read
        unfinished = PartWriter(
            Path(self.folder), scratch=self.scratch, marks=preparer.renderer.marks, dedup=columns
        )
        with _collecting_rarely(), unfinished as writer:
            rows = matching_rows(open_part(self.part, self.source), fields)
            items = examples_of(
                rows, self.source, allowed_licenses=recipe.licenses, counts=counts.rows
            )
            for batch in batches(items, _characters, most=BATCH_CHARACTERS, count=BATCH_ROWS):
                placed = [item for item in batch if isinstance(item, PlacedExample)]
                prepared = prepare([item.example for item in placed], preparer)
                writer.write(prepared)
                for record in prepared:
                    counts.add(record)
                both = list(zip(placed, prepared, strict=True))
                if columns:
                    kept = [item for item, record in both if record.drop is None]
                    places = [(i.file, i.line) for i in kept] if recipe.write_dropped else None
                    write_columns(
                        writer.files, *column_batch([i.example for i in kept], places, near=near)
                    )
                if recipe.write_dropped:
                    lines = _dropped_lines(batch, iter(both), self.source.name)
                    writer.files["dropped.jsonl"].write("".join(lines).encode())
                on_progress(len(batch))
            writer.finish(
                counts.stats() | {"fields": fields.state()}, [row for _, row in counts.samples]
            )


def _characters(item: PlacedExample | Dropped) -> int:
    if isinstance(item, Dropped):
        return 0
    return sum(len(m.content) + len(m.reasoning or "") for m in item.example.messages)


def _dropped_lines(
    batch: Sequence[PlacedExample | Dropped],
    prepared: Iterator[tuple[PlacedExample, Prepared]],
    source: str,
) -> Iterator[str]:
    """Lines of `dropped.jsonl` for all rows of a batch that are not used, in order."""
    for item in batch:
        if isinstance(item, PlacedExample):
            (example, file, line), record = next(prepared)
            if (drop := record.drop) is None:
                continue
            item = Dropped(drop.reason, drop.detail, file, line, example.id, drop.span)
        row = {"source": source, **asdict(item)}
        if item.span is None:
            del row["span"]
        yield json.dumps(row, ensure_ascii=True) + "\n"


# beside the libraries that are loaded anyway, every look costs as much as a batch of records
_RARELY = (200_000, 50, 1000)


@contextlib.contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Python's cycle collector looks rarely: records are many objects and few cycles."""
    before = gc.get_threshold()
    gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)
