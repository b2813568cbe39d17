"""Prepared sources → which sequences are trained on, how often, and which are held out.

Held out are whole conversations, by a keyed hash of their ids; one that is chosen in one source is
kept out of training in all of them. So is one that would be trained on in the very tokens of a
held-out one: without its trace an answer is often word for word that of another conversation, and
the first turns of a dialogue are those of the next longer one. Evaluation sees none of those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from data_builders.keyed import is_among, key64, shuffled_keys
from data_builders.sft.mixture import (
    COLUMNS,
    Available,
    SourcePlan,
    lost_rows,
    plan_mixture,
    total_of,
)
from data_builders.sft.prepared import PreparedPart, PreparedSource, Rows
from posttrain.config.build_sft import BuildSftConfig, HeldOutConfig

Int = npt.NDArray[np.int64]
# `number` counts the sequences of every epoch over every source, taken or not
PLANNED = np.dtype([("key", "<u8"), ("length", "<u4"), ("number", "<u4")])
Keys = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]


@dataclass
class GroupStats:
    """What the sequences and packs of one group add up to.

    `reasoning` and `truncated` count sequences. `bins`, by powers of two of the length: sequences,
    trained and untrained tokens. `fills` counts packs by percent.
    """

    capacity: int
    reasoning: int = 0
    truncated: int = 0
    longest: int = 0
    bins: Int = field(default_factory=lambda: np.zeros((64, 3), np.int64))
    fills: Int = field(default_factory=lambda: np.zeros(101, np.int64))

    @classmethod
    def joined(cls, groups: Sequence[GroupStats]) -> GroupStats:
        """All groups together."""
        return cls(
            groups[0].capacity,
            reasoning=sum(own.reasoning for own in groups),
            truncated=sum(own.truncated for own in groups),
            longest=max(own.longest for own in groups),
            bins=np.sum([own.bins for own in groups], axis=0),
            fills=np.sum([own.fills for own in groups], axis=0),
        )

    @property
    def sequences(self) -> int:
        """All that were counted."""
        return int(self.bins[:, 0].sum())

    def add(self, rows: Rows) -> None:
        """Count some sequences."""
        length, trained = rows["length"].astype(np.int64), rows["trained"].astype(np.int64)
        self.reasoning += int(rows["reasons"].sum())
        self.truncated += int((rows["budget"] >= 0).sum())
        self.longest = max(self.longest, int(length.max(initial=0)))
        place = np.ceil(np.log2(np.maximum(length, 1))).astype(np.int64)
        for k, weights in enumerate((None, trained, length - trained)):
            self.bins[:, k] += np.bincount(place, weights, len(self.bins)).astype(np.int64)

    def add_packs(self, tokens: Int) -> None:
        """Count packs by their tokens."""
        self.fills += np.bincount(tokens * 100 // self.capacity, minlength=101)

    def stats(self) -> dict[str, Any]:
        """For the manifest."""
        sequences, trained, untrained = self.bins.sum(axis=0).tolist()
        packs = int(self.fills.sum())
        return {
            "packs": packs,
            "sequences": sequences,
            "tokens": trained + untrained,
            "trained": trained,
            "reasoning": self.reasoning,
            "truncated": self.truncated,
            "longest": self.longest,
            "fill": (trained + untrained) / (packs * self.capacity) if packs else 0.0,
            "sequences_per_pack": sequences / packs if packs else 0.0,
        }

    def lengths(self) -> list[dict[str, int]]:
        """Sequences, trained and untrained tokens by length; empty bins are left out."""
        return [
            {"up_to": 1 << k, "sequences": count, "trained": trained, "untrained": untrained}
            for k, (count, trained, untrained) in enumerate(self.bins.tolist())
            if count
        ]


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """Planned sequences that may share packs; `table` has a `PLANNED` for each."""

    table: Rows
    stats: GroupStats


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """`evaluation` maps "<source>/<on|off>" to sequences.

    Per source: `passes` has the number of the first sequence in each epoch, `held_out` counts the
    records that evaluation sees, `dropped` has by reason the numbers of the records in no split, as
    `held_out_duplicate` more records of held-out conversations, or that share a sequence with one.
    """

    passes: list[list[int]]
    train: PlannedGroup
    evaluation: dict[str, PlannedGroup]
    mixture: list[SourcePlan]
    held_out: list[int]
    dropped: list[dict[str, Int]]

    def conversations(self, numbers: Numbers, sources: Sequence[PreparedSource]) -> Keys:
        """(n,) the conversation of each planned sequence: two of one never share a pack."""
        found = np.empty(len(numbers), np.uint64)
        for source, firsts in zip(sources, self.passes, strict=True):
            records = source.records("id64", "sequences")
            ids = np.repeat(records["id64"], records["sequences"])
            first, end = firsts[0], firsts[0] + len(ids) * len(firsts)
            own = np.flatnonzero((numbers >= first) & (numbers < end))
            if len(own):
                found[own] = ids[(numbers[own] - first) % len(ids)]
        return found


def plan_build(
    sources: Sequence[PreparedSource],
    recipe: BuildSftConfig,
    drops: Sequence[Mapping[str, Int]] | None = None,
) -> BuildPlan:
    """Split off the held-out records and plan the mixture of the rest.

    Args:
        drops: per source, by reason, the numbers of records that are not to be used at all.

    Raises:
        DataError: the mixture cannot be met (`plan_mixture`).
    """
    drops = drops or [{} for _ in sources]
    usable: list[Mask] = []
    for source, own in zip(sources, drops, strict=True):
        usable.append(np.ones(len(source), np.bool_))
        for numbers in own.values():
            usable[-1][numbers] = False
    held_out, withheld = hold_out(sources, usable, recipe)
    trainable: list[Mask] = []
    available: list[Available] = []
    for source, mask, own in zip(sources, usable, drops, strict=True):
        left = mask & ~is_among(source.records("id64")["id64"], withheld)
        read = partial(_read, source, left)
        dropped = {**source.stats["dropped"], **{name: len(rows) for name, rows in own.items()}}
        lost = lost_rows(dropped, int(mask.sum()))
        trainable.append(left)
        available.append(Available(source.name, read, total_of(read()), lost))
    mixture = plan_mixture(available, recipe)
    passes = _passes(sources, mixture)
    return BuildPlan(
        passes=passes,
        train=_training(sources, trainable, mixture, passes, recipe),
        evaluation=_evaluation(sources, held_out, passes, recipe),
        mixture=mixture,
        held_out=[len(rows) for rows in held_out],
        dropped=[
            {
                **own,
                "not_sampled": np.flatnonzero(mask)[plan.times() == 0],
                "held_out_duplicate": np.setdiff1d(np.flatnonzero(left & ~mask), rows),
            }
            for own, left, mask, plan, rows in zip(
                drops, usable, trainable, mixture, held_out, strict=True
            )
        ],
    )


def _read(source: PreparedSource, mask: Mask) -> Rows:
    """The columns of the mixture, of the records in a mask."""
    return source.records(*COLUMNS)[mask]


def hold_out(
    sources: Sequence[PreparedSource], usable: Sequence[Mask], recipe: BuildSftConfig
) -> tuple[list[Int], Keys]:
    """Choose in every source; of a conversation in several, evaluation sees the first source's.

    Returns:
        Per source the numbers of the records that evaluation sees, and the ids of all
        conversations that are kept out of training.
    """
    salt = key64(recipe.seed, "held_out")
    ids, keys = np.empty(0, np.uint64), np.empty(0, np.uint64)
    rows: list[Int] = []
    for own, source, mask in zip(recipe.sources, sources, usable, strict=True):
        records = source.records("id64", "row64")
        places = shuffled_keys(records["id64"], salt)
        last = _last(places[mask], own.held_out or recipe.held_out)
        chosen = mask & ~is_among(records["id64"], ids)
        chosen &= (places <= np.uint64(last)) if last >= 0 else False
        numbers = np.flatnonzero(chosen)
        found = records[numbers]
        # the same row of the same conversation, whatever the order of rows
        order = np.lexsort((found["row64"], found["id64"]))
        unique, first = np.unique(found["id64"][order], return_index=True)
        rows.append(np.sort(numbers[order[first]]))
        ids = np.union1d(ids, unique)
        for part in source.parts() if len(rows[-1]) else ():
            seen = is_among(part.numbers, rows[-1])[part.owners]
            keys = np.union1d(keys, part.sequences["key"][seen])
    # the ids of conversations that share a sequence with a held-out record, too
    for source, mask in zip(sources, usable, strict=True) if len(keys) else ():
        for part in source.parts():
            leaked = np.zeros(len(part.records), np.bool_)
            leaked[part.owners[is_among(part.sequences["key"], keys)]] = True
            leaked &= mask[part.first : part.first + len(leaked)]
            ids = np.union1d(ids, part.records["id64"][leaked])
    return rows, ids


def _last(places: Keys, config: HeldOutConfig) -> int:
    """The largest place that is chosen; -1 for none."""
    if config.rate is not None:
        return int(config.rate * 2.0**64) - 1
    smallest = np.unique(places)[: config.rows]
    return int(smallest[-1]) if len(smallest) else -1


def _passes(sources: Sequence[PreparedSource], mixture: Sequence[SourcePlan]) -> list[list[int]]:
    """As in `BuildPlan`."""
    passes: list[list[int]] = []
    first = 0
    for source, plan in zip(sources, mixture, strict=True):
        size, epochs = int(source.sequence_starts()[-1]), plan.epochs + (plan.extra is not None)
        passes.append([first + epoch * size for epoch in range(max(epochs, 1))])
        first += size * len(passes[-1])
    assert first < 1 << 32, "numbers of sequences have 32 bits"
    return passes


def _training(
    sources: Sequence[PreparedSource],
    trainable: Sequence[Mask],
    mixture: Sequence[SourcePlan],
    passes: Sequence[Sequence[int]],
    recipe: BuildSftConfig,
) -> PlannedGroup:
    """All training sequences, pass after pass."""
    whole = np.empty(sum(plan.total.sequences for plan in mixture), PLANNED)
    stats, filled = GroupStats(recipe.packing.max_length), 0
    for source, mask, plan, own in zip(sources, trainable, mixture, passes, strict=True):
        times = np.zeros(len(mask), np.int64)
        times[mask] = plan.times()
        salts = [key64(recipe.seed, "order", plan.name, epoch) for epoch in range(len(own))]
        for part in source.parts():
            taken = times[part.first : part.first + len(part.records)]
            for epoch, (first, salt) in enumerate(zip(own, salts, strict=True)):
                table, rows = _planned(part, np.flatnonzero(taken > epoch), first, salt)
                whole[filled : filled + len(table)] = table
                filled += len(table)
                stats.add(rows)
    assert filled == len(whole), "the mixture counted what is planned"
    return PlannedGroup(whole, stats)


def _evaluation(
    sources: Sequence[PreparedSource],
    held_out: Sequence[Int],
    passes: Sequence[Sequence[int]],
    recipe: BuildSftConfig,
) -> dict[str, PlannedGroup]:
    """The held-out sequences of each source, by reasoning mode; groups without any are left out."""
    groups: dict[str, PlannedGroup] = {}
    for source, numbers, (first, *_) in zip(sources, held_out, passes, strict=True):
        salt = key64(recipe.seed, "order", source.name, "eval")
        planned = [
            _planned(part, np.flatnonzero(is_among(part.numbers, numbers)), first, salt)
            for part in (source.parts() if len(numbers) else ())
        ]
        for mode, reasons in (("off", False), ("on", True)):
            stats = GroupStats(recipe.packing.max_length)
            tables = [np.empty(0, PLANNED)]
            for table, rows in planned:
                own = rows["reasons"] == reasons
                tables.append(table[own])
                stats.add(rows[own])
            if stats.sequences:
                groups[f"{source.name}/{mode}"] = PlannedGroup(np.concatenate(tables), stats)
    return dict(sorted(groups.items()))


def _planned(part: PreparedPart, chosen: Int, first: int, salt: int) -> tuple[Rows, Rows]:
    """The table of all sequences of some of a part's records, and the sequences themselves."""
    records = part.records[chosen]
    counts = records["sequences"].astype(np.int64)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    at = np.repeat(records["first"].astype(np.int64), counts) + within
    rows = part.sequences[at]
    table = np.empty(len(at), PLANNED)
    row_keys = shuffled_keys(np.repeat(records["row64"], counts), salt)
    table["key"] = shuffled_keys(row_keys + within.astype(np.uint64), salt)
    table["length"] = rows["length"]
    table["number"] = first + part.first_sequence + at
    return table, rows
