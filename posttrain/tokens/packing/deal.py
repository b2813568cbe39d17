"""Dealing: most sequences go to random packs, a few fill what is left, no pack is wasted.

    deal(sizes, 8192, 120, Dealing(reserve=0.03, limit=0.03))  →  (pack of every sequence, 120)

Sequences are dealt like cards, long ones first: each class of lengths (halving from the capacity
down) is laid out in its given, random order and cut into as many stretches as there are packs, each
as long as the room its pack has for it. What ends up too much in a pack moves to the roomiest. A
reserve is held back for the last holes and placed by best fit decreasing. A pack so gets its share
of every length, and the shorter the sequences, the more evenly the packs are filled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posttrain.tokens.packing.fit import Int, Small, best_fit, histogram, sorted_rows

# in the place of a sequence's pack
_FREE, _HELD = -1, -2
_ROUND = 1 << 20  # sequences dealt together at most, unless there are more packs


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


def deal(sizes: Small, capacity: int, packs: int, how: Dealing) -> tuple[Small, int]:
    """Give every sequence a pack.

    Args:
        sizes: (n,) lengths in random order, 1 … capacity.
        packs: as many as the sequences are dealt to. Opened are more when the last do not fit.

    Returns:
        (n,) packs, and how many there are.
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
