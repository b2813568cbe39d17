"""Sequence lengths → packs: full packs whose contents still look like the whole data.

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

_MOST = (1 << 31) - 1
# in the place of a sequence's pack
_FREE, _HELD = -1, -2
_ROUND = 1 << 20  # sequences dealt together at most, unless there are more packs
# one pack in so many may be added to keep labels apart before another dealing is tried
_TOLERATED = 10_000


@dataclass(frozen=True, slots=True)
class Dealing:
    """How much is left to chance. All are shares: of the tokens, or of the capacity.

    Args:
        reserve: tokens held back for best fit at the end, drawn at random …
        limit: … among sequences no longer than this share of the capacity.
        shortest: tokens of the very shortest that are held back too.
        long: sequences from this share of the capacity on are placed by best fit at the start.
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
    """Packs as two arrays: pack k holds `positions[offsets[k] : offsets[k + 1]]`, in that order."""

    positions: Small
    offsets: Int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, pack: int) -> Small:
        """The positions of one pack, a view."""
        if not 0 <= pack < len(self):
            raise IndexError(f"pack {pack} of {len(self)}")
        return self.positions[self.offsets[pack] : self.offsets[pack + 1]]

    def __iter__(self) -> Iterator[Small]:
        return (self[k] for k in range(len(self)))

    def fills(self, lengths: npt.NDArray[np.integer]) -> Int:
        """(packs,) tokens in each, given (n,) tokens of every sequence."""
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
    given = _checked(lengths, capacity)
    if groups is not None and len(groups) != len(given):
        raise ValueError(f"{len(given)} lengths but {len(groups)} groups")
    if not len(given):
        return Packs(np.empty(0, np.int32), np.zeros(1, np.int64))
    random = np.random.PCG64(seed)  # its raw words are the same in every version of numpy
    keys = random.random_raw(len(given))
    labels = None if groups is None else labels_of(groups)
    largest = 1 if labels is None else spread(keys, labels)
    order = sorted_rows(keys)[0]
    apart = labels[order] if labels is not None and largest > 1 else None
    pack, packs = _dealt(given[order].astype(np.int32), capacity, largest, apart)
    return _shuffled(pack, packs, order, random)


def _checked(
    lengths: Sequence[int] | npt.NDArray[np.integer], capacity: int
) -> npt.NDArray[np.integer]:
    if not 1 <= capacity <= _MOST:
        raise ValueError(f"capacity must be 1 … {_MOST}, found {capacity}")
    sizes = np.asarray(lengths)
    if len(sizes) > _MOST:
        raise ValueError(f"{len(sizes)} sequences; at most {_MOST} can be packed together")
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


def _dealt(sizes: Small, capacity: int, least: int, labels: Word | None) -> tuple[Small, int]:
    """Packs by the best mixed dealing that needs no more than best fit, or by that with fewest."""
    target = max(least, best_fit(*histogram(sizes, capacity), capacity).packs)
    found: tuple[Small, int] | None = None
    for how in _DEALINGS:
        pack, packs = deal(sizes, capacity, target, how)
        if packs > target:
            continue
        if labels is not None:
            packs = keep_apart(pack, packs, sizes, capacity, labels)
        if found is None or packs < found[1]:
            found = pack, packs
        if packs <= target + target // _TOLERATED:
            break
    assert found is not None, "the last dealing is best fit itself"
    return found


def _shuffled(pack: Small, packs: int, order: Int, random: np.random.PCG64) -> Packs:
    """Packs in random order, without those that stayed empty, each in random order."""
    place = np.argsort(random.random_raw(packs), kind="stable")
    rank = np.empty(packs, np.uint64)
    rank[place] = np.arange(packs, dtype=np.uint64)
    keys = random.random_raw(len(pack))
    bits = np.uint64((packs - 1).bit_length())
    if bits:
        keys >>= bits
        keys |= rank[pack] << (np.uint64(64) - bits)
    counts = np.bincount(pack, minlength=packs)[place]
    offsets = np.concatenate([[0], np.cumsum(counts[counts > 0])])
    return Packs(order[sorted_rows(keys)[0]].astype(np.int32), offsets)


def deal(sizes: Small, capacity: int, packs: int, how: Dealing) -> tuple[Small, int]:
    """(n,) packs of sequences of (n,) `sizes` in random order, and how many packs there are.

    They are dealt to `packs`; more are opened when the last do not fit.
    """
    pack = np.full(len(sizes), _FREE, np.int32)
    room = np.full(packs, capacity, np.int64)
    if how.long <= 1:
        long = np.flatnonzero(sizes >= how.long * capacity)
        # into new packs, as best fit opens them; the others stay empty for now
        fitted = _fit(pack, long, sizes, capacity, room[:0])
        room = np.concatenate([fitted, room[len(fitted) :]])
    lengths, counts = histogram(sizes, capacity)
    held = _hold_back(pack, sizes, lengths, counts, capacity, how)
    # what stays free in each pack for the reserve, and for the last pack's unavoidable rest
    hole = (len(room) * capacity - int(lengths @ counts) + held) // len(room)
    top = capacity
    while top:
        _deal_class(pack, sizes, room, hole, top // 2, top)
        top //= 2
    room = _fit(pack, np.flatnonzero(pack < 0), sizes, capacity, room)
    return pack, len(room)


def _hold_back(
    pack: Small, sizes: Small, lengths: Int, counts: Int, capacity: int, how: Dealing
) -> int:
    """Mark the reserve in `pack`; returns its tokens."""
    tokens = np.cumsum((lengths * counts)[::-1])
    shortest = 0
    if how.shortest:
        shortest = int(lengths[::-1][np.searchsorted(tokens, how.shortest * int(tokens[-1]))])
    limit = int(how.limit * capacity)
    small = (lengths >= shortest) & (lengths <= limit) & (lengths < how.long * capacity)
    among = int(counts[small].sum())
    have = int((lengths * counts)[small].sum())
    wanted = min(among, int(among * how.reserve * int(tokens[-1]) / max(have, 1)))
    held = pack == _FREE
    drawn = np.flatnonzero(held & (sizes >= shortest) & (sizes <= limit))
    held &= sizes < shortest
    # evenly spaced in a random order: random, and no gap in the circle of groups
    place = np.arange(len(drawn) + 1) * wanted // max(among, 1)
    held[drawn[np.diff(place) > 0]] = True
    pack[held] = _HELD
    return int(sizes[held].sum(dtype=np.int64))


def _deal_class(pack: Small, sizes: Small, room: Int, hole: int, above: int, upto: int) -> None:
    """Deal the free sequences longer than `above`, up to `upto`, to all packs."""
    rows = np.flatnonzero((sizes > above) & (sizes <= upto) & (pack == _FREE))
    # in rounds, so that intermediate arrays stay small; each round goes once around the circle
    rounds = -(-len(rows) // max(_ROUND, len(room)))
    moved = [rows[:0]]
    for first in range(rounds):
        moved.append(_deal_round(pack, rows[first::rounds], sizes, room, hole))
    _to_the_roomiest(pack, np.concatenate(moved), sizes, room)


def _deal_round(pack: Small, rows: Int, sizes: Small, room: Int, hole: int) -> Int:
    """Deal in proportion to the room packs have; returns what did not fit."""
    own = sizes[rows]
    ends = np.concatenate([[0], np.cumsum(own, dtype=np.int64)])
    wanted = np.maximum(room - hole, 0)
    if not wanted.any():
        wanted = room
    # the stretch of each pack: a sequence belongs to it when its middle lies in it
    starts = np.searchsorted(ends[:-1] + own // 2, _proportional(wanted, int(ends[-1])))
    before = ends[starts[:-1]]
    stops = np.searchsorted(ends, before + room, side="right") - 1
    stops = np.minimum(stops, starts[1:])
    room -= ends[stops] - before
    owner = np.repeat(np.arange(len(room), dtype=np.int32), np.diff(starts))
    fits = np.arange(len(rows)) < stops[owner]
    pack[rows[fits]] = owner[fits]
    return rows[~fits]


def _proportional(shares: Int, total: int) -> Int:
    """(k + 1,) borders from 0 to above `total` with stretches in proportion to (k,) shares."""
    sums = np.concatenate([[0], np.cumsum(shares)])
    borders = (sums * (total / int(sums[-1]))).astype(np.int64)  # one rounded product each
    borders[-1] = total + 1
    return borders


def _to_the_roomiest(pack: Small, rows: Int, sizes: Small, room: Int) -> None:
    """Place, one a pack and round, the longest in the roomiest; what fits nowhere stays free."""
    while len(rows):
        rows = rows[np.argsort(-sizes[rows], kind="stable")]
        roomiest = np.argsort(-room, kind="stable")[: len(rows)]
        first = rows[: len(roomiest)]
        fits = sizes[first] <= room[roomiest]
        if not fits.any():
            return
        pack[first[fits]] = roomiest[fits]
        room[roomiest[fits]] -= sizes[first[fits]]
        rows = np.concatenate([first[~fits], rows[len(roomiest) :]])


def _fit(pack: Small, rows: Int, sizes: Small, capacity: int, room: Int) -> Int:
    """Place rows by best fit decreasing into packs with this room; returns all packs' room."""
    if not len(rows):
        return room
    own = sizes[rows]
    by_room = np.argsort(room, kind="stable")
    fit = best_fit(*histogram(own, capacity), capacity, room[by_room])
    names = np.concatenate([by_room, np.arange(len(room), fit.packs)])
    room = np.concatenate([room, np.full(fit.packs - len(room), capacity, np.int64)])
    longest_first = sorted_rows((capacity - own).astype(np.uint64) << np.uint64(32))[0]
    found = names[fit.packs_of(0, len(rows))]
    placed = rows[longest_first]
    pack[placed] = found
    np.subtract.at(room, found, sizes[placed])
    return room
