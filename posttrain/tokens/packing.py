"""Sequence lengths → packs: full packs whose contents still look like the whole data.

    pack_lengths([5, 3, 4, 2], 8)  →  [[1, 0], [3, 2]]          (fills of 8 and 6)

Best-fit decreasing fills packs almost perfectly, and sorts them: one pack gets two long sequences,
another two hundred short ones of the same length and, often, of the same source. A training batch
then no longer resembles the mixture. So most sequences of a window are dealt in random order into
the tightest pack that holds them; the shortest few, which fill holes best, and a random rest come
last, in decreasing order. How much is dealt at random is decided window by window: as much as costs
no pack beyond plain best-fit decreasing (Ding et al. 2024, arXiv 2404.10830, use that order for
whole corpora).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

WINDOW = 65_536
# a pack that already holds the group is skipped; after this many a new pack is opened, so that
# hostile groups cannot make the search quadratic
_TRIES = 64


class _Dealing(NamedTuple):
    """An order in which to place a window's sequences.

    First the `long` ones (from this share of the capacity on), decreasing; then others at random;
    last, decreasing, the shortest that hold the share `short` of the others' tokens, and the share
    `rest` of the remaining others.
    """

    long: float
    short: float
    rest: float


# from the best mixed to plain best-fit decreasing; measured in docs/data.md
_DEALINGS = (
    _Dealing(long=1.0, short=0.0, rest=0.1),
    _Dealing(long=0.5, short=0.0, rest=0.1),
    _Dealing(long=1.0, short=0.02, rest=0.1),
    _Dealing(long=1.0, short=0.05, rest=0.1),
    _Dealing(long=0.5, short=0.1, rest=0.1),
    _Dealing(long=1.0, short=0.2, rest=0.1),
    _Dealing(long=0.25, short=0.1, rest=0.1),
    _Dealing(long=0.5, short=0.2, rest=0.5),
    _Dealing(long=0.25, short=0.1, rest=0.5),
    _Dealing(long=0.25, short=0.0, rest=0.85),
)
_PLAIN = _Dealing(long=0.0, short=0.0, rest=0.0)


def pack_lengths(
    lengths: Sequence[int],
    capacity: int,
    *,
    seed: int = 0,
    window: int = WINDOW,
    groups: Sequence[int | str] | None = None,
) -> list[list[int]]:
    """Assign every sequence to one pack of at most `capacity` tokens.

    Args:
        lengths: tokens of each sequence, 1 … capacity.
        capacity: tokens a pack holds.
        seed: of the shuffles (which sequences share a window, a pack, and the order of both).
        window: sequences considered together; memory and the last, part-filled pack go per window.
        groups: one label a sequence; sequences of the same label never share a pack (the turns of
            a conversation, the repeats of a record).

    Returns:
        Packs of indices into `lengths`; every index is in exactly one. Same input, same packs. In
        each window there are no more packs than best-fit decreasing needs for it.

    Raises:
        ValueError: a length is not in 1 … capacity (the index is named), or an argument cannot be
            used.
    """
    sizes = _checked(lengths, capacity, window, groups)
    if not sizes:
        return []
    rng = np.random.default_rng(seed)
    order: list[int] = rng.permutation(len(sizes)).tolist()
    count = -(-len(sizes) // window)
    bounds = [len(sizes) * k // count for k in range(count + 1)]  # windows of nearly equal size
    packs: list[list[int]] = []
    for start, stop in pairwise(bounds):
        found = _pack_window(order[start:stop], sizes, capacity, groups)
        for k in rng.permutation(len(found)).tolist():
            packs.append([found[k][i] for i in rng.permutation(len(found[k])).tolist()])
    return packs


def _checked(
    lengths: Sequence[int],
    capacity: int,
    window: int,
    groups: Sequence[int | str] | None,
) -> list[int]:
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1, found {capacity}")
    if window < 1:
        raise ValueError(f"window must be at least 1, found {window}")
    if groups is not None and len(groups) != len(lengths):
        raise ValueError(f"{len(lengths)} lengths but {len(groups)} groups")
    sizes = np.asarray(lengths).tolist()
    for index, size in enumerate(sizes):
        if type(size) is not int or not 1 <= size <= capacity:
            raise ValueError(f"lengths[{index}] is {size!r}; it must be an integer 1 … {capacity}")
    return sizes


def _pack_window(
    items: list[int], sizes: list[int], capacity: int, groups: Sequence[int | str] | None
) -> list[list[int]]:
    """Packs of one window; `items` come in random order, which settles every tie."""
    fewest = -(-sum(sizes[i] for i in items) // capacity)
    plain: list[list[int]] | None = None
    for dealing in _DEALINGS:
        packs = _best_fit(_dealt(items, sizes, capacity, dealing), sizes, capacity, groups)
        if len(packs) == fewest:
            return packs
        if plain is None:
            plain = _best_fit(_dealt(items, sizes, capacity, _PLAIN), sizes, capacity, groups)
        if len(packs) <= len(plain):
            return packs
    assert plain is not None
    return plain


def _dealt(items: list[int], sizes: list[int], capacity: int, dealing: _Dealing) -> Iterable[int]:
    least = dealing.long * capacity
    long = sorted((i for i in items if sizes[i] >= least), key=sizes.__getitem__, reverse=True)
    others = [i for i in items if sizes[i] < least]
    shortest = _shortest(others, sizes, dealing.short)
    middle = [i for i in others if i not in shortest]
    kept = len(middle) - int(len(middle) * dealing.rest)
    last = sorted([*middle[kept:], *shortest], key=sizes.__getitem__, reverse=True)
    return chain(long, middle[:kept], last)


def _shortest(items: list[int], sizes: list[int], share: float) -> set[int]:
    """The shortest items that together hold this share of the tokens."""
    left = share * sum(sizes[i] for i in items)
    found: set[int] = set()
    if left:
        for item in sorted(items, key=sizes.__getitem__):
            if left <= 0:
                break
            left -= sizes[item]
            found.add(item)
    return found


def _best_fit(
    items: Iterable[int],
    sizes: list[int],
    capacity: int,
    groups: Sequence[int | str] | None,
) -> list[list[int]]:
    """Put each item into the fullest pack that has room; O(log) a search by bisection."""
    packs: list[list[int]] = []
    labels: list[set[int | str]] = []
    rooms: list[int] = []  # distinct free rooms, ascending
    with_room: dict[int, list[int]] = {}  # free room → packs that have it
    for item in items:
        size = sizes[item]
        found = _tightest(size, rooms, with_room, labels, None if groups is None else groups[item])
        if found is None:
            pack, room = len(packs), capacity
            packs.append([])
            labels.append(set())
        else:
            room, position = found
            stack = with_room[room]
            pack = stack.pop(position)
            if not stack:
                del with_room[room]
                del rooms[bisect_left(rooms, room)]
        packs[pack].append(item)
        if groups is not None:
            labels[pack].add(groups[item])
        room -= size
        if room in with_room:
            with_room[room].append(pack)
        elif room:
            with_room[room] = [pack]
            insort(rooms, room)
    return packs


def _tightest(
    size: int,
    rooms: list[int],
    with_room: dict[int, list[int]],
    labels: list[set[int | str]],
    label: int | str | None,
) -> tuple[int, int] | None:
    """(free room, position in its stack) of the pack to use, `None` to open a new one."""
    at = bisect_left(rooms, size)
    if label is None:
        return (rooms[at], -1) if at < len(rooms) else None
    tries = 0
    for room in rooms[at : at + _TRIES]:  # each holds at least one pack
        stack = with_room[room]
        for position in range(len(stack) - 1, -1, -1):
            if label not in labels[stack[position]]:
                return room, position
            tries += 1
            if tries == _TRIES:
                return None
    return None
