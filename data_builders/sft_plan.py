"""Spools → which sequences are trained on, how often, and which are held out.

    plan_build(spools, recipe)
    → BuildPlan(train=Sequences(…), evaluation={"maths/on": Sequences(…)}, …)

Held-out conversations are chosen by a keyed hash of the record's id and are kept out of training
in every source they occur in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data_builders.keyed import key64, shuffled_keys
from data_builders.mixture import SourcePlan, Stock, plan_mixture
from data_builders.sft_spool import Spool
from posttrain.config.build_sft import BuildSftConfig, HeldOutConfig

Int = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sequences:
    """Sequences in the order they were planned; all arrays (n,).

    `source` indexes the spools, `sequence` and `record` a spool's sequences and records.
    """

    source: npt.NDArray[np.int16]
    sequence: Int
    record: Int
    epoch: npt.NDArray[np.int16]
    length: Int
    group: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.sequence)


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """`evaluation` maps "<source>/<on|off>" to sequences; `held_out` counts records by source."""

    train: Sequences
    evaluation: dict[str, Sequences]
    mixture: list[SourcePlan]
    held_out: list[int]
    duplicates: list[int]


def plan_build(spools: Sequence[Spool], recipe: BuildSftConfig) -> BuildPlan:
    """Split off the held-out records and plan the mixture of the rest.

    Raises:
        DataError: the mixture cannot be met (`plan_mixture`).
    """
    chosen = [
        _held_out(spool, source.held_out or recipe.held_out, recipe.seed)
        for spool, source in zip(spools, recipe.sources, strict=True)
    ]
    withheld = np.unique(
        np.concatenate([s.id64[rows] for s, rows in zip(spools, chosen, strict=True)])
    )
    unseen = _first_of_each(spools, chosen)
    remaining = [np.flatnonzero(~np.isin(s.id64, withheld)) for s in spools]
    stocks = [_stock(spool, rows) for spool, rows in zip(spools, remaining, strict=True)]
    mixture = plan_mixture(stocks, recipe)
    train = [
        _expand(k, spool, rows[plan.records], plan.epochs)
        for k, (spool, rows, plan) in enumerate(zip(spools, remaining, mixture, strict=True))
    ]
    return BuildPlan(
        train=concatenate(train),
        evaluation=_by_group(spools, unseen),
        mixture=mixture,
        held_out=[len(rows) for rows in unseen],
        duplicates=[
            len(s.id64) - len(rest) - len(rows)
            for s, rest, rows in zip(spools, remaining, unseen, strict=True)
        ],
    )


def _held_out(spool: Spool, how: HeldOutConfig, seed: int) -> Int:
    """Records chosen for evaluation: all rows of a conversation or none."""
    place = shuffled_keys(spool.id64, key64(seed, "held_out"))
    if how.rate is not None:
        return np.flatnonzero(place < int(how.rate * 2.0**64)).astype(np.int64)
    assert how.rows is not None
    return np.flatnonzero(np.isin(place, np.unique(place)[: how.rows])).astype(np.int64)


def _first_of_each(spools: Sequence[Spool], chosen: Sequence[Int]) -> list[Int]:
    """Of every held-out conversation one record: of the first source, then by its row's key."""
    seen = np.empty(0, np.uint64)
    found: list[Int] = []
    for spool, rows in zip(spools, chosen, strict=True):
        rows = rows[np.argsort(spool.row64[rows], kind="stable")]
        _, first = np.unique(spool.id64[rows], return_index=True)
        rows = rows[np.sort(first)]
        rows = rows[~np.isin(spool.id64[rows], seen)]
        seen = np.concatenate([seen, spool.id64[rows]])
        found.append(rows)
    return found


def _stock(spool: Spool, rows: Int) -> Stock:
    return Stock(
        name=spool.name,
        keys=spool.row64[rows],
        tokens=spool.per_record(spool.length)[rows],
        trained=spool.per_record(spool.trained)[rows],
        lost=_lost(spool),
    )


def _lost(spool: Spool) -> str:
    """Where a source's rows went, most first."""
    dropped = sorted(spool.facts["dropped"].items(), key=lambda item: -item[1])
    parts = [f"{count:,} {reason}" for reason, count in dropped]
    if held_out := len(spool.id64):
        parts.append(f"{held_out:,} held out")
    return ", ".join(parts) or "no rows"


def _expand(source: int, spool: Spool, records: Int, epochs: npt.NDArray[np.int16]) -> Sequences:
    """All sequences of the given records, in their order."""
    counts = np.diff(spool.starts)[records]
    ends = np.cumsum(counts)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    sequence = np.repeat(spool.starts[:-1][records], counts) + within
    return Sequences(
        source=np.full(len(sequence), source, np.int16),
        sequence=sequence,
        record=np.repeat(records, counts),
        epoch=np.repeat(epochs, counts),
        length=spool.length[sequence],
        group=np.repeat(spool.id64[records], counts),
    )


def concatenate(parts: Sequence[Sequences]) -> Sequences:
    """Several as one."""
    return Sequences(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in Sequences.__dataclass_fields__
        )
    )


def select(sequences: Sequences, where: Int | npt.NDArray[np.bool_]) -> Sequences:
    """Those at the given positions, or where true."""
    return Sequences(*(getattr(sequences, n)[where] for n in Sequences.__dataclass_fields__))


def _by_group(spools: Sequence[Spool], rows: Sequence[Int]) -> dict[str, Sequences]:
    groups: dict[str, Sequences] = {}
    for k, (spool, records) in enumerate(zip(spools, rows, strict=True)):
        everything = _expand(k, spool, records, np.zeros(len(records), np.int16))
        reasons = spool.reasons[everything.sequence]
        for mode, where in (("off", ~reasons), ("on", reasons)):
            if where.any():
                groups[f"{spool.name}/{mode}"] = select(everything, where)
    return groups
