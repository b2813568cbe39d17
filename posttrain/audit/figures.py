"""One pass over a stream of sequences: figures a source, copies, and the worst to read.

Memory holds a batch of tokens, a handful of excerpts a source and 16 bytes a sequence, twice that
while they are sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from posttrain.audit.limits import REPEATED
from posttrain.audit.reader import MaskedSequence
from posttrain.tokens.encode import batches
from posttrain.tokens.supervision import (
    Flag,
    Ids,
    Marks,
    Mask,
    batch_of,
    sequence_keys,
    supervision_flags,
    true_counts,
)

_TOKENS = 1 << 20
_SEQUENCES = 4096
# what an audit reads of a sequence; more fields do no harm
_ROW = np.dtype([("length", "<u4"), ("trained", "<u4"), ("flags", "<u2"), ("key", "<u8")])
_KEY = np.dtype([("key", "<u8"), ("place", "<u4"), ("source", "<u4")])
Rows = npt.NDArray[np.void]
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


@dataclass
class SourceFigures:
    """Counts of sequences, but for `tokens`, `trained` (tokens) and `longest` (tokens).

    Every sequence is one of `nothing_trained`, `end_trained`, `end_masked` and `no_end`. `None` is
    a count that this data cannot tell: turns that cannot be told apart, cuts that left no trace.
    """

    sequences: int = 0
    tokens: int = 0
    trained: int = 0
    nothing_trained: int = 0
    end_trained: int = 0
    end_masked: int = 0
    no_end: int = 0
    empty_think: int = 0
    everything_trained: int = 0
    empty_answer: int | None = 0
    think_header: int = 0
    turn_tokens: int = 0
    prompt_trained: int | None = 0
    cut_trace: int | None = 0
    clipped: int | None = 0
    duplicated: int = 0
    longest: int = 0

    @classmethod
    def empty(cls, marks: Marks, *, knows_cuts: bool) -> SourceFigures:
        """Nothing counted yet; what the marks, or data of another's making, cannot tell is None."""
        cuts, roles = (0 if known else None for known in (knows_cuts, marks.knows_roles))
        return cls(prompt_trained=roles, cut_trace=cuts, clipped=cuts)

    def add(self, rows: Rows) -> None:
        """Count some sequences, by their fields of `_ROW`."""
        self.sequences += len(rows)
        self.tokens += int(rows["length"].sum(dtype=np.int64))
        self.trained += int(rows["trained"].sum(dtype=np.int64))
        self.longest = max(self.longest, int(rows["length"].max(initial=0)))
        number = np.bincount(rows["flags"], minlength=1)
        values = np.arange(len(number))
        self.nothing_trained += int(number[(values & Flag.TRAINED) == 0].sum())
        for name, flag in COUNTED.items():
            before = getattr(self, name)
            if before is not None:
                setattr(self, name, before + int(number[(values & flag) != 0].sum()))
        self.no_end = self.sequences - self.nothing_trained - self.end_trained - self.end_masked

    def stats(self) -> dict[str, int | None]:
        """For a manifest."""
        return asdict(self)


# the worst sequences: chosen by their figures and contents, never by the order they come in


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


Ranked = tuple[float, int, Excerpt]  # after its badness and its key


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
    """The worst seen so far by (source, kind), the worst first; `repeated` is what a source holds
    most often, with its number."""

    best: dict[tuple[str, str], list[Ranked]] = field(default_factory=dict[Any, Any])
    repeated: dict[str, list[tuple[int, Excerpt]]] = field(default_factory=dict[Any, Any])

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


@dataclass
class Audit:
    """What an audit found, by source in the order they were met; `keys` of all sequences."""

    figures: dict[str, SourceFigures] = field(default_factory=dict[str, SourceFigures])
    worst: Worst = field(default_factory=Worst)
    keys: list[Rows] = field(default_factory=list[Rows])
    sequences: int = 0

    def add(
        self,
        rows: Rows,
        source: npt.NDArray[np.integer],
        fetch: Fetch,
        *,
        counted: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Add some sequences; the place of each is the number of those added before it.

        Args:
            rows: (m,) with the fields of `_ROW`.
            source: (m,) index into `figures`.
            counted: (m,) False for the repeats that a mixture asks for, which are no copies.
        """
        keys = np.empty(len(rows), _KEY)
        keys["key"], keys["source"] = rows["key"], source
        keys["place"] = np.arange(self.sequences, self.sequences + len(rows))
        self.sequences += len(rows)
        self.keys.append(keys if counted is None else keys[counted])
        for k, (name, figures) in enumerate(self.figures.items()):
            at = np.flatnonzero(source == k)
            if len(at):
                figures.add(rows[at])
                self.worst.offer(name, rows[at], lambda place, at=at: fetch(int(at[place])))

    def count_copies(self, look_up: Callable[[set[int]], Mapping[int, Shown]]) -> None:
        """Set `duplicated` of every source, and show the sequences that it holds most often.

        A sequence is a copy if an earlier one of its source, or one of an earlier source, has its
        key. `look_up` gives the sequences at some places.
        """
        rows = np.concatenate([np.empty(0, _KEY), *self.keys])
        rows = rows[np.lexsort((rows["place"], rows["source"], rows["key"]))]
        first = np.append(True, rows["key"][1:] != rows["key"][:-1])[: len(rows)]
        key = np.cumsum(first) - 1  # numbered, in the order of the rows
        number = np.bincount(key)[key]
        later = np.bincount(rows["source"][~first], minlength=len(self.figures)).tolist()
        most: list[tuple[str, int, int]] = []
        for k, (name, figures) in enumerate(self.figures.items()):
            figures.duplicated = later[k]
            own = np.flatnonzero((rows["source"] == k) & (number > 1))
            own = own[np.unique(key[own], return_index=True)[1]]  # the first of each key
            own = own[np.lexsort((rows["place"][own], -number[own]))][:SHOWN]
            most += [(name, int(number[i]), int(rows["place"][i])) for i in own]
        shown = look_up({place for *_, place in most})
        for name, times, place in most:
            self.worst.repeated.setdefault(name, []).append((times, excerpt(*shown[place])))


def audit_set(found: Iterable[MaskedSequence], marks: Marks) -> Audit:
    """Audit a data set; its sequences are gone through again where there are copies to show."""
    audit = Audit()
    for batch in batches(found, lambda one: len(one.ids), most=_TOKENS, count=_SEQUENCES):
        tokens = batch_of([(one.ids, one.trained) for one in batch])
        rows = np.empty(len(batch), _ROW)
        rows["length"], rows["trained"] = tokens.lengths, true_counts(tokens, tokens.trained)
        rows["flags"], rows["key"] = supervision_flags(tokens, marks), sequence_keys(tokens)
        rows["flags"][[one.cut is True for one in batch]] |= np.uint16(Flag.CUT_TRACE)
        for one in batch:
            if one.source not in audit.figures:
                fresh = SourceFigures.empty(marks, knows_cuts=False)
                fresh.cut_trace = None if one.cut is None else 0
                fresh.empty_answer = None if one.rejected else 0  # a fault that may be why
                audit.figures[one.source] = fresh
        numbers = {source: k for k, source in enumerate(audit.figures)}
        source = np.array([numbers[one.source] for one in batch])
        counted = np.array([not one.again for one in batch])
        audit.add(rows, source, lambda place, own=batch: own[place].shown, counted=counted)

    def look_up(places: set[int]) -> dict[int, Shown]:
        some = islice(found, max(places, default=-1) + 1)
        return {place: one.shown for place, one in enumerate(some) if place in places}

    audit.count_copies(look_up)
    return audit
