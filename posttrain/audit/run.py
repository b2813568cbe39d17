"""One pass over a stream of sequences: figures a source, copies, and the worst to read.

    audit = audit_set(SetReader([Path("runs/tiny/sft_data")], largest_id=…), marks)
    audit.figures["maths"].end_trained  →  7391

Memory holds a batch of tokens and a handful of excerpts a source, whatever the size of the set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from posttrain.audit.figures import Figures
from posttrain.audit.sets import Found
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


@dataclass
class Audit:
    """What an audit found, by source in the order they were met."""

    figures: dict[str, Figures] = field(default_factory=dict[str, Figures])
    worst: Worst = field(default_factory=Worst)


def audit_set(found: Iterable[Found], marks: Marks) -> Audit:
    """Audit a data set.

    Args:
        found: the sequences; gone through a second time where there are copies to show.
    """
    audit = Audit()
    with Repeats() as repeats:
        for batch in _batches(found):
            _count(audit, batch, marks, repeats)
        repeated = repeats.found(groups=len(audit.figures), most=SHOWN)
    for figures, later in zip(audit.figures.values(), repeated.later, strict=True):
        figures.duplicated = later
    _show_repeated(audit, found, repeated)
    return audit


def _count(audit: Audit, batch: list[Found], marks: Marks, repeats: Repeats) -> None:
    tokens = batch_of([(one.ids, one.trained) for one in batch])
    flags, keys = supervision_flags(tokens, marks), sequence_keys(tokens)
    flags[[one.cut is True for one in batch]] |= np.uint16(Flag.CUT_TRACE)
    lengths, trained = tokens.lengths, sums(tokens, tokens.trained)
    for one in batch:
        if one.source not in audit.figures:
            fresh = Figures.empty(marks, knows_cuts=False)
            fresh.cut_trace = None if one.cut is None else 0
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

        def fetch(place: int, own: list[Found] = own) -> tuple[Ids, Mask, str]:
            return own[place].ids, own[place].trained, own[place].about

        audit.worst.offer(source, lengths[at], trained[at], flags[at], keys[at], fetch)


def _show_repeated(audit: Audit, found: Iterable[Found], repeated: Repeated) -> None:
    wanted = {place: number for most in repeated.most for number, place in most}
    if not wanted:
        return
    last = max(wanted)
    shown: dict[int, Found] = {}
    for place, one in enumerate(found):
        if place in wanted:
            shown[place] = one
        if place == last:
            break
    for source, most in zip(audit.figures, repeated.most, strict=True):
        for number, place in most:
            one = shown[place]
            audit.worst.add_repeated(source, number, excerpt(one.ids, one.trained, one.about))


def _batches(found: Iterable[Found]) -> Iterator[list[Found]]:
    batch: list[Found] = []
    tokens = 0
    for one in found:
        batch.append(one)
        tokens += len(one.ids)
        if tokens >= _TOKENS or len(batch) == _SEQUENCES:
            yield batch
            batch, tokens = [], 0
    if batch:
        yield batch
