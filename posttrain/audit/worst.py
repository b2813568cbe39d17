"""The worst sequences of a data set, a handful a source and kind, kept short enough to read.

Which ones are shown depends on their figures and contents, never on the order they come in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from posttrain.audit.limits import REPEATED
from posttrain.tokens.supervision import Flag, Ids, Mask

SHOWN = 3  # of each kind and source
_WINDOW = 160  # tokens shown of the beginning, around the first trained token, of the end
Decode = Callable[[Sequence[int]], str]
Shown = tuple[Ids, Mask, str]  # ids, mask, what to call it
Fetch = Callable[[int], Shown]

# figure → the flag of the sequences that it counts
COUNTED = {
    "end_trained": Flag.END_TRAINED,
    "end_masked": Flag.END_MASKED,
    "empty_answer": Flag.EMPTY_ANSWER,
    "think_header": Flag.THINK_HEADER,
    "turn_tokens": Flag.TURN_TOKEN,
    "prompt_trained": Flag.PROMPT,
    "everything_trained": Flag.EVERYTHING,
    "empty_think": Flag.EMPTY_THINK,
    "cut_trace": Flag.CUT_TRACE,
    "clipped": Flag.CLIPPED,
}
_NO_FAULT = ("end_trained", "cut_trace", "clipped")
# kind → (the flags that a sequence must have, those that it must not have)
KINDS: dict[str, tuple[Flag, Flag]] = {
    "nothing_trained": (Flag(0), Flag.TRAINED),
    "no_end": (Flag.TRAINED, Flag.END_TRAINED | Flag.END_MASKED),
    **{name: (flag, Flag(0)) for name, flag in COUNTED.items() if name not in _NO_FAULT},
    "least_trained": (Flag.TRAINED, Flag(0)),
    "longest": (Flag(0), Flag(0)),
}


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
    """The worst seen so far by (source, kind), the worst first, each after its badness and key."""

    best: dict[tuple[str, str], list[tuple[float, int, Excerpt]]] = field(
        default_factory=dict[tuple[str, str], list[tuple[float, int, Excerpt]]]
    )
    repeated: dict[str, list[tuple[int, Excerpt]]] = field(
        default_factory=dict[str, list[tuple[int, Excerpt]]]
    )

    def offer(self, source: str, rows: npt.NDArray[np.void], fetch: Fetch) -> None:
        """Look at some sequences of one source by length, trained, flags and key, all (m,)."""
        for kind, (needed, refused) in KINDS.items():
            fits = ((rows["flags"] & needed) == needed) & ((rows["flags"] & refused) == 0)
            at = np.flatnonzero(fits)
            at = at[np.unique(rows["key"][at], return_index=True)[1]]  # the first of exact copies
            badness, keys = _badness(kind, rows[at]), rows["key"][at]
            for k in np.lexsort((keys, -badness))[:SHOWN].tolist():
                item = (float(badness[k]), -int(keys[k]))
                best = self.best.setdefault((source, kind), [])
                if any(item[1] == key for _, key, _ in best):
                    continue
                if len(best) < SHOWN or item > best[-1][:2]:
                    best.append((*item, excerpt(*fetch(int(at[k])))))
                    best.sort(key=lambda one: one[:2], reverse=True)
                    del best[SHOWN:]

    def add_repeated(self, source: str, number: int, shown: Excerpt) -> None:
        """One of the sequences that a source holds most often."""
        self.repeated.setdefault(source, []).append((number, shown))

    def rows(self, decode: Decode) -> list[dict[str, Any]]:
        """All of them as rows to write: by source in the order met, by kind, the worst first."""
        sources = dict.fromkeys([*(source for source, _ in self.best), *self.repeated])
        found: list[dict[str, Any]] = []
        for source in sources:
            shown = [(REPEATED, number, one) for number, one in self.repeated.get(source, ())]
            for kind in KINDS:
                shown += [(kind, None, one) for *_, one in self.best.get((source, kind), ())]
            found += [
                {
                    "source": source,
                    "kind": kind,
                    "about": one.about,
                    "times": times,
                    "tokens": one.tokens,
                    "trained": one.trained,
                    "segments": one.segments(decode),
                }
                for kind, times, one in shown
            ]
        return found


def _badness(kind: str, rows: npt.NDArray[np.void]) -> npt.NDArray[np.float64]:
    """Larger is worse. Where nothing ranks them, a few are taken by their contents."""
    if kind == "longest":
        return rows["length"].astype(np.float64)
    if kind == "least_trained":
        return -rows["trained"].astype(np.int64) / np.maximum(rows["length"].astype(np.int64), 1)
    return (rows["key"] >> np.uint64(11)).astype(np.float64)
