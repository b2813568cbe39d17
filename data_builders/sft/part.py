"""Prepare one input part: read, filter, render and encode its rows, write the sequences to disk.

    PartJob(part, source, folder="runs/x/work/parts/maths/1f…", scratch="…").run(state, on_progress)

Every row is counted, and every drop with its reason. A pure function of the part's rows and of the
recipe, wherever it runs: in this process, in one of several workers, or on another machine that
sees the same disk.
"""

from __future__ import annotations

import contextlib
import gc
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_builders.decontamination.match import Decontaminator
from data_builders.dedup.columns import column_batch
from data_builders.filters.screen import Screen
from data_builders.keyed import unit
from data_builders.rows.examples import PlacedExample, examples_of
from data_builders.rows.parts import Part, open_part
from data_builders.rows.raw import Dropped
from data_builders.rows.read import RowCounts, matching_rows
from data_builders.rows.where import SeenFields
from data_builders.sft.prepare import (
    ControlPlan,
    Prepared,
    PreparedSequence,
    Preparer,
    prepare,
)
from data_builders.sft.prepared import PartWriter
from data_builders.workers import OnProgress
from posttrain.config.build_sft import BuildSftConfig, SftSource
from posttrain.records import Example
from posttrain.tokens.encode import batches

if TYPE_CHECKING:  # loads transformers
    from posttrain.models.chat_template import DataRenderer

BATCH_ROWS = 128
BATCH_CHARACTERS = 4_000_000  # a batch of long rows is smaller, so that memory knows a bound
SAMPLES_PER_BUILD = 20
CONTROL = ("reasoned", "stripped", "traces", "truncated", "too_short")


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


@dataclass
class PartCounts:
    """What became of the rows of one part, growing while it is read.

    Everything that is added is a sum, a count by name, or the few samples whose keyed hashes are
    the smallest: how rows are cut into parts changes nothing.
    """

    keep_samples: int
    seed: int
    rows: RowCounts = field(default_factory=RowCounts)
    dropped: Counter[str] = field(default_factory=Counter[str])
    lost: Counter[str] = field(default_factory=Counter[str])
    left_out: Counter[str] = field(default_factory=Counter[str])
    licenses: Counter[str] = field(default_factory=Counter[str])
    templates: Counter[str] = field(default_factory=Counter[str])
    control: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(CONTROL, 0)))
    budgets: Counter[int] = field(default_factory=Counter[int])
    sequences: int = 0
    clipped: int = 0
    samples: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def add(self, prepared: Prepared) -> None:
        """Count one record."""
        record = prepared.controlled
        if prepared.drop is not None:
            self.dropped[prepared.drop.reason] += 1
        else:
            self.licenses[record.example.license] += 1
            if prepared.template:
                self.templates[prepared.template] += 1
        self.control["reasoned"] += record.reasoned
        self.control["stripped"] += record.stripped
        self.control["traces"] += record.traces
        self.control["truncated"] += len(record.cuts)
        self.control["too_short"] += record.too_short
        for cut in record.cuts:
            self.budgets[cut.budget] += 1
        for reason in prepared.lost:
            self.lost[reason] += 1
        for kind in prepared.left_out:
            self.left_out[kind] += 1
        self.sequences += len(prepared.sequences)
        self.clipped += prepared.clipped
        for sequence in prepared.sequences[:1]:
            place = unit(self.seed, "sample", record.example.id)
            if len(self.samples) < self.keep_samples or place < self.samples[-1][0]:
                self.samples.append((place, _sample(record.example, sequence)))
                self.samples.sort(key=lambda item: item[0])
                del self.samples[self.keep_samples :]

    def stats(self) -> dict[str, Any]:
        """The finished counts of a part, JSON-able."""
        return {
            "rows_in": self.rows.rows_in,
            "dropped": dict(self.rows.dropped + self.dropped),
            "trimmed_rows": self.rows.trimmed_rows,
            "dialects": dict(self.rows.dialects),
            "unread": [[name, *seen] for name, seen in self.rows.unread.items()],
            "licenses": dict(self.licenses),
            "sequences": self.sequences,
            "sequences_lost": dict(self.lost),
            "sequences_clipped": self.clipped,
            "left_out": dict(self.left_out),
            "templates": dict(self.templates),
            "control": dict(self.control),
            "budgets": [[budget, n] for budget, n in self.budgets.items()],
            "samples": [place for place, _ in self.samples],
        }


def _sample(example: Example, sequence: PreparedSequence) -> dict[str, Any]:
    sample = sequence.sample
    return {
        "source": example.source,
        "record_id": example.id,
        "turn": sample.turn,
        "reasoning": sample.reasoning,
        "budget": sequence.budget,
        "tokens": sequence.length,
        "segments": [[s.role, s.trained, s.text] for s in sample.segments],
    }


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
