"""What a loss mask teaches, sequence by sequence: one word of flags each, for a batch at once.

Everything is read from token ids, so that a data set of any origin can be looked at the same way.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]
Known = dict[tuple[int, ...], Places]  # where some patterns begin in a batch

_TAIL = 2  # tokens that a template may write behind the end token, e.g. a line end


class Flag(IntFlag):
    """What is true of one sequence."""

    TRAINED = 1  # the loss sees at least one token
    END_TRAINED = 2  # the last trained answer ends with a trained stop token
    END_MASKED = 4  # the stop token is there, right behind the last trained one, and untrained
    EMPTY_THINK = 8  # a trained answer starts after an empty trace
    EVERYTHING = 16  # every single token is trained
    TURN_TOKEN = 32  # a token that opens turns, or the pad, is trained
    PROMPT = 64  # a token of a system, user or tool turn is trained
    CUT_TRACE = 128  # a trace was cut to a budget (known of our own data only)
    CLIPPED = 256  # the end was clipped off (known of our own data only)
    EMPTY_ANSWER = 512  # of some answer nothing but its end is trained
    THINK_HEADER = 1024  # a trained text begins with the trace that the generation prompt opens


@dataclass(frozen=True, slots=True)
class Marks:
    """The tokens by which a tokenizer and its template can be read; nothing known by default.

    Args:
        stop: ids that end a turn.
        tail: ids that may stand between the stop token and the end of an answer (line ends).
        turn: ids that no answer holds: turn openers, the pad.
        empty_think, close, header: token patterns of an empty trace, of the end of a trace, of
            what generation prompts write of a trace.
        roles: role → the token pattern that opens its turns; of the assistant and another role, or
            nobody can say whose turn a token belongs to.
    """

    stop: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()
    turn: tuple[int, ...] = ()
    empty_think: tuple[tuple[int, ...], ...] = ()
    close: tuple[tuple[int, ...], ...] = ()
    header: tuple[tuple[int, ...], ...] = ()
    roles: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    @property
    def knows_roles(self) -> bool:
        """Whether turns can be told apart."""
        return "assistant" in self.roles and len(self.roles) > 1


NO_MARKS = Marks()


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences one behind the other: `ids` and `trained` (n,), sequence k at starts[k:k + 2]."""

    ids: Ids
    trained: Mask
    starts: Places

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Places:
        """Tokens of each sequence."""
        return np.diff(self.starts)


def batch_of(sequences: Sequence[tuple[Sequence[int] | Ids, Sequence[bool] | Mask]]) -> Batch:
    """A batch from (ids, trained) of single sequences."""
    starts = np.cumsum([0, *(len(ids) for ids, _ in sequences)], dtype=np.int64)
    ids = [np.asarray(ids, np.int32) for ids, _ in sequences]
    trained = [np.asarray(mask, np.bool_) for _, mask in sequences]
    return Batch(
        np.concatenate([np.empty(0, np.int32), *ids]),
        np.concatenate([np.empty(0, np.bool_), *trained]),
        starts,
    )


def mask_of_spans(length: int, spans: Places) -> Mask:
    """(length,) from alternating starts and ends of the trained tokens of a whole batch, sorted."""
    steps = np.zeros(length + 1, np.int8)
    np.add.at(steps, spans[::2], 1)
    np.add.at(steps, spans[1::2], -1)
    return np.cumsum(steps[:-1], dtype=np.int8).astype(np.bool_)


def true_counts(batch: Batch, where: Mask) -> Ids:
    """(m,) at how many of its places (n,) `where` is true, for each sequence."""
    return np.diff(_before(where)[batch.starts])


def _before(where: Mask) -> Ids:
    """(n + 1,) how many places before each are true."""
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(where, dtype=np.int32)])


def supervision_flags(batch: Batch, marks: Marks) -> npt.NDArray[np.uint16]:
    """`Flag` of every sequence of a batch, as (m,) integers."""
    known: Known = {}
    trained = true_counts(batch, batch.trained)
    end_trained, end_masked = _ends(batch, marks)
    begins, ends = _runs(batch)
    turn = np.flatnonzero(batch.trained & _among(batch.ids, marks.turn))
    conditions = {
        Flag.TRAINED: trained > 0,
        Flag.END_TRAINED: end_trained,
        Flag.END_MASKED: end_masked,
        Flag.EMPTY_THINK: _empty_thinks(batch, marks, known),
        Flag.EVERYTHING: (trained == batch.lengths) & (trained > 0),
        Flag.TURN_TOKEN: _any(batch, [_owners(batch, turn)]),
        Flag.PROMPT: _prompt_tokens(batch, marks, known) > 0,
        Flag.EMPTY_ANSWER: _empty_answers(batch, marks, begins, ends, known),
        Flag.THINK_HEADER: _headers(batch, marks, begins, known),
    }
    flags = np.zeros(len(batch), np.uint16)
    for flag, where in conditions.items():
        flags[where] |= np.uint16(flag)
    return flags


def _ends(batch: Batch, marks: Marks) -> tuple[Mask, Mask]:
    """Whether the answer trained last ends with a trained stop token; whether with a masked one."""
    places = np.flatnonzero(batch.trained)
    nothing = np.zeros(len(batch), np.bool_)
    if not len(places) or not marks.stop:
        return nothing, nothing
    first, end = batch.starts[:-1], batch.starts[1:]
    at = np.searchsorted(places, end) - 1
    last = np.where(at >= 0, places[at], -1)
    has = last >= first
    back = _stop_from(batch, marks, last, has, step=-1)
    trained = (back >= 0) & batch.trained[back]
    ahead = _stop_from(batch, marks, last + 1, has & ~trained, step=1)
    return trained, has & ~trained & ((back >= 0) | (ahead >= 0))


def _stop_from(batch: Batch, marks: Marks, start: Places, where: Mask, *, step: int) -> Places:
    """The place of a stop token at `start` or beyond at most `_TAIL` of the tail, else -1."""
    result = np.full(len(start), -1, np.int64)
    going = where.copy()
    for k in range(_TAIL + 1):
        at = start + step * k
        going &= (at >= batch.starts[:-1]) & (at < batch.starts[1:])
        token = batch.ids[np.where(going, at, 0)]
        stops = going & _among(token, marks.stop)
        result[stops] = at[stops]
        going &= ~stops & _among(token, marks.tail)
    return result


def _runs(batch: Batch) -> tuple[Places, Places]:
    """Where stretches of trained tokens begin and end; none reaches into another sequence."""
    cuts = np.zeros(len(batch.ids) + 1, np.bool_)
    cuts[batch.starts] = True
    before = np.append(False, batch.trained)
    behind = np.append(batch.trained, False)
    return (
        np.flatnonzero(behind & (~before | cuts)),
        np.flatnonzero(before & (~behind | cuts)),
    )


def _owners(batch: Batch, places: Places) -> Places:
    return np.searchsorted(batch.starts, places, side="right") - 1


def _any(batch: Batch, owners: Sequence[Places]) -> Mask:
    """(m,) which sequences are among some."""
    result = np.zeros(len(batch), np.bool_)
    for each in owners:
        result[each] = True
    return result


def _empty_answers(batch: Batch, marks: Marks, begins: Places, ends: Places, known: Known) -> Mask:
    """Sequences with a trained stretch of which, behind its trace, only the end is there."""
    if not marks.stop or not len(begins):
        return _any(batch, [])
    stop = _among(batch.ids, marks.stop)
    words, stops = _before(~(stop | _among(batch.ids, marks.tail))), _before(stop)
    closes = [_places(batch, pattern, known)[0] + len(pattern) for pattern in marks.close]
    behind = np.unique(np.concatenate([np.zeros(1, np.int64), *closes]))
    answer = np.maximum(begins, behind[np.searchsorted(behind, ends, side="right") - 1])
    empty = (words[ends] == words[answer]) & (stops[ends] > stops[answer])
    return _any(batch, [_owners(batch, begins[empty])])


def _headers(batch: Batch, marks: Marks, begins: Places, known: Known) -> Mask:
    """Sequences with a trained stretch that begins with what the generation prompt ends with."""
    found = [_places(batch, pattern, known) for pattern in marks.header]
    return _any(batch, [owner[np.isin(at, begins)] for at, owner in found])


def _among(ids: Ids, tokens: Sequence[int]) -> Mask:
    """Which ids are one of a few tokens; `np.isin` prepares for many, which costs more."""
    result = np.zeros(len(ids), np.bool_)
    for token in tokens:
        result |= ids == token
    return result


def _empty_thinks(batch: Batch, marks: Marks, known: Known) -> Mask:
    """Sequences in which an empty trace stands right before, or in, what is trained."""
    running = _before(batch.trained)
    found: list[Places] = []
    for pattern in marks.empty_think:
        start, owner = _places(batch, pattern, known)
        end = np.minimum(start + len(pattern) + _TAIL, batch.starts[owner + 1])
        found.append(owner[running[end] > running[start]])
    return _any(batch, found)


def _prompt_tokens(batch: Batch, marks: Marks, known: Known) -> Places:
    """Trained tokens in turns that are not the assistant's, for each sequence (0 if unknown)."""
    result = np.zeros(len(batch), np.int64)
    if not marks.knows_roles or not len(batch.ids):
        return result
    found = [(_places(batch, pattern, known), role) for role, pattern in marks.roles.items()]
    at = np.concatenate([at for (at, _), _ in found])
    owner = np.concatenate([owner for (_, owner), _ in found])
    others = np.concatenate([np.full(len(at), role != "assistant") for (at, _), role in found])
    order = np.argsort(at, kind="stable")
    at, owner, others = at[order], owner[order], others[order]
    until = np.minimum(np.append(at[1:], len(batch.ids)), batch.starts[owner + 1])
    running = _before(batch.trained)
    np.add.at(result, owner[others], (running[until] - running[at])[others])
    return result


def _places(batch: Batch, pattern: tuple[int, ...], known: Known) -> tuple[Places, Places]:
    """Where a pattern begins, and in which sequence; it never reaches into the next one."""
    at = _begins(batch.ids, pattern, known)
    if not len(at):
        return at, at
    owner = _owners(batch, at)
    inside = at + len(pattern) <= batch.starts[owner + 1]
    return at[inside], owner[inside]


def _begins(ids: Ids, pattern: tuple[int, ...], known: Known) -> Places:
    if pattern not in known:
        if len(pattern) == 1:
            known[pattern] = np.flatnonzero(ids == pattern[0])
        else:
            at = _begins(ids, pattern[:-1], known)
            at = at[at + len(pattern) <= len(ids)]
            known[pattern] = at[ids[at + len(pattern) - 1] == pattern[-1]]
    return known[pattern]


def sequence_keys(batch: Batch) -> npt.NDArray[np.uint64]:
    """64 bits of each sequence's ids: equal for exact copies, and for others only by accident."""
    data = memoryview(batch.ids.astype("<i4").tobytes())
    cuts = (4 * batch.starts).tolist()
    digests = b"".join(
        hashlib.blake2b(data[a:b], digest_size=8).digest() for a, b in itertools.pairwise(cuts)
    )
    return np.frombuffer(digests, "<u8").astype(np.uint64)
