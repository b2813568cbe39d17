"""Prepare sources part by part: read, filter, render and encode rows, write sequences to disk.

    prepare_sources(recipe, parts, folder, …)  →  [PreparedSource("maths", …), …]
    PartJob(part, source, folder="runs/x/work/parts/maths/1f…", scratch="…").run(state, on_progress)

Every row is counted, and every drop with its reason. A job is a pure function of its part's rows
and of the recipe, wherever it runs: in this process, in one of several workers, or on another
machine that sees the same disk. What an earlier, killed run prepared is kept.
"""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_builders.decontamination.match import Decontaminator
from data_builders.dedup.columns import column_batch
from data_builders.filters.screen import Screen
from data_builders.progress import Stages
from data_builders.rows.parts import Part, estimate_rows, open_part
from data_builders.rows.raw import Dropped
from data_builders.rows.read import PlacedExample, examples_of, matching_rows
from data_builders.rows.where import SeenFields
from data_builders.sft.inputs import Input
from data_builders.sft.prepare import (
    ControlPlan,
    Prepared,
    Preparer,
    prepare,
)
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
    from posttrain.models.chat_template import DataRenderer

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
        DataError: more of a source was lost to a reason than the recipe's limits allow; as soon as
            its last part is done.
    """
    folder = folder.resolve()  # workers may have been started elsewhere
    for unfinished in folder.glob(f"*/*.{scratch}-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    folders: dict[str, list[Path]] = {}
    for source in recipe.sources:
        key = source_key(recipe, source, tokens, evaluation)
        rows = [part.content(placed=recipe.write_dropped) for part in parts[source.name]]
        names = [digest_of({**key, "rows": own})[:32] for own in rows]
        folders[source.name] = [folder / source.name / name for name in names]
    waiting: dict[Path, PartJob] = {}  # parts with the same rows are done once
    for source in recipe.sources:
        for part, own in zip(parts[source.name], folders[source.name], strict=True):
            if own not in waiting and read_counts(own) is None:
                waiting[own] = PartJob(part, source, str(own), scratch)
    jobs = list(waiting.values())
    everything = [part for own in parts.values() for part in own]
    total, left = estimate_rows(everything), estimate_rows([job.part for job in jobs])
    done = None if total is None or left is None else max(total - left, 0)
    stages.start("preparing", total=total, unit="rows", done=done or 0)
    left_of = Counter(job.source.name for job in jobs)
    finished = {
        s.name: _finished(recipe, s, folders[s.name]) for s in recipe.sources if not left_of[s.name]
    }
    for number, _ in executor.run(jobs, stages.advance):
        source = jobs[number].source
        left_of[source.name] -= 1
        if not left_of[source.name]:
            finished[source.name] = _finished(recipe, source, folders[source.name])
    return [finished[source.name] for source in recipe.sources]


def _finished(recipe: BuildSftConfig, source: SftSource, folders: Sequence[Path]) -> PreparedSource:
    """A source all of whose parts are there, with their counts merged and checked."""
    counts: list[dict[str, Any]] = []
    fields = SeenFields(source)
    for folder in folders:
        own = read_counts(folder)
        assert own is not None, f"{folder} was finished"
        fields.add(own["fields"])
        counts.append(own)
    stats = merged(counts, samples=samples_of_each(recipe))
    stats["samples"] = [read_sample(folders[part], k) for part, k in stats["samples"]]
    if wrong := fields.problem(source.name):
        raise ConfigError(wrong)
    problems = losses_exceeded(source.name, stats, recipe.limits)
    if left_out := left_out_exceeded(source.name, stats, recipe.limits):
        problems.append(left_out)
    if problems:
        raise DataError("\n  ".join(problems))
    return PreparedSource(source.name, stats, tuple(folders))


# what of a source is looked at only after its rows are prepared, or not by what its rows become
_LATER = {"path", "share", "rows", "tokens", "max_epochs", "held_out"}


def source_key(
    recipe: BuildSftConfig,
    source: SftSource,
    tokens: Mapping[str, Any],
    evaluation: Sequence[Input] = (),
) -> dict[str, Any]:
    """All that decides how rows of a source are prepared, and nothing else.

    Args:
        tokens: digests of tokenizer and template.
        evaluation: what decontamination reads.
    """
    key: dict[str, Any] = {
        **recipe.model_dump(mode="json", include={"reasoning", "licenses", "seed"}),
        **tokens,
        "capacity": recipe.packing.max_length,
        "overlong": recipe.packing.overlong,
        "source": source.model_dump(mode="json", exclude=_LATER),
        "samples": samples_of_each(recipe),
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


class WorkerState:
    """What every job of one process uses, loaded when a job first needs it.

    Args:
        load: gives the tokenizer and the template; called at most once.
        load_decontaminator: called at most once.
    """

    def __init__(
        self,
        recipe: BuildSftConfig,
        load: Callable[[], DataRenderer],
        load_decontaminator: Callable[[], Decontaminator | None] = lambda: None,
    ) -> None:
        self.recipe = recipe
        self._load, self._load_decontaminator = load, load_decontaminator
        self._renderer: DataRenderer | None = None
        self._decontaminator: Decontaminator | None = None
        self._preparers: dict[str, Preparer] = {}

    def preparer(self, source: SftSource) -> Preparer:
        """What turns this source's records into sequences."""
        if source.name not in self._preparers:
            if self._renderer is None:
                self._renderer = self._load()
                self._decontaminator = self._load_decontaminator()
            self._preparers[source.name] = preparer_of(
                self.recipe, source, self._renderer, self._decontaminator
            )
        return self._preparers[source.name]


def preparer_of(
    recipe: BuildSftConfig,
    source: SftSource,
    renderer: DataRenderer,
    decontaminator: Decontaminator | None = None,
) -> Preparer:
    """What turns a source's records into sequences; its own reasoning rates before the recipe's."""
    own, shared = source.reasoning, recipe.reasoning
    return Preparer(
        template=renderer.template,
        encode=renderer.encode,
        offsets=renderer.offsets,
        control=ControlPlan(
            strip=shared.strip if own.strip is None else own.strip,
            truncate=shared.truncate if own.truncate is None else own.truncate,
            budgets=shared.budgets,
            seed=recipe.seed,
        ),
        mask_close=shared.truncated_close == "masked",
        capacity=recipe.packing.max_length,
        clip_overlong=recipe.packing.overlong == "truncate",
        split_steps=recipe.tokenizer.split_steps,
        allow_left_out=frozenset(recipe.tokenizer.allow_left_out),
        marks=renderer.marks,
        special_texts=renderer.special_texts,
        screen=Screen(source.filters, renderer.encode),
        decontaminator=decontaminator,
        augment=source.augment,
    )


def samples_of_each(recipe: BuildSftConfig) -> int:
    """How many rendered samples are kept of a source."""
    return max(2, -(-SAMPLES_PER_BUILD // len(recipe.sources)))


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
        counts = PartCounts(samples_of_each(recipe), recipe.seed)
        fields = SeenFields(self.source)
        dedup = recipe.deduplication
        near = dedup is not None and dedup.near_threshold(self.source.name) is not None
        columns = dedup is not None or recipe.write_dropped  # which say where a record was read
        unfinished = PartWriter(
            Path(self.folder), scratch=self.scratch, marks=preparer.marks, dedup=columns
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
                if columns:
                    kept = [i for i, p in zip(placed, prepared, strict=True) if p.drop is None]
                    places = [(i.file, i.line) for i in kept] if recipe.write_dropped else None
                    writer.write_columns(
                        *column_batch([i.example for i in kept], places, near=near)
                    )
                for record in prepared:
                    counts.add(record)
                if recipe.write_dropped:
                    for dropped in _dropped(batch, prepared):
                        writer.drop(dropped_line(self.source.name, dropped))
                on_progress(len(batch))
            writer.finish(
                counts.stats() | {"fields": fields.state()}, [row for _, row in counts.samples]
            )


def _characters(item: PlacedExample | Dropped) -> int:
    if isinstance(item, Dropped):
        return 0
    return sum(len(m.content) + len(m.reasoning or "") for m in item.example.messages)


def _dropped(
    batch: Sequence[PlacedExample | Dropped], prepared: Sequence[Prepared]
) -> Iterator[Dropped]:
    """All rows of a batch that are not used, in order."""
    results = iter(prepared)
    for item in batch:
        if isinstance(item, Dropped):
            yield item
        elif (drop := next(results).drop) is not None:
            place = item.file, item.line
            yield Dropped(drop.reason, drop.detail, *place, item.example.id, drop.span)


def dropped_line(source: str, item: Dropped) -> str:
    """A line of `dropped.jsonl`."""
    row = {
        "source": source,
        "reason": item.reason,
        "detail": item.detail,
        "file": item.file,
        "line": item.line,
        "record_id": item.record_id,
        **({"span": asdict(item.span)} if item.span is not None else {}),
    }
    return json.dumps(row, ensure_ascii=True) + "\n"


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
