"""Figures of a stream of sequences by source, in one pass; their copies, and the worst to read.

Memory holds a batch of tokens, a handful of excerpts for each source, and 16 bytes for each
sequence, twice that while they are sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice, pairwise
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

_TOKENS = 1 << 20  # of a batch, at most
_SEQUENCES = 4096  # of a batch, at most
# fields that an audit reads of a sequence; rows may have more of them
_ROW = np.dtype([("length", "<u4"), ("trained", "<u4"), ("flags", "<u2"), ("key", "<u8")])
_KEY = np.dtype([("key", "<u8"), ("place", "<u4"), ("source", "<u4")])
Rows = npt.NDArray[np.void]
SHOWN = 3  # sequences of each kind and source
_WINDOW = 160  # tokens shown of the beginning, around the first trained token, of the end
Decode = Callable[[Sequence[int]], str]
Shown = tuple[Ids, Mask, str]  # ids, mask, origin for people: the arguments of `excerpt`
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
    """Counts of a source's sequences; `tokens`, `trained` and `longest` are in tokens.

    Every sequence counts as one of `nothing_trained`, `end_trained`, `end_masked` and `no_end`.
    None is a count that the data cannot give: where the roles of turns are unknown, or where the
    build did not record its cuts.
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
        """Figures before the first sequence; what the data cannot tell is None.

        Args:
            marks: special tokens of the template, which may not tell the roles of turns apart.
            knows_cuts: the build recorded which traces it cut, and which texts it clipped.
        """
        return cls(
            prompt_trained=0 if marks.knows_roles else None,
            cut_trace=0 if knows_cuts else None,
            clipped=0 if knows_cuts else None,
        )

    def add(self, rows: Rows) -> None:
        """Count some sequences, by their fields of `_ROW`."""
        self.sequences += len(rows)
        self.tokens += int(rows["length"].sum(dtype=np.int64))
        self.trained += int(rows["trained"].sum(dtype=np.int64))
        self.longest = max(self.longest, int(rows["length"].max(initial=0)))
        # one count for each combination of flags, of which there are few
        combination_counts = np.bincount(rows["flags"], minlength=1)
        combinations = np.arange(len(combination_counts))
        self.nothing_trained += int(combination_counts[(combinations & Flag.TRAINED) == 0].sum())
        for name, flag in COUNTED.items():
            count = getattr(self, name)
            if count is not None:
                added = int(combination_counts[(combinations & flag) != 0].sum())
                setattr(self, name, count + added)
        self.no_end = self.sequences - self.nothing_trained - self.end_trained - self.end_masked

    def stats(self) -> dict[str, int | None]:
        """Figures as a block of a manifest."""
        return asdict(self)


# ---- the worst sequences: chosen by their figures and contents, never by the order they come in


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Parts of a sequence to read.

    Attributes:
        about: origin of the sequence, for people.
        tokens, trained: counts of the whole sequence.
        windows: (position of the first token, ids, mask) of each part.
    """

    about: str
    tokens: int
    trained: int
    windows: tuple[tuple[int, Ids, Mask], ...]

    def segments(self, decode: Decode) -> list[list[Any]]:
        """Rows of [role, trained, text], as in samples.jsonl; `gap` counts tokens left out."""
        segments: list[list[Any]] = []
        position = 0
        for start, ids, mask in self.windows:
            if start > position:
                segments.append(["gap", False, f" … {start - position:,} tokens … "])
            changes = np.flatnonzero(np.diff(mask)) + 1
            for begin, end in pairwise([0, *changes, len(ids)]):
                segments.append(["", bool(mask[begin]), decode(ids[begin:end].tolist())])
            position = start + len(ids)
        return segments


Ranked = tuple[float, int, Excerpt]  # badness, negated key, excerpt: the larger is shown first


def excerpt(ids: Ids, mask: Mask, about: str) -> Excerpt:
    """Take the beginning, the first trained token's neighbourhood, and the end of a sequence."""
    trained = np.flatnonzero(mask)
    first_trained = int(trained[0]) if len(trained) else 0
    shown = np.zeros(len(ids), np.bool_)
    shown[:_WINDOW] = True
    shown[max(first_trained - _WINDOW // 2, 0) : first_trained + _WINDOW] = True
    shown[max(len(ids) - _WINDOW, 0) :] = True
    # +1 where a window begins, −1 behind its end
    edges = np.flatnonzero(np.diff(np.concatenate([[0], shown.astype(np.int8), [0]])))
    windows: list[tuple[int, Ids, Mask]] = []
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        # copies: a view would keep the whole batch in memory
        windows.append((int(begin), ids[begin:end].copy(), mask[begin:end].copy()))
    return Excerpt(about, len(ids), int(mask.sum()), tuple(windows))


@dataclass
class Worst:
    """Excerpts of the sequences most worth a look.

    Attributes:
        worst: by (source, kind), the worst first.
        repeated: by source, its most frequent sequences, each with its number of copies.
    """

    worst: dict[tuple[str, str], list[Ranked]] = field(default_factory=dict[Any, Any])
    repeated: dict[str, list[tuple[int, Excerpt]]] = field(default_factory=dict[Any, Any])

    def offer(self, source: str, rows: npt.NDArray[np.void], fetch: Fetch) -> None:
        """Keep the sequences of a source that are worse than the worst so far.

        Args:
            rows: (m,) with the fields of `_ROW`.
            fetch: index of a row → its sequence.
        """
        for kind, (required, excluded) in KINDS.items():
            has_required = (rows["flags"] & required) == required
            has_excluded = (rows["flags"] & excluded) != 0
            candidates = np.flatnonzero(has_required & ~has_excluded)
            # the first of exact copies stands for all
            _, first_copies = np.unique(rows["key"][candidates], return_index=True)
            candidates = candidates[first_copies]
            badness = _badness(kind, rows[candidates])
            keys = rows["key"][candidates]
            worst = self.worst.setdefault((source, kind), []) if len(candidates) else []
            for k in np.lexsort((keys, -badness))[:SHOWN].tolist():
                rank = (float(badness[k]), -int(keys[k]))
                # a copy in an earlier batch
                if any(rank[1] == negated_key for _, negated_key, _ in worst):
                    continue
                if len(worst) < SHOWN or rank > worst[-1][:2]:
                    worst.append((*rank, excerpt(*fetch(int(candidates[k])))))
                    worst.sort(key=lambda ranked: ranked[:2], reverse=True)
                    del worst[SHOWN:]

    def rows(self, decode: Decode) -> list[dict[str, Any]]:
        """Rows of supervision.jsonl: by source in the order met, then by kind, the worst first."""
        sources = dict.fromkeys([*(source for source, _ in self.worst), *self.repeated])
        rows: list[dict[str, Any]] = []
        for source in sources:
            for times, repeated_excerpt in self.repeated.get(source, ()):
                rows.append(_excerpt_row(source, REPEATED, repeated_excerpt, decode, times=times))
            for kind in KINDS:
                for _, _, worst_excerpt in self.worst.get((source, kind), ()):
                    rows.append(_excerpt_row(source, kind, worst_excerpt, decode))
        return rows


def _excerpt_row(
    source: str, kind: str, excerpt: Excerpt, decode: Decode, *, times: int | None = None
) -> dict[str, Any]:
    return {
        "source": source,
        "kind": kind,
        "about": excerpt.about,
        "times": times,
        "tokens": excerpt.tokens,
        "trained": excerpt.trained,
        "segments": excerpt.segments(decode),
    }


def _badness(kind: str, rows: npt.NDArray[np.void]) -> npt.NDArray[np.float64]:
    """Rank of each sequence, larger for worse; by its contents where no figure ranks the kind."""
    if kind == "longest":
        return rows["length"].astype(np.float64)
    if kind == "least_trained":
        return -rows["trained"].astype(np.int64) / np.maximum(rows["length"].astype(np.int64), 1)
    # a key is a digest: an arbitrary but repeatable choice; 53 bits are exact in a float64
    return (rows["key"] >> np.uint64(11)).astype(np.float64)


@dataclass
class Audit:
    """Figures and excerpts of a data set, by source in the order met.

    Attributes:
        keys: digest, place and source of every sequence, in batches, with the fields of `_KEY`.
        sequences: number of sequences so far, counting what a mixture repeats.
    """

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
        """Add sequences; the place of a sequence is the number of those added before it.

        Args:
            rows: (m,) with the fields of `_ROW`.
            source: (m,) index into `figures`.
            fetch: index of a row → its sequence.
            counted: (m,) False for the repeats that a mixture asks for, which are no copies.
        """
        keys = np.empty(len(rows), _KEY)
        keys["key"] = rows["key"]
        keys["source"] = source
        keys["place"] = np.arange(self.sequences, self.sequences + len(rows))
        self.sequences += len(rows)
        self.keys.append(keys if counted is None else keys[counted])
        for number, (name, figures) in enumerate(self.figures.items()):
            members = np.flatnonzero(source == number)
            if len(members):
                figures.add(rows[members])
                self.worst.offer(
                    name, rows[members], lambda k, members=members: fetch(int(members[k]))
                )

    def count_copies(self, look_up: Callable[[set[int]], Mapping[int, Shown]]) -> None:
        """Set `duplicated` of every source, and show the sequences that it holds most often.

        A sequence is a copy if an earlier one of its source, or one of an earlier source, has its
        key.

        Args:
            look_up: places of sequences → the sequences at these places.
        """
        rows = np.concatenate([np.empty(0, _KEY), *self.keys])
        rows = rows[np.lexsort((rows["place"], rows["source"], rows["key"]))]
        is_first = np.append(True, rows["key"][1:] != rows["key"][:-1])[: len(rows)]
        # copies are neighbours now: index of the group of each row, and size of its group
        group = np.cumsum(is_first) - 1
        copies = np.bincount(group)[group]
        duplicated = np.bincount(rows["source"][~is_first], minlength=len(self.figures)).tolist()
        most_repeated: list[tuple[str, int, int]] = []
        for number, (name, figures) in enumerate(self.figures.items()):
            figures.duplicated = duplicated[number]
            repeated = np.flatnonzero((rows["source"] == number) & (copies > 1))
            _, first_of_group = np.unique(group[repeated], return_index=True)
            repeated = repeated[first_of_group]
            most_first = np.lexsort((rows["place"][repeated], -copies[repeated]))
            for row in repeated[most_first][:SHOWN]:
                most_repeated.append((name, int(copies[row]), int(rows["place"][row])))
        sequences = look_up({place for _, _, place in most_repeated})
        for name, times, place in most_repeated:
            self.worst.repeated.setdefault(name, []).append((times, excerpt(*sequences[place])))


def audit_set(data: Iterable[MaskedSequence], marks: Marks) -> Audit:
    """Audit a data set; it is read a second time where there are copies to show."""
    audit = Audit()
    for batch in batches(data, lambda sequence: len(sequence.ids), most=_TOKENS, count=_SEQUENCES):
        tokens = batch_of([(sequence.ids, sequence.trained) for sequence in batch])
        rows = np.empty(len(batch), _ROW)
        rows["length"] = tokens.lengths
        rows["trained"] = true_counts(tokens, tokens.trained)
        rows["flags"] = supervision_flags(tokens, marks)
        rows["key"] = sequence_keys(tokens)
        rows["flags"][[sequence.cut is True for sequence in batch]] |= np.uint16(Flag.CUT_TRACE)
        for sequence in batch:
            if sequence.source not in audit.figures:
                figures = SourceFigures.empty(marks, knows_cuts=False)
                figures.cut_trace = None if sequence.cut is None else 0
                # an empty answer may be the very reason for which it was rejected
                figures.empty_answer = None if sequence.rejected else 0
                audit.figures[sequence.source] = figures
        numbers = {source: number for number, source in enumerate(audit.figures)}
        source = np.array([numbers[sequence.source] for sequence in batch])
        counted = np.array([not sequence.again for sequence in batch])
        audit.add(rows, source, lambda k, batch=batch: batch[k].shown, counted=counted)

    def look_up(places: set[int]) -> dict[int, Shown]:
        sequences: dict[int, Shown] = {}
        # reads no further than the last place, and nothing where there are no copies
        for place, sequence in enumerate(islice(data, max(places, default=-1) + 1)):
            if place in places:
                sequences[place] = sequence.shown
        return sequences

    audit.count_copies(look_up)
    return audit
