"""Prepared sources → plan of a build: sequences to train on, repetitions, held-out sequences.

Whole conversations are held out, by a keyed hash of their ids; a conversation that is held out in
one source is kept out of training in all of them. So is one that would be trained on in the very
tokens of a held-out one: without its trace an answer is often word for word that of another
conversation, and the first turns of a dialogue are those of the next longer one. Evaluation uses
none of those.

The mixture takes a source a number of whole times, then the records with the smallest keyed hashes
once more, until the requested amount is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from data_builders.keyed import is_among, key64, shuffled_keys
from data_builders.sft.prepared import PreparedPart, PreparedSource, Rows
from posttrain.config.build_sft import BuildSftConfig, HeldOutConfig, SftSource, Unit
from posttrain.errors import DataError

Int = npt.NDArray[np.int64]
# `number` counts the sequences of every epoch over every source, whether they are taken or not
PLANNED = np.dtype([("key", "<u8"), ("length", "<u4"), ("number", "<u4")])
Keys = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]
MAX_EPOCHS = 4.0  # if a recipe requests an amount without a limit of its own; ours
# (n,) records with the fields of `COLUMNS`
Records = npt.NDArray[np.void]
COLUMNS = ("row64", "tokens", "trained", "sequences")


@dataclass
class GroupStats:
    """Totals of the sequences and packs of one group.

    Attributes:
        reasoning, truncated: sequences that reason; sequences with a cut trace.
        bins: by powers of two of the length: sequences, trained tokens, untrained tokens, (64, 3).
        fills: packs by how full they are, in per cent, (101,).
    """

    capacity: int
    reasoning: int = 0
    truncated: int = 0
    longest: int = 0
    bins: Int = field(default_factory=lambda: np.zeros((64, 3), np.int64))
    fills: Int = field(default_factory=lambda: np.zeros(101, np.int64))

    @classmethod
    def joined(cls, groups: Sequence[GroupStats]) -> GroupStats:
        """Totals of all groups together."""
        return cls(
            groups[0].capacity,
            reasoning=sum(group.reasoning for group in groups),
            truncated=sum(group.truncated for group in groups),
            longest=max(group.longest for group in groups),
            bins=np.sum([group.bins for group in groups], axis=0),
            fills=np.sum([group.fills for group in groups], axis=0),
        )

    @property
    def sequences(self) -> int:
        """Number of counted sequences."""
        return int(self.bins[:, 0].sum())

    def add(self, rows: Rows) -> None:
        """Count some sequences."""
        length = rows["length"].astype(np.int64)
        trained = rows["trained"].astype(np.int64)
        self.reasoning += int(rows["reasons"].sum())
        self.truncated += int((rows["budget"] >= 0).sum())
        self.longest = max(self.longest, int(length.max(initial=0)))
        size_bin = np.ceil(np.log2(np.maximum(length, 1))).astype(np.int64)
        for column, weights in enumerate((None, trained, length - trained)):
            counts = np.bincount(size_bin, weights, len(self.bins))
            self.bins[:, column] += counts.astype(np.int64)

    def add_packs(self, tokens: Int) -> None:
        """Count packs by their numbers of tokens."""
        self.fills += np.bincount(tokens * 100 // self.capacity, minlength=101)

    def stats(self) -> dict[str, Any]:
        """Figures for the manifest."""
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
        rows: list[dict[str, int]] = []
        for exponent, (count, trained, untrained) in enumerate(self.bins.tolist()):
            if count:
                row = {"up_to": 1 << exponent, "sequences": count}
                rows.append({**row, "trained": trained, "untrained": untrained})
        return rows


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """Planned sequences that may share packs; `table` has a `PLANNED` row for each."""

    table: Rows
    stats: GroupStats


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Sequences of each split, and the fate of every record.

    Attributes:
        passes: per source, the number of the first sequence in each epoch.
        evaluation: "<source>/<on|off>" → sequences.
        held_out: per source, the number of records that evaluation sees.
        dropped: per source, the numbers of the records in no split, by reason.
            `held_out_duplicate`: further records of held-out conversations, and records that share
            a sequence with one.
    """

    passes: list[list[int]]
    train: PlannedGroup
    evaluation: dict[str, PlannedGroup]
    mixture: list[SourcePlan]
    held_out: list[int]
    dropped: list[dict[str, Int]]

    def conversations(self, numbers: Numbers, sources: Sequence[PreparedSource]) -> Keys:
        """Key of each planned sequence's conversation, (n,): two of one never share a pack."""
        keys = np.empty(len(numbers), np.uint64)
        for source, firsts in zip(sources, self.passes, strict=True):
            records = source.records("id64", "sequences")
            ids = np.repeat(records["id64"], records["sequences"])
            first = firsts[0]
            end = first + len(ids) * len(firsts)
            in_source = np.flatnonzero((numbers >= first) & (numbers < end))
            if len(in_source):
                keys[in_source] = ids[(numbers[in_source] - first) % len(ids)]
        return keys


def plan_build(
    sources: Sequence[PreparedSource],
    recipe: BuildSftConfig,
    drops: Sequence[Mapping[str, Int]] | None = None,
) -> BuildPlan:
    """Hold out records for evaluation and plan the mixture of the others.

    Args:
        drops: per source, by reason, the numbers of records that are not to be used at all.

    Raises:
        DataError: the mixture cannot be met (`plan_mixture`).
    """
    drops = drops or [{} for _ in sources]
    usable: list[Mask] = []
    for source, source_drops in zip(sources, drops, strict=True):
        mask = np.ones(len(source), np.bool_)
        for numbers in source_drops.values():
            mask[numbers] = False
        usable.append(mask)
    held_out, withheld_ids = hold_out(sources, usable, recipe)

    trainable: list[Mask] = []
    available: list[Available] = []
    for source, mask, source_drops in zip(sources, usable, drops, strict=True):
        is_trainable = mask & ~is_among(source.records("id64")["id64"], withheld_ids)
        read = partial(_mixture_columns, source, is_trainable)
        dropped = {reason: len(rows) for reason, rows in source_drops.items()}
        lost = lost_rows({**source.stats["dropped"], **dropped}, int(mask.sum()))
        trainable.append(is_trainable)
        available.append(Available(source.name, read, total_of(read()), lost))
    mixture = plan_mixture(available, recipe)

    dropped_records: list[dict[str, Int]] = []
    for k, plan in enumerate(mixture):
        withheld = np.flatnonzero(usable[k] & ~trainable[k])
        dropped_records.append(
            {
                **drops[k],
                "not_sampled": np.flatnonzero(trainable[k])[plan.times() == 0],
                "held_out_duplicate": np.setdiff1d(withheld, held_out[k]),
            }
        )
    passes = _first_numbers(sources, mixture)
    return BuildPlan(
        passes=passes,
        train=_plan_training(sources, trainable, mixture, passes, recipe),
        evaluation=_plan_evaluation(sources, held_out, passes, recipe),
        mixture=mixture,
        held_out=[len(rows) for rows in held_out],
        dropped=dropped_records,
    )


def _mixture_columns(source: PreparedSource, mask: Mask) -> Rows:
    """Columns that the mixture reads, of the records in a mask."""
    return source.records(*COLUMNS)[mask]


def hold_out(
    sources: Sequence[PreparedSource], usable: Sequence[Mask], recipe: BuildSftConfig
) -> tuple[list[Int], Keys]:
    """Choose the held-out records; a conversation of several sources is evaluated in the first.

    Returns:
        Per source the numbers of the records that evaluation sees, and the ids of all
        conversations that are kept out of training.
    """
    salt = key64(recipe.seed, "held_out")
    ids = np.empty(0, np.uint64)  # of held-out conversations
    keys = np.empty(0, np.uint64)  # of their sequences
    held_out: list[Int] = []
    for settings, source, mask in zip(recipe.sources, sources, usable, strict=True):
        records = source.records("id64", "row64")
        # by the conversation's own id: other rows or sources change nothing about who is held out
        ranks = shuffled_keys(records["id64"], salt)
        threshold = _largest_rank(ranks[mask], settings.held_out or recipe.held_out)
        chosen = mask & ~is_among(records["id64"], ids)
        chosen &= (ranks <= np.uint64(threshold)) if threshold >= 0 else False
        numbers = np.flatnonzero(chosen)
        candidates = records[numbers]
        # of several rows of one conversation always the same, whatever the order of rows
        order = np.lexsort((candidates["row64"], candidates["id64"]))
        distinct_ids, first = np.unique(candidates["id64"][order], return_index=True)
        source_rows = np.sort(numbers[order[first]])
        held_out.append(source_rows)
        ids = np.union1d(ids, distinct_ids)
        for part in source.parts() if len(source_rows) else ():
            in_evaluation = is_among(part.numbers, source_rows)[part.owners]
            keys = np.union1d(keys, part.sequences["key"][in_evaluation])
    if not len(keys):
        return held_out, ids
    # conversations that share a sequence with a held-out record are withheld, too
    for source, mask in zip(sources, usable, strict=True):
        for part in source.parts():
            shares_sequence = np.zeros(len(part.records), np.bool_)
            shares_sequence[part.owners[is_among(part.sequences["key"], keys)]] = True
            shares_sequence &= mask[part.first : part.first + len(part.records)]
            ids = np.union1d(ids, part.records["id64"][shares_sequence])
    return held_out, ids


def _largest_rank(ranks: Keys, config: HeldOutConfig) -> int:
    """Largest rank that is held out; -1 for none."""
    if config.rate is not None:
        return int(config.rate * 2.0**64) - 1
    # conversations, each once, however many of the source's rows hold it
    smallest = np.unique(ranks)[: config.rows]
    return int(smallest[-1]) if len(smallest) else -1


def _first_numbers(
    sources: Sequence[PreparedSource], mixture: Sequence[SourcePlan]
) -> list[list[int]]:
    """Number of the first sequence in each epoch of each source, as in `BuildPlan`."""
    passes: list[list[int]] = []
    first = 0
    for source, plan in zip(sources, mixture, strict=True):
        size = int(source.sequence_starts()[-1])
        # held-out sequences have numbers too, in a source that training does not take
        epochs = max(plan.epochs + (plan.extra is not None), 1)
        passes.append([first + epoch * size for epoch in range(epochs)])
        first += size * epochs
    assert first < 1 << 32, "numbers of sequences have 32 bits"
    return passes


def _plan_training(
    sources: Sequence[PreparedSource],
    trainable: Sequence[Mask],
    mixture: Sequence[SourcePlan],
    passes: Sequence[Sequence[int]],
    recipe: BuildSftConfig,
) -> PlannedGroup:
    """Plan all training sequences, epoch after epoch."""
    table = np.empty(sum(plan.total.sequences for plan in mixture), PLANNED)
    stats = GroupStats(recipe.packing.max_length)
    filled = 0
    for source, mask, plan, firsts in zip(sources, trainable, mixture, passes, strict=True):
        times = np.zeros(len(mask), np.int64)
        times[mask] = plan.times()
        salts = [key64(recipe.seed, "order", plan.name, epoch) for epoch in range(len(firsts))]
        # part by part, since the sequences of a whole source need not fit into memory
        for part in source.parts():
            part_times = times[part.first : part.first + len(part.records)]
            for epoch, (first, salt) in enumerate(zip(firsts, salts, strict=True)):
                chosen = np.flatnonzero(part_times > epoch)
                planned, rows = _plan_records(part, chosen, first, salt)
                table[filled : filled + len(planned)] = planned
                filled += len(planned)
                stats.add(rows)
    assert filled == len(table), "the mixture counted what is planned"
    return PlannedGroup(table, stats)


def _plan_evaluation(
    sources: Sequence[PreparedSource],
    held_out: Sequence[Int],
    passes: Sequence[Sequence[int]],
    recipe: BuildSftConfig,
) -> dict[str, PlannedGroup]:
    """Plan the held-out sequences of each source by reasoning mode; empty groups are left out."""
    groups: dict[str, PlannedGroup] = {}
    for source, numbers, (first, *_) in zip(sources, held_out, passes, strict=True):
        salt = key64(recipe.seed, "order", source.name, "eval")
        planned: list[tuple[Rows, Rows]] = []
        for part in source.parts() if len(numbers) else ():
            chosen = np.flatnonzero(is_among(part.numbers, numbers))
            planned.append(_plan_records(part, chosen, first, salt))
        for mode, reasons in (("off", False), ("on", True)):
            stats = GroupStats(recipe.packing.max_length)
            tables = [np.empty(0, PLANNED)]
            for table, rows in planned:
                in_mode = rows["reasons"] == reasons
                tables.append(table[in_mode])
                stats.add(rows[in_mode])
            if stats.sequences:
                groups[f"{source.name}/{mode}"] = PlannedGroup(np.concatenate(tables), stats)
    return dict(sorted(groups.items()))


def _plan_records(part: PreparedPart, chosen: Int, first: int, salt: int) -> tuple[Rows, Rows]:
    """Plan some of a part's records: a `PLANNED` row and the `SEQUENCE` of each sequence.

    Args:
        chosen: numbers of the records in the part.
        first: number of the source's first sequence in this epoch.
        salt: shuffles the keys of this source and epoch.
    """
    records = part.records[chosen]
    counts = records["sequences"].astype(np.int64)
    number_in_record = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    number_in_part = np.repeat(records["first"].astype(np.int64), counts) + number_in_record
    rows = part.sequences[number_in_part]
    table = np.empty(len(rows), PLANNED)
    # twice: keys of neighbouring turns differ by one, and must not lie beside each other
    record_keys = shuffled_keys(np.repeat(records["row64"], counts), salt)
    table["key"] = shuffled_keys(record_keys + number_in_record.astype(np.uint64), salt)
    table["length"] = rows["length"]
    table["number"] = first + part.first_sequence + number_in_part
    return table, rows


# -- the mixture: the number of times that each record of each source is seen ----------------------


class Total(NamedTuple):
    """Sums over some records."""

    rows: int = 0
    tokens: int = 0
    trained: int = 0
    sequences: int = 0

    def plus(self, added: Total, times: int = 1) -> Total:
        """Add another total `times` times."""
        return Total(*(value + times * more for value, more in zip(self, added, strict=True)))

    def scaled(self, factor: float) -> Total:
        """Multiply by a factor and round to whole numbers."""
        return Total(*(round(factor * value) for value in self))


def total_of(records: Records) -> Total:
    """Sums over records."""
    sums = [int(records[column].sum(dtype=np.int64)) for column in COLUMNS[1:]]
    return Total(len(records), *sums)


def lost_rows(dropped: Mapping[str, int], held_out: int = 0) -> str:
    """Drop reasons with their counts, most first: "1,500 unrecognised, 12 license, 30 held out"."""
    counts = sorted(dropped.items(), key=lambda item: -item[1])
    counts.append(("held out", held_out))
    parts = [f"{count:,} {reason}" for reason, count in counts if count]
    return ", ".join(parts) or "no rows"


@dataclass(frozen=True, slots=True)
class Available:
    """Records of a source that may be trained on.

    Attributes:
        read: function that returns their `COLUMNS`; None: the total is an estimate, and plans are
            made to a fraction of a record.
        lost: drop reasons with counts, for the message that there are none.
    """

    name: str
    read: Callable[[], Records] | None
    total: Total
    lost: str = "no rows"


@dataclass(frozen=True, slots=True)
class Amount:
    """Requested amount; `share` is set if it came from a share of the total."""

    unit: Unit
    value: float
    share: float | None = None


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """Plan of one source: all of it `epochs` times, and the records in `extra` once more.

    Attributes:
        cap: largest number of times that a record may be seen.
        total: sums over everything that is taken, repeats counted.
        distinct: records that are taken at least once.
    """

    name: str
    requested: Amount | None
    cap: float
    epochs: int
    extra: npt.NDArray[np.bool_] | None
    available: Available
    total: Total
    distinct: int

    def times(self) -> Int:
        """Number of times that each available record is taken, (n,)."""
        times = np.full(self.available.total.rows, self.epochs, np.int64)
        return times if self.extra is None else times + self.extra


def plan_mixture(sources: Sequence[Available], recipe: BuildSftConfig) -> list[SourcePlan]:
    """Decide the amount of each source, and check it against the request.

    Raises:
        DataError: a source cannot give the requested amount within the tolerance; the message names
            the source, its deviation, and the keys to change.
    """
    mixture = recipe.mixture
    caps = _epoch_caps(recipe, MAX_EPOCHS if mixture.total else 1.0)
    total = mixture.total or _largest_total(sources, caps, recipe)
    plans: list[SourcePlan] = []
    for source, available, cap in zip(recipe.sources, sources, caps, strict=True):
        amount = _requested_amount(source, total, mixture.unit)
        plan = _plan_source(available, amount, cap, recipe.seed)
        _check_amount(plan, mixture.tolerance)
        plans.append(plan)
    return plans


def epochs_question(sources: Sequence[Available], recipe: BuildSftConfig) -> str | None:
    """Question for the user if shares divide no total, and nothing limits the repetition.

    None if the recipe decides it, or if every source is taken about once anyway.
    """
    mixture = recipe.mixture
    sharing: list[tuple[str, float, int]] = []  # name, share, available amount
    for source, available in zip(recipe.sources, sources, strict=True):
        if source.share:
            amount = getattr(available.total, mixture.unit)
            sharing.append((source.name, source.share, amount))
    source_caps = [source.max_epochs for source in recipe.sources if source.share]
    has_caps = mixture.max_epochs or all(source_caps)
    if mixture.total or has_caps or not all(amount for *_, amount in sharing):
        return None  # a source without anything to give is a problem of its own
    options: list[str] = []
    for cap in (1.0, MAX_EPOCHS):
        total = _largest_total(sources, _epoch_caps(recipe, cap), recipe) or 0.0
        times = {name: share * total / amount for name, share, amount in sharing}
        if cap == 1 and min(times.values()) >= 1 - mixture.tolerance:
            return None
        repetitions = ", ".join(f"{name} {count:.1f} times" for name, count in times.items())
        options.append(
            f"mixture.max_epochs={cap:g} takes {total:,.0f} {mixture.unit}: {repetitions}"
        )
    return (
        "shares need to know how much they divide, or how often a record may be repeated: set "
        f"mixture.total, or mixture.max_epochs. {'; '.join(options)}"
    )


def _epoch_caps(recipe: BuildSftConfig, default: float) -> list[float]:
    """Largest number of times for the records of each source; `default` is for shares."""
    caps: list[float] = []
    for source in recipe.sources:
        fallback = MAX_EPOCHS if source.share is None else default
        caps.append(source.max_epochs or recipe.mixture.max_epochs or fallback)
    return caps


def _largest_total(
    sources: Sequence[Available], caps: Sequence[float], recipe: BuildSftConfig
) -> float | None:
    """Total at which the first source with a share reaches its cap; None without shares."""
    totals: list[float] = []
    for source, available, cap in zip(recipe.sources, sources, caps, strict=True):
        if source.share is None:
            continue
        amount = getattr(available.total, recipe.mixture.unit)
        if amount == 0:
            raise DataError(
                f"source {source.name!r} has share {source.share:g} and nothing to give: none of "
                f"its records was kept for training ({available.lost}). Mend or remove it"
            )
        totals.append(cap * amount / source.share)
    return min(totals, default=None)


def _requested_amount(source: SftSource, total: float | None, unit: Unit) -> Amount | None:
    """Amount that the recipe requests of a source; None: each record once."""
    if source.rows is not None:
        return Amount("rows", source.rows)
    if source.tokens is not None:
        return Amount("tokens", source.tokens)
    if source.share is None:
        return None
    assert total is not None, "a share always has a total to divide"
    return Amount(unit, source.share * total, source.share)


def _plan_source(available: Available, amount: Amount | None, cap: float, seed: int) -> SourcePlan:
    """Take whole epochs, then some records once more; without an amount, each record once."""
    name = available.name
    if amount is None:
        rows = available.total.rows
        return SourcePlan(name, None, cap, 1, None, available, available.total, rows)
    epoch_amount = getattr(available.total, amount.unit)
    planned_amount = min(amount.value, cap * epoch_amount)
    epochs = int(planned_amount // epoch_amount) if epoch_amount else 0
    remainder = planned_amount - epochs * epoch_amount
    total = Total().plus(available.total, epochs)
    distinct = available.total.rows if epochs else 0
    extra = None
    if remainder > 0 and epoch_amount:
        if available.read is None:
            extra_total = available.total.scaled(remainder / epoch_amount)
        else:
            records = available.read()
            salt = key64(seed, "epoch", name, epochs)
            extra = _choose_extra(records, amount.unit, remainder, salt)
            extra_total = total_of(records[extra])
        total = total.plus(extra_total)
        distinct = distinct or extra_total.rows
    return SourcePlan(name, amount, cap, epochs, extra, available, total, distinct)


def _choose_extra(records: Records, unit: Unit, amount: float, salt: int) -> npt.NDArray[np.bool_]:
    """Choose records in the order of their keys until they come closest to an amount, (n,)."""
    # equal keys are copies of one row: which of them is taken makes no difference
    order = np.argsort(shuffled_keys(records["row64"], salt), kind="stable")
    sizes = records["tokens"].astype(np.int64) if unit == "tokens" else np.ones(len(records), int)
    reached = np.cumsum(sizes[order])
    count = int(np.searchsorted(reached, amount))
    before = reached[count - 1] if count else 0
    if count < len(reached) and reached[count] - amount < amount - before:
        count += 1
    extra = np.zeros(len(records), np.bool_)
    extra[order[:count]] = True
    return extra


def _check_amount(plan: SourcePlan, tolerance: float) -> None:
    """Raise DataError if a plan misses its requested amount; the message says what to change."""
    if plan.requested is None:
        return
    unit = plan.requested.unit
    requested = plan.requested.value
    share = plan.requested.share
    realised = getattr(plan.total, unit)
    available = getattr(plan.available.total, unit)
    deviation = abs(realised - requested) / requested
    if deviation <= tolerance:
        return
    if available == 0:
        reason = f"no record of it was kept ({plan.available.lost})"
    elif requested > plan.cap * available:
        largest_amount = plan.cap * available
        alternative = f"or ask for at most {int(largest_amount):,} {unit}"
        if share is not None:
            largest_total = int(largest_amount / share)
            alternative = f"lower its share, or set mixture.total to at most {largest_total:,}"
        reason = (
            f"it has {available:,} {unit} and max_epochs {plan.cap:g}. Raise its max_epochs to "
            f"{requested / available:.2f}, {alternative}"
        )
    else:
        reason = (
            "one record more or less overshoots, the records are too large for the amount. Raise "
            "mixture.tolerance or the amount"
        )
    raise DataError(
        f"source {plan.name!r}: {requested:,.0f} {unit} requested, {realised:,} realised "
        f"({deviation:.1%} off, tolerance {tolerance:.1%}): {reason}"
    )
