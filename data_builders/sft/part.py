"""One part of a source, from its rows to its spool, with the books of what happened on the way.

    PartJob(part, source, key, spool="runs/x/work/parts").run(tools, tell)

A pure function of the part's rows and of the recipe, wherever it runs: in this process, in one of
several workers, or on another machine that sees the same disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from data_builders.decontamination.match import Decontaminator
from data_builders.dedup.said import SaidBatch, said_batch
from data_builders.filters.screen import Screen
from data_builders.rows.examples import Dropped, ReadReport, examples_of, observed_fields
from data_builders.rows.observed import ObservedFields
from data_builders.rows.parts import Part, open_part
from data_builders.sft.counts import Books
from data_builders.sft.prepare import Prepared, Preparer, prepare
from data_builders.sft.prepared import SpoolWriter
from data_builders.sft.reasoning_control import ControlPlan, Offsets
from posttrain.chat import ChatTemplate
from posttrain.collecting import collected_rarely
from posttrain.config.build_sft import BuildSftConfig, SftSource
from posttrain.config.deduplication import DeduplicationConfig
from posttrain.records import Example
from posttrain.tokens.encode import EncodeArrays
from posttrain.tokens.supervision import Marks

BATCH_ROWS = 128
BATCH_CHARACTERS = 4_000_000  # a batch of long rows is smaller, so that memory knows a bound
SAMPLES_PER_BUILD = 20
Tell = Callable[[int], None]


class Renderer(Protocol):
    """A tokenizer and a template, as the data stage uses them."""

    @property
    def template(self) -> ChatTemplate:
        """How messages are written."""
        ...

    @property
    def encode(self) -> EncodeArrays:
        """Texts → ids."""
        ...

    @property
    def offsets(self) -> Offsets:
        """The character spans of a text's tokens."""
        ...

    @property
    def marks(self) -> Marks:
        """The tokens by which a sequence's supervision is read."""
        ...


class Tools:
    """What every job of one process uses, loaded when a job first needs it.

    Args:
        load: gives the tokenizer and the template; called at most once.
        evaluated: gives what decontamination looks for; called at most once.
    """

    def __init__(
        self,
        recipe: BuildSftConfig,
        load: Callable[[], Renderer],
        evaluated: Callable[[], Decontaminator | None] = lambda: None,
    ) -> None:
        self.recipe = recipe
        self._load, self._evaluated = load, evaluated
        self._renderer: Renderer | None = None
        self._decontaminator: Decontaminator | None = None
        self._preparers: dict[str, Preparer] = {}

    def preparer(self, source: SftSource) -> Preparer:
        """What turns this source's records into sequences."""
        if source.name not in self._preparers:
            if self._renderer is None:
                self._renderer = self._load()
                self._decontaminator = self._evaluated()
            self._preparers[source.name] = preparer_of(
                self.recipe, source, self._renderer, self._decontaminator
            )
        return self._preparers[source.name]


def preparer_of(
    recipe: BuildSftConfig,
    source: SftSource,
    renderer: Renderer,
    decontaminator: Decontaminator | None = None,
) -> Preparer:
    """What turns a source's records into sequences."""
    return Preparer(
        template=renderer.template,
        encode=renderer.encode,
        offsets=renderer.offsets,
        control=control_plan(recipe, source),
        mask_close=recipe.reasoning.truncated_close == "masked",
        capacity=recipe.packing.max_length,
        clip_overlong=recipe.packing.overlong == "truncate",
        marks=renderer.marks,
        screen=Screen(source.filters, renderer.encode),
        decontaminator=decontaminator,
    )


def control_plan(recipe: BuildSftConfig, source: SftSource) -> ControlPlan:
    """The recipe's reasoning control with the source's own rates."""
    own, shared = source.reasoning, recipe.reasoning
    return ControlPlan(
        strip=shared.strip if own.strip is None else own.strip,
        truncate=shared.truncate if own.truncate is None else own.truncate,
        budgets=shared.budgets,
        seed=recipe.seed,
    )


def samples_of_each(recipe: BuildSftConfig) -> int:
    """How many rendered samples are kept of a source."""
    return max(2, -(-SAMPLES_PER_BUILD // len(recipe.sources)))


@dataclass(frozen=True, slots=True)
class PartJob:
    """Prepare one part into `folder`. `scratch` names this build, as `SpoolWriter` wants it."""

    part: Part
    source: SftSource
    folder: str
    scratch: str

    def describe(self) -> str:
        """For messages."""
        return self.part.describe()

    def run(self, tools: Tools, tell: Tell) -> None:
        """Do it. `tell` is told how many more rows were read, now and then."""
        recipe, preparer = tools.recipe, tools.preparer(self.source)
        books = Books(ReadReport(), samples_of_each(recipe), recipe.seed)
        observed = observed_fields(self.source)
        said = recipe.deduplication
        spooled = SpoolWriter(
            Path(self.folder),
            scratch=self.scratch,
            marks=preparer.marks,
            said=said is not None,
        )
        with collected_rarely(), spooled as writer:
            for batch in self._batches(recipe, books.report, observed):
                prepared = prepare(_examples(batch), preparer)
                writer.write(prepared)
                if said is not None:
                    writer.write_said(_said(batch, prepared, said, placed=recipe.write_dropped))
                self._book(batch, prepared, books, writer, write_dropped=recipe.write_dropped)
                tell(len(batch))
            writer.finish(books.stats(observed), [row for _, row in books.samples])

    def _batches(
        self, recipe: BuildSftConfig, report: ReadReport, observed: ObservedFields | None
    ) -> Iterator[list[_Located]]:
        """Rows in order, bounded in number and in text."""
        batch: list[_Located] = []
        held = 0
        for item in examples_of(
            open_part(self.part, self.source),
            self.source,
            allowed_licenses=recipe.licenses,
            report=report,
            observed=observed,
        ):
            batch.append(_Located(item, report.file, report.line))
            if isinstance(item, Example):
                held += sum(len(m.content) + len(m.reasoning or "") for m in item.messages)
            if len(batch) == BATCH_ROWS or held >= BATCH_CHARACTERS:
                yield batch
                batch, held = [], 0
        if batch:
            yield batch

    def _book(
        self,
        batch: list[_Located],
        prepared: Sequence[Prepared],
        books: Books,
        writer: SpoolWriter,
        *,
        write_dropped: bool,
    ) -> None:
        """Count what became of every row, and write down what was dropped."""
        results = iter(prepared)
        for row in batch:
            dropped = row.item
            if isinstance(dropped, Example):
                record = next(results)
                books.add(record)
                if record.drop is None:
                    continue
                drop = record.drop
                dropped = Dropped(
                    drop.reason, drop.detail, row.file, row.line, dropped.id, drop.span
                )
            if write_dropped:
                writer.drop(dropped_line(self.source.name, dropped))


@dataclass(frozen=True, slots=True)
class _Located:
    item: Example | Dropped
    file: str
    line: int


def _examples(batch: Sequence[_Located]) -> list[Example]:
    return [row.item for row in batch if isinstance(row.item, Example)]


def _said(
    batch: Sequence[_Located],
    prepared: Sequence[Prepared],
    config: DeduplicationConfig,
    *,
    placed: bool,
) -> SaidBatch:
    """What the kept records of a batch said before reasoning control."""
    rows = [row for row in batch if isinstance(row.item, Example)]
    kept = [row for row, p in zip(rows, prepared, strict=True) if p.drop is None]
    places = [(row.file, row.line) for row in kept] if placed else None
    return said_batch(_examples(kept), config, places)


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
