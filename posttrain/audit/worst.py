"""The worst sequences of a data set, a handful a source and kind, kept short enough to read.

    worst = Worst(offences(batch…))
    worst.rows(decode)  →  {"source": "maths", "kind": "no_end", "tokens": 812, "trained": 40,
                            "about": "…", "segments": [["", False, "2+2?"], ["", True, "4"], …]}

Which ones are shown depends on their figures and contents, never on the order they come in.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from posttrain.audit.limits import KIND_TITLES, REPEATED
from posttrain.tokens.supervision import Flag, Ids, Mask

SHOWN = 3  # of each kind and source
_WINDOW = 160  # tokens shown of the beginning, around the first trained token, of the end
Decode = Callable[[Sequence[int]], str]
Fetch = Callable[[int], tuple[Ids, Mask, str]]  # a place → ids, mask, what to call it

# kind → (the flags that a sequence must have, those that it must not have)
KINDS: dict[str, tuple[Flag, Flag]] = {
    "nothing_trained": (Flag(0), Flag.TRAINED),
    "no_end": (Flag.TRAINED, Flag.END_TRAINED | Flag.END_MASKED),
    "end_masked": (Flag.END_MASKED, Flag(0)),
    "empty_answer": (Flag.EMPTY_ANSWER, Flag(0)),
    "think_header": (Flag.THINK_HEADER, Flag(0)),
    "turn_tokens": (Flag.TURN_TOKEN, Flag(0)),
    "prompt_trained": (Flag.PROMPT, Flag(0)),
    "everything_trained": (Flag.EVERYTHING, Flag(0)),
    "empty_think": (Flag.EMPTY_THINK, Flag(0)),
    "least_trained": (Flag.TRAINED, Flag(0)),
    "longest": (Flag(0), Flag(0)),
}
assert [REPEATED, *KINDS] == list(KIND_TITLES)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Parts of a sequence: (first token's position, ids, mask) of each window."""

    about: str
    tokens: int
    trained: int
    windows: tuple[tuple[int, Ids, Mask], ...]

    def segments(self, decode: Decode) -> list[list[Any]]:
        """[role, trained, text] as in samples.jsonl; a role `gap` counts what is left out."""
        found: list[list[Any]] = []
        position = 0
        for start, ids, mask in self.windows:
            if start > position:
                found.append(["gap", False, f" … {start - position:,} tokens … "])
            cuts = np.flatnonzero(np.diff(mask)) + 1
            for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True):
                found.append(["", bool(mask[a]), decode(ids[a:b].tolist())])
            position = start + len(ids)
        return found


def excerpt(ids: Ids, mask: Mask, about: str) -> Excerpt:
    """The beginning, the first trained token's neighbourhood, and the end of a sequence."""
    places = np.flatnonzero(mask)
    first = int(places[0]) if len(places) else 0
    shown = np.zeros(len(ids), np.bool_)
    shown[:_WINDOW] = True
    shown[max(first - _WINDOW // 2, 0) : first + _WINDOW] = True
    shown[max(len(ids) - _WINDOW, 0) :] = True
    edges = np.flatnonzero(np.diff(np.concatenate([[0], shown.astype(np.int8), [0]])))
    windows = tuple(
        (int(a), ids[a:b].copy(), mask[a:b].copy())
        for a, b in zip(edges[::2], edges[1::2], strict=True)
    )
    return Excerpt(about, len(ids), int(mask.sum()), windows)


@dataclass
class Worst:
    """The worst seen so far: for each (source, kind) a heap with the least bad one on top."""

    heaps: dict[tuple[str, str], list[tuple[float, int, Excerpt]]] = field(
        default_factory=dict[tuple[str, str], list[tuple[float, int, Excerpt]]]
    )
    repeated: dict[str, list[tuple[int, Excerpt]]] = field(
        default_factory=dict[str, list[tuple[int, Excerpt]]]
    )

    def offer(
        self,
        source: str,
        lengths: npt.NDArray[np.integer],
        trained: npt.NDArray[np.integer],
        flags: npt.NDArray[np.uint16],
        keys: npt.NDArray[np.uint64],
        fetch: Fetch,
    ) -> None:
        """Look at some sequences of one source, all (m,); `fetch` takes a position among them."""
        for kind, (needed, refused) in KINDS.items():
            fits = ((flags & needed) == needed) & ((flags & refused) == 0)
            at = np.flatnonzero(fits)
            if not len(at):
                continue
            at = at[np.unique(keys[at], return_index=True)[1]]  # the first of exact copies
            badness = _badness(kind, lengths[at], trained[at], keys[at])
            heap = self.heaps.setdefault((source, kind), [])
            for k in np.lexsort((keys[at], -badness))[:SHOWN].tolist():
                item = (float(badness[k]), -int(keys[at[k]]))
                self._admit(heap, item, lambda place=int(at[k]): excerpt(*fetch(place)))

    def _admit(
        self,
        heap: list[tuple[float, int, Excerpt]],
        item: tuple[float, int],
        make: Callable[[], Excerpt],
    ) -> None:
        if any(item[1] == key for _, key, _ in heap):
            return
        if len(heap) < SHOWN:
            heapq.heappush(heap, (*item, make()))
        elif item > heap[0][:2]:
            heapq.heapreplace(heap, (*item, make()))

    def add_repeated(self, source: str, number: int, shown: Excerpt) -> None:
        """One of the sequences that a source holds most often."""
        self.repeated.setdefault(source, []).append((number, shown))

    def rows(self, decode: Decode) -> list[dict[str, Any]]:
        """All of them as rows to write: by source in the order met, by kind, the worst first."""
        sources = dict.fromkeys([*(source for source, _ in self.heaps), *self.repeated])
        found: list[dict[str, Any]] = []
        for source in sources:
            for number, shown in self.repeated.get(source, ()):
                found.append(_row(source, REPEATED, shown, decode, number))
            for kind in KINDS:
                heap = sorted(self.heaps.get((source, kind), ()), key=lambda i: i[:2], reverse=True)
                found += [_row(source, kind, shown, decode) for _, _, shown in heap]
        return found


def _badness(
    kind: str,
    lengths: npt.NDArray[np.integer],
    trained: npt.NDArray[np.integer],
    keys: npt.NDArray[np.uint64],
) -> npt.NDArray[np.float64]:
    """Larger is worse. Where nothing ranks them, a few are drawn by their contents."""
    if kind == "longest":
        return lengths.astype(np.float64)
    if kind == "least_trained":
        return -trained / np.maximum(lengths, 1)
    return (keys >> np.uint64(11)).astype(np.float64)


def _row(
    source: str, kind: str, shown: Excerpt, decode: Decode, times: int | None = None
) -> dict[str, Any]:
    return {
        "source": source,
        "kind": kind,
        "about": shown.about,
        "times": times,
        "tokens": shown.tokens,
        "trained": shown.trained,
        "segments": shown.segments(decode),
    }
