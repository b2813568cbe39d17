"""Prepare sources part by part: read, filter, render and encode rows, write sequences to disk.

A job depends on its part's rows and on the recipe alone, wherever it runs. Parts that an earlier,
killed run finished are kept.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_builders.decontamination.match import Decontaminator
from data_builders.dedup.columns import column_batch, write_columns
from data_builders.rows.inputs import Input, Part, estimate_rows, open_part
from data_builders.rows.raw import Drop
from data_builders.rows.read import PlacedExample, examples_of, matching_rows
from data_builders.rows.where import SeenFields
from data_builders.sft.prepare import Prepared, Preparer, prepare
from data_builders.sft.prepared import (
    PART_FORMAT,
    PartWriter,
    PreparedSource,
    read_counts,
    read_sample,
)
from data_builders.sft.stats import PartCounts, left_out_exceeded, losses_exceeded, merged
from data_builders.workers import Executor, OnProgress, Stages
from posttrain.config.build_sft import BuildSftConfig, SftSource
from posttrain.errors import ConfigError, DataError
from posttrain.hashing import digest_of
from posttrain.tokens.encode import batches
from posttrain.versions import package_versions

if TYPE_CHECKING:  # loads transformers
    from posttrain.tokens.renderer import DataRenderer

BATCH_ROWS = 128
BATCH_CHARACTERS = 4_000_000  # bounds memory: batches of long rows are smaller
SAMPLES_PER_BUILD = 20


def prepare_sources(
    recipe: BuildSftConfig,
    parts: Mapping[str, Sequence[Part]],
    folder: Path,
    *,
    tokens: Mapping[str, Any],
    evaluation: Sequence[Input] = (),
    build_id: str,
    executor: Executor,
    stages: Stages,
) -> list[PreparedSource]:
    """Prepare every part that `folder` does not hold yet. Returns all sources with their counts.

    Folders of parts that this build left unfinished when it was killed are removed first.

    Args:
        parts: parts of each source, by its name.
        tokens: digests of the tokenizer and the template.
        evaluation: files that decontamination reads.
        build_id: name of this build, which marks the folders of its unfinished parts.

    Raises:
        DataError: a source lost more to a reason than the recipe allows; after its last part.
    """
    folder = folder.resolve()  # workers may have been started in another directory
    for unfinished in folder.glob(f"*/*.{build_id}-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    folders: dict[str, list[Path]] = {}
    jobs: dict[Path, PartJob] = {}  # by folder: parts with the same rows are prepared once
    for source in recipe.sources:
        key = _source_key(recipe, source, tokens, evaluation)
        folders[source.name] = []
        for part in parts[source.name]:
            rows = part.content(placed=recipe.write_dropped)
            part_folder = folder / source.name / digest_of({**key, "rows": rows})[:32]
            folders[source.name].append(part_folder)
            if part_folder not in jobs and read_counts(part_folder) is None:
                jobs[part_folder] = PartJob(part, source, str(part_folder), build_id)
    waiting_jobs = list(jobs.values())
    _show_progress(stages, parts, waiting_jobs)

    remaining_jobs = Counter(job.source.name for job in waiting_jobs)
    finished: dict[str, PreparedSource] = {}
    for source in recipe.sources:
        if not remaining_jobs[source.name]:
            finished[source.name] = _finish_source(recipe, source, folders[source.name])
    for number, _ in executor.run(waiting_jobs, stages.advance):
        source = waiting_jobs[number].source
        remaining_jobs[source.name] -= 1
        if not remaining_jobs[source.name]:
            finished[source.name] = _finish_source(recipe, source, folders[source.name])
    return [finished[source.name] for source in recipe.sources]


def _show_progress(
    stages: Stages, parts: Mapping[str, Sequence[Part]], waiting_jobs: Sequence[PartJob]
) -> None:
    """Begin the stage that counts rows, with those of finished parts as done."""
    total = estimate_rows([part for source_parts in parts.values() for part in source_parts])
    remaining = estimate_rows([job.part for job in waiting_jobs])
    done = 0 if total is None or remaining is None else max(total - remaining, 0)
    stages.start("preparing", total=total, unit="rows", done=done)


def _finish_source(
    recipe: BuildSftConfig, source: SftSource, folders: Sequence[Path]
) -> PreparedSource:
    """Merge the counts of all parts of a source and check them against the recipe's limits."""
    counts: list[dict[str, Any]] = []
    fields = SeenFields(source)
    for folder in folders:
        part_counts = read_counts(folder)
        assert part_counts is not None, "every part was finished"
        counts.append(part_counts)
        fields.add(part_counts["fields"])
    if problem := fields.problem(source.name):
        raise ConfigError(problem)
    stats = merged(counts, samples=_samples_per_source(recipe))
    stats["samples"] = [read_sample(folders[part], number) for part, number in stats["samples"]]
    problems = losses_exceeded(source.name, stats, recipe.limits)
    if left_out := left_out_exceeded(source.name, stats, recipe.limits):
        problems.append(left_out)
    if problems:
        raise DataError("\n  ".join(problems))
    return PreparedSource(source.name, stats, tuple(folders))


# keys of a source that do not decide how its rows are prepared: its files count by their content,
# and the mix is made of prepared rows
_NOT_IN_KEY = {"path", "share", "rows", "tokens", "max_epochs", "held_out"}


def _source_key(
    recipe: BuildSftConfig,
    source: SftSource,
    tokens: Mapping[str, Any],
    evaluation: Sequence[Input],
) -> dict[str, Any]:
    """Everything that decides how rows of a source are prepared, and nothing else."""
    key: dict[str, Any] = {
        **recipe.model_dump(mode="json", include={"reasoning", "licenses", "seed"}),
        **tokens,
        "packing": recipe.packing.model_dump(mode="json"),
        "source": source.model_dump(mode="json", exclude=_NOT_IN_KEY),
        "samples": _samples_per_source(recipe),
        "steps": recipe.tokenizer.split_steps,
        "allowed": sorted(recipe.tokenizer.allow_left_out),
        "dropped": recipe.write_dropped,
        "versions": package_versions(),
        "format": PART_FORMAT,
    }
    if recipe.deduplication is not None:
        # only what `column_batch` writes: the other keys matter when the build is planned
        has_threshold = recipe.deduplication.near_threshold(source.name) is not None
        key["deduplication"] = {"near": has_threshold}
    if recipe.decontamination is not None:
        key["decontamination"] = recipe.decontamination.model_dump(mode="json")
        key["evaluation"] = [[file.path, file.sha256] for file in evaluation]
    return key


def _samples_per_source(recipe: BuildSftConfig) -> int:
    """Rendered samples that are kept of each source."""
    return max(2, math.ceil(SAMPLES_PER_BUILD / len(recipe.sources)))


class WorkerState:
    """State that all jobs of one process share, loaded when a job first needs it.

    Args:
        load: function that returns the tokenizer with its template, and the decontaminator; it is
            called at most once.
    """

    def __init__(
        self,
        recipe: BuildSftConfig,
        load: Callable[[], tuple[DataRenderer, Decontaminator | None]],
    ) -> None:
        self.recipe = recipe
        self._load = functools.cache(load)
        self._preparers: dict[str, Preparer] = {}

    def preparer(self, source: SftSource) -> Preparer:
        """Preparer of a source's records."""
        if source.name not in self._preparers:
            self._preparers[source.name] = Preparer(self.recipe, source, *self._load())
        return self._preparers[source.name]


@dataclass(frozen=True, slots=True)
class PartJob:
    """Job that prepares one part into `folder`. `build_id` names this build, as in `PartWriter`."""

    part: Part
    source: SftSource
    folder: str
    build_id: str

    def describe(self) -> str:
        """Place of the part, for messages."""
        return self.part.describe()

    def run(self, state: WorkerState, on_progress: OnProgress) -> None:
        """Prepare the part; `on_progress` gets the number of rows read since its last call."""
        recipe = state.recipe
        preparer = state.preparer(self.source)
        counts = PartCounts(_samples_per_source(recipe), recipe.seed)
        fields = SeenFields(self.source)
        deduplication = recipe.deduplication
        finds_near_duplicates = False
        if deduplication is not None:
            threshold = deduplication.near_threshold(self.source.name)
            finds_near_duplicates = threshold is not None
        # the columns of deduplication also say where a record was read
        writes_columns = deduplication is not None or recipe.write_dropped
        part_writer = PartWriter(
            Path(self.folder),
            build_id=self.build_id,
            marks=preparer.renderer.marks,
            dedup=writes_columns,
        )
        with _rare_garbage_collection(), part_writer as writer:
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
                if writes_columns:
                    kept: list[PlacedExample] = []
                    for item, record in zip(placed, prepared, strict=True):
                        if record.drop is None:
                            kept.append(item)
                    places = None
                    if recipe.write_dropped:
                        places = [(item.file, item.line) for item in kept]
                    examples = [item.example for item in kept]
                    columns = column_batch(examples, places, near=finds_near_duplicates)
                    write_columns(writer.files, *columns)
                # rows that deduplication drops later are written by the build, not here
                if recipe.write_dropped:
                    lines = "".join(_dropped_lines(batch, prepared, self.source.name))
                    writer.files["dropped.jsonl"].write(lines.encode())
                on_progress(len(batch))
            samples = [row for _, row in counts.samples]
            writer.finish(counts.stats() | {"fields": fields.state()}, samples)


def _characters(item: PlacedExample | Drop) -> int:
    """Count the characters of a record's contents and traces; 0 for a dropped row."""
    if isinstance(item, Drop):
        return 0
    characters = 0
    for message in item.example.messages:
        characters += len(message.content) + len(message.reasoning or "")
    return characters


def _dropped_lines(
    batch: Sequence[PlacedExample | Drop], prepared: Sequence[Prepared], source: str
) -> Iterator[str]:
    """Lines of `dropped.jsonl` for all rows of a batch that are not used, in order.

    Args:
        prepared: the records of the batch, without its drops.
    """
    records = iter(prepared)
    for item in batch:
        if isinstance(item, PlacedExample):
            example, file, line = item
            drop = next(records).drop
            if drop is None:
                continue
            drop = replace(drop, file=file, line=line, record_id=example.id)
        else:
            drop = item
        row = {"source": source, **asdict(drop)}
        if drop.span is None:
            del row["span"]
        yield json.dumps(row, ensure_ascii=True) + "\n"


# thresholds of Python's cycle collector: with the libraries that are loaded, each full collection
# costs as much as a batch of records
_GC_THRESHOLDS = (200_000, 50, 1000)


@contextlib.contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Run Python's cycle collector rarely: records are many objects and few cycles."""
    previous_thresholds = gc.get_threshold()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*previous_thresholds)
