"""Spools → which sequences are trained on, how often, and which are held out.

    plan_build(spools, recipe)
    → BuildPlan(train=stream, evaluation={"maths/on": stream, …}, mixture=[SourcePlan(…), …], …)

A plan is made of counts and of rules, not of rows: a stream goes through the spools' columns on
disk and gives every planned sequence as an entry (`windows`), as often as it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from data_builders.keyed import key64, shuffled_keys
from data_builders.sft.held_out import Numbered, Withheld, choose, is_among, numbered
from data_builders.sft.held_out_twins import with_twins
from data_builders.sft.mixture import Records, SourcePlan, Stock, plan_mixture
from data_builders.sft.prepared import Block, PreparedSource
from data_builders.sft.windows import ENTRY, Entries, Stream
from posttrain.config.build_sft import BuildSftConfig

Int = npt.NDArray[np.int64]
_ENTRIES = 262_144  # made at a time


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """`evaluation` maps "<source>/<on|off>" to sequences.

    Per source: `held_out` counts the records that evaluation sees, `duplicates` further records of
    held-out conversations and of those that share a sequence with one, `dropped` records by the
    reason that the plan dropped them for.
    """

    train: Stream
    evaluation: dict[str, Stream]
    mixture: list[SourcePlan]
    held_out: list[int]
    duplicates: list[int]
    dropped: list[dict[str, int]] = field(default_factory=list[dict[str, int]])


def plan_build(
    spools: Sequence[PreparedSource],
    recipe: BuildSftConfig,
    drops: Sequence[Mapping[str, Int]] | None = None,
) -> BuildPlan:
    """Split off the held-out records and plan the mixture of the rest.

    Args:
        drops: per source, by reason, the numbers of records that are not to be used at all.

    Raises:
        DataError: the mixture cannot be met (`plan_mixture`).
    """
    drops = drops or [{} for _ in spools]
    sources = [
        _Source(spool, np.unique(np.concatenate([np.empty(0, np.int64), *own.values()])))
        for spool, own in zip(spools, drops, strict=True)
    ]
    how = [source.held_out or recipe.held_out for source in recipe.sources]
    chosen = choose([(s.candidates, h) for s, h in zip(sources, how, strict=True)], recipe.seed)
    withheld = with_twins(chosen, [(s.spool.blocks, s.usable) for s in sources])
    stocks = [
        Stock.of(s.spool.name, partial(s.remaining, withheld), _lost(s, own))
        for s, own in zip(sources, drops, strict=True)
    ]
    mixture = plan_mixture(stocks, recipe)
    held_out = [len(rows) for rows in withheld.rows]
    return BuildPlan(
        train=_Training(sources, withheld, mixture, recipe.seed),
        evaluation=_evaluation(spools, withheld, recipe.seed),
        mixture=mixture,
        held_out=held_out,
        duplicates=[
            len(s.spool) - len(s.dropped) - stock.total.rows - count
            for s, stock, count in zip(sources, stocks, held_out, strict=True)
        ],
        dropped=[{reason: len(rows) for reason, rows in own.items()} for own in drops],
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """One source's records, as the plan looks at them; `dropped` are numbers of records, sorted."""

    spool: PreparedSource
    dropped: Int

    def usable(self, start: int, count: int) -> npt.NDArray[np.bool_]:
        """Which of the records from a number on may be used at all."""
        return ~is_among(np.arange(start, start + count), self.dropped)

    def candidates(self) -> Iterator[Numbered]:
        """Blocks of records, and which of them may be used at all."""
        for start, records in numbered(self.spool.record_blocks()):
            yield start, records, self.usable(start, len(records))

    def remaining(self, withheld: Withheld) -> Iterator[Records]:
        """Blocks of the records that may be trained on."""
        for _, records, mask in self.candidates():
            yield records[mask & ~withheld.holds(records["id64"])]


def _lost(source: _Source, drops: Mapping[str, Int]) -> str:
    """Where a source's rows went, most first."""
    counts = {**source.spool.stats["dropped"], **{name: len(rows) for name, rows in drops.items()}}
    dropped = sorted(counts.items(), key=lambda item: -item[1])
    parts = [f"{count:,} {reason}" for reason, count in dropped]
    if held_out := len(source.spool) - len(source.dropped):
        parts.append(f"{held_out:,} held out")
    return ", ".join(parts) or "no rows"


@dataclass(frozen=True, slots=True)
class _Training:
    """The stream of all planned training sequences."""

    sources: Sequence[_Source]
    withheld: Withheld
    mixture: Sequence[SourcePlan]
    seed: int

    def __call__(self) -> Iterator[Entries]:
        parts = first_parts([source.spool for source in self.sources])
        for k, (source, plan) in enumerate(zip(self.sources, self.mixture, strict=True)):
            takes = plan.takes()
            for block in source.spool.blocks():
                withheld = self.withheld.holds(block.records["id64"])
                usable = source.usable(block.row, len(block.records))
                rows = np.flatnonzero(usable & ~withheld)
                counts = next(takes)
                for epoch in range(int(counts.max(initial=0))):
                    salt = key64(self.seed, "order", plan.name, epoch)
                    chosen = rows[counts > epoch]
                    yield from _entries(block, chosen, k, parts[k], epoch, salt)


@dataclass(frozen=True, slots=True)
class _Group:
    """The stream of one evaluation group: a source's held-out sequences of one mode."""

    spools: Sequence[PreparedSource]
    source: int
    rows: Int
    reasons: bool
    seed: int

    def __call__(self) -> Iterator[Entries]:
        spool, first = self.spools[self.source], first_parts(self.spools)[self.source]
        salt = key64(self.seed, "order", spool.name, "eval")
        for block in spool.blocks():
            numbers = np.arange(block.row, block.row + len(block.records))
            chosen = np.flatnonzero(is_among(numbers, self.rows))
            for entries in _entries(block, chosen, self.source, first, 0, salt):
                yield entries[entries["reasons"] == self.reasons]


def _evaluation(
    spools: Sequence[PreparedSource], withheld: Withheld, seed: int
) -> dict[str, Stream]:
    groups: dict[str, Stream] = {}
    for k, (spool, rows) in enumerate(zip(spools, withheld.rows, strict=True)):
        for mode, reasons in (("off", False), ("on", True)):
            group = _Group(spools, k, rows, reasons, seed)
            if len(rows) and any(len(entries) for entries in group()):
                groups[f"{spool.name}/{mode}"] = group
    return groups


def first_parts(spools: Sequence[PreparedSource]) -> list[int]:
    """The number of each source's first part, counted through all of them."""
    return list(accumulate((len(s.folders) for s in spools), initial=0))


def _entries(
    block: Block, rows: Int, source: int, first_part: int, epoch: int, salt: int
) -> Iterator[Entries]:
    """All sequences of some of a block's records; of long ones not too many at a time."""
    counts = block.records["sequences"][rows].astype(np.int64)
    cuts = np.flatnonzero(np.diff(np.cumsum(counts) // _ENTRIES)) + 1
    for some in np.split(rows, cuts):
        if len(some):
            yield _some_entries(block, some, source, first_part + block.part, epoch, salt)


def _some_entries(
    block: Block, rows: Int, source: int, part: int, epoch: int, salt: int
) -> Entries:
    records = block.records[rows]
    counts = records["sequences"].astype(np.int64)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    first = np.repeat(records["first"].astype(np.int64) - block.first, counts)
    sequences = block.sequences[first + within]
    entries = np.zeros(len(sequences), ENTRY)
    row_keys = shuffled_keys(np.repeat(records["row64"], counts), salt)
    entries["key"] = shuffled_keys(row_keys + within.astype(np.uint64), salt)
    entries["group"] = np.repeat(records["id64"], counts)
    for name in ("text", "text_size"):
        entries[name] = np.repeat(records[name], counts)
    for name in ("at", "length", "trained", "edges", "budget", "turn", "reasons"):
        entries[name] = sequences[name]
    entries["part"], entries["epoch"], entries["source"] = part, epoch, source
    return entries
