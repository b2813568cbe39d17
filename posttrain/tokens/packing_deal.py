"""Dealing: most sequences go to random packs, a few fill what is left, no pack is wasted.

    deal(sizes, capacity=8192, packs=120, how=Dealing(reserve=0.03, limit=0.03))
    →  (pack of every sequence, 120)

Sequences are dealt like cards, long ones first: each class of lengths (halving from the capacity
down) is laid out in its given, random order and cut into as many stretches as there are packs, each
as long as the room its pack has for it. What ends up too much in a pack moves to the roomiest. A
reserve is held back for the last holes and placed by best fit decreasing. A pack so gets its share
of every length, and the shorter the sequences, the more evenly the packs are filled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from posttrain.tokens.packing_fit import Int, best_fit, histogram

Small = npt.NDArray[np.int32]
_NOWHERE = -1


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
    pack = np.full(len(sizes), _NOWHERE, np.int32)
    room = np.full(packs, capacity, np.int64)
    long = np.flatnonzero(sizes >= how.long * capacity)
    if len(long):
        room = _fit(pack, long, sizes, capacity, np.empty(0, np.int64), at_least=packs)
    held = _held_back(sizes, capacity, how)
    held[long] = False
    # what stays free in each pack for the reserve, and for the last pack's unavoidable rest
    hole = (int(room.sum()) - _total(sizes, ~held) + _total(sizes, pack != _NOWHERE)) // len(room)
    top = capacity
    while top:
        low = top // 2
        dealt = np.flatnonzero((sizes <= top) & (sizes > low) & (pack == _NOWHERE) & ~held)
        if len(dealt):
            _deal_class(pack, dealt, sizes, room, hole)
        top = low
    left = np.flatnonzero(pack == _NOWHERE)
    room = _fit(pack, left, sizes, capacity, room, at_least=packs)
    return pack, len(room)


def _total(sizes: Small, where: npt.NDArray[np.bool_]) -> int:
    return int(np.sum(sizes, where=where, dtype=np.int64))


def _held_back(sizes: Small, capacity: int, how: Dealing) -> npt.NDArray[np.bool_]:
    """Which sequences form the reserve."""
    held = np.zeros(len(sizes), np.bool_)
    total = int(sizes.sum(dtype=np.int64))
    limit = int(min(how.limit, 1.0) * capacity)
    if how.shortest:
        lengths, counts = histogram(sizes, capacity)
        tokens = np.cumsum((lengths * counts)[::-1])
        last = int(np.searchsorted(tokens, how.shortest * total))
        held |= sizes < lengths[::-1][last]
    small = np.flatnonzero((sizes <= limit) & ~held)
    have = int(sizes[small].sum(dtype=np.int64))
    wanted = min(len(small), int(len(small) * how.reserve * total / max(have, 1)))
    # evenly spaced in a random order: a random choice that leaves no gap in the circle of groups
    held[small[np.arange(wanted) * len(small) // max(wanted, 1)]] = True
    return held


def _deal_class(pack: Small, dealt: Int, sizes: Small, room: Int, hole: int) -> None:
    """Deal sequences of similar length over all packs, in proportion to the room they have."""
    ends = np.concatenate([[0], np.cumsum(sizes[dealt], dtype=np.int64)])
    wanted = np.maximum(room - hole, 0)
    if not wanted.any():
        wanted = room
    # the stretch of each pack: a sequence belongs to it when its middle lies in it
    borders = _proportional(wanted, int(ends[-1]))
    middles = ends[:-1] + sizes[dealt] // 2
    starts = np.searchsorted(middles, borders)
    stops = np.searchsorted(ends, ends[starts[:-1]] + room, side="right") - 1
    stops = np.minimum(stops, starts[1:])
    room -= ends[stops] - ends[starts[:-1]]
    owner = np.repeat(np.arange(len(room), dtype=np.int32), np.diff(starts))
    fits = np.arange(len(dealt)) < stops[owner]
    pack[dealt[fits]] = owner[fits]
    _to_the_roomiest(pack, dealt[~fits], sizes, room)


def _proportional(shares: Int, total: int) -> Int:
    """(k + 1,) borders from 0 to above `total` with stretches in proportion to (k,) shares."""
    sums = np.concatenate([[0], np.cumsum(shares)])
    borders = (sums * (total / int(sums[-1]))).astype(np.int64)  # one rounded product each
    borders[-1] = total + 1
    return borders


def _to_the_roomiest(pack: Small, moved: Int, sizes: Small, room: Int) -> None:
    """Place, one a pack and round, the longest in the roomiest; what fits nowhere stays."""
    while len(moved):
        moved = moved[np.argsort(-sizes[moved], kind="stable")]
        roomiest = np.argsort(-room, kind="stable")[: len(moved)]
        first = moved[: len(roomiest)]
        fits = sizes[first] <= room[roomiest]
        if not fits.any():
            return
        pack[first[fits]] = roomiest[fits]
        room[roomiest[fits]] -= sizes[first[fits]]
        moved = np.concatenate([first[~fits], moved[len(roomiest) :]])


def _fit(pack: Small, rows: Int, sizes: Small, capacity: int, room: Int, *, at_least: int) -> Int:
    """Place rows by best fit decreasing into packs with this room; returns all packs' room."""
    by_room = np.argsort(room, kind="stable")
    chosen = sizes[rows]
    fit = best_fit(*histogram(chosen, capacity), capacity, room[by_room])
    packs = max(fit.packs, at_least)
    names = np.concatenate([by_room, np.arange(len(room), packs)])
    longest_first = np.argsort(-chosen, kind="stable")
    found = names[fit.expanded()]
    pack[rows[longest_first]] = found
    after = np.concatenate([room, np.full(packs - len(room), capacity, np.int64)])
    np.subtract.at(after, found, chosen[longest_first])
    return after
