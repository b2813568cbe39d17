"""The worst sequences of a data set, a handful a source and kind, kept short enough to read.

    worst = Worst()
    worst.offer("maths", rows, fetch)
    worst.rows(decode)  →  {"source": "maths", "kind": "no_end", "tokens": 812, "trained": 40,
                            "about": "…", "segments": [["", False, "2+2?"], ["", True, "4"], …]}

Which ones are shown depends on their figures and contents, never on the order they come in.
"""

from __future__ import annotations

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
Shown = tuple[Ids, Mask, str]  # ids, mask, what to call it
Fetch = Callable[[int], Shown]

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
            for number, shown in self.repeated.get(source, ()):
                found.append(_row(source, REPEATED, shown, decode, number))
            for kind in KINDS:
                best = self.best.get((source, kind), ())
                found += [_row(source, kind, shown, decode) for *_, shown in best]
        return found


def _badness(kind: str, rows: npt.NDArray[np.void]) -> npt.NDArray[np.float64]:
    """Larger is worse. Where nothing ranks them, a few are taken by their contents."""
    if kind == "longest":
        return rows["length"].astype(np.float64)
    if kind == "least_trained":
        return -rows["trained"].astype(np.int64) / np.maximum(rows["length"].astype(np.int64), 1)
    return (rows["key"] >> np.uint64(11)).astype(np.float64)


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
