"""From sequence lengths to packs: full ones whose contents still look like the whole data.

    pack_lengths([5, 3, 4, 2], 8)  →  Packs(positions=[1, 0, 3, 2], offsets=[0, 2, 4])

Best-fit decreasing sorts packs by length and, often, by source. So most sequences are dealt like
cards, long classes of lengths first; a reserve fills the last holes by best fit. Of several
reserves, the best mixed that costs no pack beyond best fit alone is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from posttrain.tokens.packing.fit import Int, Small, Word, best_fit, histogram, sorted_rows
from posttrain.tokens.packing.groups import keep_apart, labels_of, spread

_INT32_MAX = (1 << 31) - 1
# in place of a sequence's pack: not dealt yet, and held back for the end
_FREE = -1
_HELD = -2
_ROUND = 1 << 20  # sequences dealt together at most, unless there are more packs; bounds memory
# one pack in so many may be added to keep labels apart before another dealing is tried
_TOLERATED = 10_000


@dataclass(frozen=True, slots=True)
class Dealing:
    """A way of dealing sequences to packs: which are dealt at random, and which by best fit.

    Args:
        reserve: share of the tokens that is held back at random for best fit at the end.
        limit: longest sequence of the reserve, as a share of the capacity.
        shortest: share of the tokens that is held back too, in the very shortest sequences.
        long: share of the capacity from which on sequences are placed by best fit at the start.
    """

    reserve: float
    limit: float
    shortest: float = 0.0
    long: float = 2.0


# from the best mixed to plain best-fit decreasing; measured in docs/evidence/benchmarks.md
_DEALINGS = (
    Dealing(reserve=0.03, limit=0.03),
    Dealing(reserve=0.06, limit=0.06),
    Dealing(reserve=0.12, limit=0.12),
    Dealing(reserve=0.12, limit=0.25, shortest=0.02),
    Dealing(reserve=0.25, limit=0.25, shortest=0.02),
    Dealing(reserve=0.03, limit=0.03, long=0.33),
    Dealing(reserve=0.25, limit=0.25),
    Dealing(reserve=0.25, limit=1.0, shortest=0.02),
    Dealing(reserve=0.06, limit=0.25, shortest=0.05, long=0.25),
    Dealing(reserve=0.25, limit=1.0, shortest=0.02, long=0.33),
    Dealing(reserve=0.5, limit=0.5),
    Dealing(reserve=0.0, limit=0.0, long=0.0),
)


@dataclass(frozen=True, slots=True, eq=False)
class Packs:
    """Packs as two arrays: pack k holds `positions[offsets[k] : offsets[k + 1]]`, in that order.

    Attributes:
        positions: (n,) indices of sequences.
        offsets: (packs + 1,) offsets into `positions`.
    """

    positions: Small
    offsets: Int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, pack: int) -> Small:
        """Positions of one pack, a view."""
        if not 0 <= pack < len(self):
            raise IndexError(f"pack {pack} of {len(self)}")
        return self.positions[self.offsets[pack] : self.offsets[pack + 1]]

    def __iter__(self) -> Iterator[Small]:
        return (self[k] for k in range(len(self)))

    def fills(self, lengths: npt.NDArray[np.integer]) -> Int:
        """Count the tokens of each pack, (packs,), from the (n,) lengths of all sequences."""
        if not len(self):
            return np.zeros(0, np.int64)
        return np.add.reduceat(lengths[self.positions], self.offsets[:-1], dtype=np.int64)


def pack_lengths(
    lengths: Sequence[int] | npt.NDArray[np.integer],
    capacity: int,
    *,
    seed: int = 0,
    groups: Sequence[int | str] | npt.NDArray[np.integer] | None = None,
) -> Packs:
    """Assign every sequence to one pack of at most `capacity` tokens.

    Args:
        lengths: (n,) tokens of each sequence, 1 … capacity.
        capacity: tokens a pack holds.
        seed: of what shares a pack, and of the order of packs and in packs; 0 … 2**64 - 1.
        groups: one label a sequence; sequences of the same label never share a pack (the turns of
            a conversation, the repeats of a record).

    Returns:
        Packs of indices into `lengths`, every index in exactly one: no more than best-fit
        decreasing needs, unless labels need more. Same input, same packs.

    Raises:
        ValueError: a length is not in 1 … capacity (the index is named), or an argument cannot be
            used.
    """
    sizes = _checked(lengths, capacity)
    if groups is not None and len(groups) != len(sizes):
        raise ValueError(f"{len(sizes)} lengths but {len(groups)} groups")
    if not len(sizes):
        return Packs(np.empty(0, np.int32), np.zeros(1, np.int64))
    random = np.random.PCG64(seed)  # its raw words are the same in every version of numpy
    keys = random.random_raw(len(sizes))
    labels = None if groups is None else labels_of(groups)
    largest_group = 1 if labels is None else spread(keys, labels)
    order = sorted_rows(keys)[0]
    labels_in_order = None
    if labels is not None and largest_group > 1:
        labels_in_order = labels[order]
    pack, packs = _deal_best(
        sizes[order].astype(np.int32), capacity, labels_in_order, least=largest_group
    )
    return _shuffled(pack, packs, order, random)


def _checked(
    lengths: Sequence[int] | npt.NDArray[np.integer], capacity: int
) -> npt.NDArray[np.integer]:
    """Convert lengths to an array. Raises ValueError: one, or the capacity, is out of range."""
    if not 1 <= capacity <= _INT32_MAX:
        raise ValueError(f"capacity must be 1 … {_INT32_MAX}, found {capacity}")
    sizes = np.asarray(lengths)
    if len(sizes) > _INT32_MAX:
        raise ValueError(f"{len(sizes)} sequences; at most {_INT32_MAX} can be packed together")
    if len(sizes) and sizes.dtype.kind not in "iu":
        for index, size in enumerate(lengths):
            if type(size) is not int or not 1 <= size <= capacity:
                raise ValueError(
                    f"lengths[{index}] is {size!r}; it must be an integer 1 … {capacity}"
                )
    wrong = np.flatnonzero((sizes < 1) | (sizes > capacity))
    if len(wrong):
        index = int(wrong[0])
        raise ValueError(f"lengths[{index}] is {sizes[index]}; it must be 1 … {capacity}")
    return sizes


def _deal_best(
    sizes: Small, capacity: int, labels: Word | None, *, least: int
) -> tuple[Small, int]:
    """Deal sequences in the best mixed way that needs no more packs than best fit.

    Args:
        sizes: (n,) lengths in random order.
        capacity: tokens that a pack holds.
        labels: (n,) labels; sequences of the same one are kept apart. None for no labels.
        least: packs that the largest group needs.

    Returns:
        (n,) pack of every sequence, and the number of packs. Where labels need more packs than
        best fit in every way of dealing, the way with the fewest.
    """
    target = max(least, best_fit(*histogram(sizes, capacity), capacity).packs)
    best: tuple[Small, int] | None = None
    for dealing in _DEALINGS:
        pack, packs = deal(sizes, capacity, target, dealing)
        if packs > target:
            continue
        if labels is not None:
            packs = keep_apart(pack, packs, sizes, capacity, labels)
        if best is None or packs < best[1]:
            best = (pack, packs)
        if packs <= target + target // _TOLERATED:
            break
    assert best is not None, "the last dealing is best fit itself"
    return best


def _shuffled(pack: Small, packs: int, order: Int, random: np.random.PCG64) -> Packs:
    """Put packs, without empty ones, and the sequences in each in random order."""
    pack_order = np.argsort(random.random_raw(packs), kind="stable")
    rank = np.empty(packs, np.uint64)
    rank[pack_order] = np.arange(packs, dtype=np.uint64)
    # one sort by pack and then at random: the pack's rank takes the high bits of a random key
    keys = random.random_raw(len(pack))
    bits = np.uint64((packs - 1).bit_length())
    if bits:
        keys >>= bits
        keys |= rank[pack] << (np.uint64(64) - bits)
    counts = np.bincount(pack, minlength=packs)[pack_order]
    offsets = np.concatenate([[0], np.cumsum(counts[counts > 0])])
    return Packs(order[sorted_rows(keys)[0]].astype(np.int32), offsets)


def deal(sizes: Small, capacity: int, packs: int, dealing: Dealing) -> tuple[Small, int]:
    """Deal sequences to packs in one way; more packs are opened when the last do not fit.

    Args:
        sizes: (n,) lengths in random order.
        capacity: tokens that a pack holds.
        packs: number of packs to deal to.
        dealing: the way.

    Returns:
        (n,) pack of every sequence, and the number of packs.
    """
    pack = np.full(len(sizes), _FREE, np.int32)
    room = np.full(packs, capacity, np.int64)
    if dealing.long <= 1:
        long_rows = np.flatnonzero(sizes >= dealing.long * capacity)
        # into new packs, as best fit opens them; the others stay empty for now
        fitted = _fit(pack, long_rows, sizes, capacity, room[:0])
        room = np.concatenate([fitted, room[len(fitted) :]])
    lengths, counts = histogram(sizes, capacity)
    tokens_held = _hold_back(pack, sizes, lengths, counts, capacity, dealing)
    # what stays free in each pack for the reserve, and for the last pack's unavoidable rest
    hole = (len(room) * capacity - int(lengths @ counts) + tokens_held) // len(room)
    # classes of lengths, each up to half as long as the one before: the long fit only at first
    longest = capacity
    while longest:
        _deal_class(pack, sizes, room, hole, longest // 2, longest)
        longest //= 2
    room = _fit(pack, np.flatnonzero(pack < 0), sizes, capacity, room)
    return pack, len(room)


def _hold_back(
    pack: Small, sizes: Small, lengths: Int, counts: Int, capacity: int, dealing: Dealing
) -> int:
    """Mark the reserve in `pack`; returns its number of tokens."""
    tokens_up_to = np.cumsum((lengths * counts)[::-1])  # in sequences of at most each length
    total_tokens = int(tokens_up_to[-1])
    shortest = 0
    if dealing.shortest:
        rank = np.searchsorted(tokens_up_to, dealing.shortest * total_tokens)
        shortest = int(lengths[::-1][rank])
    limit = int(dealing.limit * capacity)
    eligible = (lengths >= shortest) & (lengths <= limit) & (lengths < dealing.long * capacity)
    eligible_count = int(counts[eligible].sum())
    eligible_tokens = int((lengths * counts)[eligible].sum())
    # the order of these factors fixes the rounding, and with it the bytes of the shards
    reserve_count = int(eligible_count * dealing.reserve * total_tokens / max(eligible_tokens, 1))
    reserve_count = min(eligible_count, reserve_count)
    is_held = pack == _FREE
    eligible_rows = np.flatnonzero(is_held & (sizes >= shortest) & (sizes <= limit))
    is_held &= sizes < shortest
    # evenly spaced in a random order: random, and no gap in the circle of groups
    reserved_before = np.arange(len(eligible_rows) + 1) * reserve_count // max(eligible_count, 1)
    is_held[eligible_rows[np.diff(reserved_before) > 0]] = True
    pack[is_held] = _HELD
    return int(sizes[is_held].sum(dtype=np.int64))


def _deal_class(
    pack: Small, sizes: Small, room: Int, hole: int, longer_than: int, longest: int
) -> None:
    """Deal the free sequences of a class of lengths to all packs."""
    rows = np.flatnonzero((sizes > longer_than) & (sizes <= longest) & (pack == _FREE))
    # in rounds, so that intermediate arrays stay small; each round goes once around the circle
    rounds = -(-len(rows) // max(_ROUND, len(room)))
    unfitting = [rows[:0]]
    for first in range(rounds):
        unfitting.append(_deal_round(pack, rows[first::rounds], sizes, room, hole))
    _fill_roomiest(pack, np.concatenate(unfitting), sizes, room)


def _deal_round(pack: Small, rows: Int, sizes: Small, room: Int, hole: int) -> Int:
    """Deal rows in proportion to the room of packs; returns the rows that did not fit."""
    row_sizes = sizes[rows]
    ends = np.concatenate([[0], np.cumsum(row_sizes, dtype=np.int64)])
    shares = np.maximum(room - hole, 0)
    if not shares.any():
        shares = room
    # the stretch of each pack: a sequence belongs to it when its middle lies in it
    borders = _proportional(shares, int(ends[-1]))
    starts = np.searchsorted(ends[:-1] + row_sizes // 2, borders)
    tokens_before = ends[starts[:-1]]
    stops = np.searchsorted(ends, tokens_before + room, side="right") - 1
    stops = np.minimum(stops, starts[1:])
    room -= ends[stops] - tokens_before
    dealt_to = np.repeat(np.arange(len(room), dtype=np.int32), np.diff(starts))
    fits = np.arange(len(rows)) < stops[dealt_to]
    pack[rows[fits]] = dealt_to[fits]
    return rows[~fits]


def _proportional(shares: Int, total: int) -> Int:
    """Borders from 0 to above `total`, (k + 1,), of stretches in proportion to (k,) shares."""
    sums = np.concatenate([[0], np.cumsum(shares)])
    borders = (sums * (total / int(sums[-1]))).astype(np.int64)  # one rounded product each
    borders[-1] = total + 1
    return borders


def _fill_roomiest(pack: Small, rows: Int, sizes: Small, room: Int) -> None:
    """Place the longest rows into the roomiest packs; rows that fit nowhere stay free.

    Each round places at most one row in a pack.
    """
    while len(rows):
        rows = rows[np.argsort(-sizes[rows], kind="stable")]
        roomiest = np.argsort(-room, kind="stable")[: len(rows)]
        candidates = rows[: len(roomiest)]
        fits = sizes[candidates] <= room[roomiest]
        if not fits.any():
            return
        pack[candidates[fits]] = roomiest[fits]
        room[roomiest[fits]] -= sizes[candidates[fits]]
        rows = np.concatenate([candidates[~fits], rows[len(roomiest) :]])


def _fit(pack: Small, rows: Int, sizes: Small, capacity: int, room: Int) -> Int:
    """Place rows by best fit decreasing into packs with this room; returns the room of all packs.

    Args:
        pack: (n,) pack of every sequence; changed.
        rows: sequences to place.
        sizes: (n,) tokens of every sequence.
        capacity: tokens that a pack holds.
        room: (packs,) tokens that still fit into each pack; new packs are appended.
    """
    if not len(rows):
        return room
    row_sizes = sizes[rows]
    by_room = np.argsort(room, kind="stable")
    fit = best_fit(*histogram(row_sizes, capacity), capacity, room[by_room])
    pack_of_rank = np.concatenate([by_room, np.arange(len(room), fit.packs)])
    room = np.concatenate([room, np.full(fit.packs - len(room), capacity, np.int64)])
    longest_first = sorted_rows((capacity - row_sizes).astype(np.uint64) << np.uint64(32))[0]
    chosen_packs = pack_of_rank[fit.packs_of(0, len(rows))]
    sorted_by_size = rows[longest_first]
    pack[sorted_by_size] = chosen_packs
    np.subtract.at(room, chosen_packs, sizes[sorted_by_size])
    return room
