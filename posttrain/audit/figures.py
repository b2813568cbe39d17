"""One pass over a stream of sequences: figures a source, copies, and the worst to read.

    audit = audit_set(SetReader([Path("runs/tiny/sft_data")], largest_id=…), marks)
    audit.figures["maths"].stats()  →  {"sequences": 7470, "tokens": 912_340, "trained": 610_012, …}

Memory holds a batch of tokens, a handful of excerpts a source and 16 bytes a sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

import numpy as np
import numpy.typing as npt

from posttrain.audit.reader import MaskedSequence
from posttrain.audit.worst import SHOWN, Worst, excerpt
from posttrain.tokens.repeats import Repeated, Repeats
from posttrain.tokens.supervision import (
    Flag,
    Ids,
    Marks,
    Mask,
    batch_of,
    sequence_keys,
    sums,
    supervision_flags,
)

_TOKENS = 1 << 20
_SEQUENCES = 4096
# counts of sequences, by the flag that they share
_COUNTED = {
    "end_trained": Flag.END_TRAINED,
    "end_masked": Flag.END_MASKED,
    "empty_think": Flag.EMPTY_THINK,
    "everything_trained": Flag.EVERYTHING,
    "empty_answer": Flag.EMPTY_ANSWER,
    "think_header": Flag.THINK_HEADER,
    "turn_tokens": Flag.TURN_TOKEN,
    "prompt_trained": Flag.PROMPT,
    "cut_trace": Flag.CUT_TRACE,
    "clipped": Flag.CLIPPED,
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
        cuts = 0 if knows_cuts else None
        roles = 0 if marks.knows_roles else None
        return cls(prompt_trained=roles, cut_trace=cuts, clipped=cuts)

    def add(
        self,
        lengths: npt.NDArray[np.integer],
        trained: npt.NDArray[np.integer],
        flags: npt.NDArray[np.uint16],
    ) -> None:
        """Count some sequences: their tokens, trained tokens and flags, all (m,)."""
        self.sequences += len(lengths)
        self.tokens += int(lengths.sum())
        self.trained += int(trained.sum())
        self.longest = max(self.longest, int(lengths.max(initial=0)))
        number = np.bincount(flags, minlength=1)
        values = np.arange(len(number))
        some = int(number[(values & Flag.TRAINED) != 0].sum())
        self.nothing_trained += len(flags) - some
        for name, flag in _COUNTED.items():
            before = getattr(self, name)
            if before is not None:
                setattr(self, name, before + int(number[(values & flag) != 0].sum()))
        self.no_end = self.sequences - self.nothing_trained - self.end_trained - self.end_masked

    def stats(self) -> dict[str, int | None]:
        """For a manifest."""
        return asdict(self)


@dataclass
class Audit:
    """What an audit found, by source in the order they were met."""

    figures: dict[str, SourceFigures] = field(default_factory=dict[str, SourceFigures])
    worst: Worst = field(default_factory=Worst)


def audit_set(found: Iterable[MaskedSequence], marks: Marks) -> Audit:
    """Audit a data set.

    Args:
        found: the sequences; gone through a second time where there are copies to show.
    """
    audit = Audit()
    repeats = Repeats()
    for batch in _batches(found):
        _count(audit, batch, marks, repeats)
    repeated = repeats.count(groups=len(audit.figures), most=SHOWN)
    for figures, later in zip(audit.figures.values(), repeated.later, strict=True):
        figures.duplicated = later
    _show_repeated(audit, found, repeated)
    return audit


def _count(audit: Audit, batch: list[MaskedSequence], marks: Marks, repeats: Repeats) -> None:
    tokens = batch_of([(one.ids, one.trained) for one in batch])
    flags, keys = supervision_flags(tokens, marks), sequence_keys(tokens)
    flags[[one.cut is True for one in batch]] |= np.uint16(Flag.CUT_TRACE)
    lengths, trained = tokens.lengths, sums(tokens, tokens.trained)
    for one in batch:
        if one.source not in audit.figures:
            fresh = SourceFigures.empty(marks, knows_cuts=False)
            fresh.cut_trace = None if one.cut is None else 0
            fresh.empty_answer = None if one.rejected else 0  # a fault that may be why
            audit.figures[one.source] = fresh
    numbers = {source: k for k, source in enumerate(audit.figures)}
    owner = np.array([numbers[one.source] for one in batch])
    first = np.array([not one.again for one in batch])
    # repeats that a mixture asks for are no copies; they take part in the places all the same
    repeats.add(keys, owner, counted=first)
    for k in np.unique(owner).tolist():
        at = np.flatnonzero(owner == k)
        source = batch[at[0]].source
        audit.figures[source].add(lengths[at], trained[at], flags[at])
        own = [batch[i] for i in at]

        def fetch(place: int, own: list[MaskedSequence] = own) -> tuple[Ids, Mask, str]:
            return own[place].ids, own[place].trained, own[place].about

        audit.worst.offer(source, lengths[at], trained[at], flags[at], keys[at], fetch)


def _show_repeated(audit: Audit, found: Iterable[MaskedSequence], repeated: Repeated) -> None:
    wanted = {place: number for most in repeated.most for number, place in most}
    if not wanted:
        return
    last = max(wanted)
    shown: dict[int, MaskedSequence] = {}
    for place, one in enumerate(found):
        if place in wanted:
            shown[place] = one
        if place == last:
            break
    for source, most in zip(audit.figures, repeated.most, strict=True):
        for number, place in most:
            one = shown[place]
            audit.worst.add_repeated(source, number, excerpt(one.ids, one.trained, one.about))


def _batches(found: Iterable[MaskedSequence]) -> Iterator[list[MaskedSequence]]:
    batch: list[MaskedSequence] = []
    tokens = 0
    for one in found:
        batch.append(one)
        tokens += len(one.ids)
        if tokens >= _TOKENS or len(batch) == _SEQUENCES:
            yield batch
            batch, tokens = [], 0
    if batch:
        yield batch
