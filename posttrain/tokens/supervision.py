"""Flags of the properties of loss masks: an integer for each sequence, computed a batch at once.

Everything is read from token ids, so that a data set of any origin is examined the same way: by the
marks of its tokenizer and chat template. How a template opens its turns is found by rendering small
chats: a turn is opened by the text between the end of the last trained text and the turn's own
text, from the opening token on.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag

import numpy as np
import numpy.typing as npt

from posttrain.chat import ChatTemplate, TrainingSample, profile_of, training_samples
from posttrain.chat.locate import Prompts
from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.errors import RenderError
from posttrain.records import Message, ToolCall, make_example

Ids = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.int64]
# pattern → its first positions in a batch; patterns share prefixes, so a search is done once
PatternStarts = dict[tuple[int, ...], Positions]
# most tokens that a template writes behind the end token, such as line ends
_TAIL = 2
_TAGS = (OPEN, CLOSE, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_SPACES = ("\n", "\n\n", " ", "\r\n", "\n\n\n")
# texts that templates write behind a closing tag
_BEHIND_TAGS = ("", "\n", "\n\n")
# unlike each other and any text of a template, so that each is found in its output
_WORDS = {"system": "Alfa", "user": "Bravo", "assistant": "Charlie", "tool": "Delta"}
_NAME = "Echo"
Encode = Callable[[Sequence[str]], list[list[int]]]
Pattern = tuple[int, ...]


class Flag(IntFlag):
    """Properties of one sequence."""

    TRAINED = 1  # the loss sees at least one token
    END_TRAINED = 2  # the last trained answer ends with a trained stop token
    END_MASKED = 4  # the stop token is there, right behind the last trained one, and untrained
    EMPTY_THINK = 8  # a trained answer starts after an empty trace
    EVERYTHING = 16  # every single token is trained
    TURN_TOKEN = 32  # a token that opens turns, or the pad, is trained
    PROMPT = 64  # a token of a system, user or tool turn is trained
    CUT_TRACE = 128  # a trace was cut to a budget (known only for data that we built)
    CLIPPED = 256  # the end was clipped off (known only for data that we built)
    EMPTY_ANSWER = 512  # nothing but the end of some answer is trained
    THINK_HEADER = 1024  # a trained text begins with the trace that the generation prompt opens


@dataclass(frozen=True, slots=True)
class Marks:
    """Tokens by which sequences of a tokenizer and its template can be read; none by default.

    Args:
        stop: ids that end a turn.
        tail: ids that may stand between the stop token and the end of an answer (line ends).
        turn: ids that no answer holds: turn openers, the pad.
        empty_think: token patterns of an empty trace.
        close: token patterns of the end of a trace.
        header: token patterns of the part of a trace that generation prompts write.
        roles: role → token pattern that opens its turns. Without the assistant's and another one
            turns cannot be told apart.
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
        """True if turns can be told apart."""
        return "assistant" in self.roles and len(self.roles) > 1


NO_MARKS = Marks()


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch of sequences, one behind the other.

    Attributes:
        ids: (n,) token ids.
        trained: (n,) true for tokens in the loss.
        starts: (m + 1,) offsets; sequence k lies between starts[k] and starts[k + 1].
    """

    ids: Ids
    trained: Mask
    starts: Positions

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Positions:
        """(m,) number of tokens of each sequence."""
        return np.diff(self.starts)


def batch_of(sequences: Sequence[tuple[Sequence[int] | Ids, Sequence[bool] | Mask]]) -> Batch:
    """Join single sequences, each (ids, trained), to a batch."""
    starts = np.cumsum([0, *(len(ids) for ids, _ in sequences)], dtype=np.int64)
    ids = [np.asarray(ids, np.int32) for ids, _ in sequences]
    trained = [np.asarray(mask, np.bool_) for _, mask in sequences]
    return Batch(
        np.concatenate([np.empty(0, np.int32), *ids]),
        np.concatenate([np.empty(0, np.bool_), *trained]),
        starts,
    )


def mask_of_spans(length: int, spans: Positions) -> Mask:
    """Build the (length,) loss mask of a batch from sorted alternating starts and ends of spans."""
    steps = np.zeros(length + 1, np.int8)
    np.add.at(steps, spans[::2], 1)
    np.add.at(steps, spans[1::2], -1)
    return np.cumsum(steps[:-1], dtype=np.int8).astype(np.bool_)


def true_counts(batch: Batch, mask: Mask) -> Ids:
    """Count the tokens of each sequence where a (n,) mask is true, (m,)."""
    return np.diff(_running_count(mask)[batch.starts])


def _running_count(mask: Mask) -> Ids:
    """Count the true values before each position, (n + 1,)."""
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(mask, dtype=np.int32)])


def supervision_flags(batch: Batch, marks: Marks) -> npt.NDArray[np.uint16]:
    """Compute the `Flag` of every sequence of a batch, (m,) integers."""
    pattern_starts: PatternStarts = {}
    trained_counts = true_counts(batch, batch.trained)
    end_trained, end_masked = _answer_ends(batch, marks)
    run_starts, run_ends = _trained_runs(batch)
    turn_tokens = np.flatnonzero(batch.trained & _is_any_of(batch.ids, marks.turn))
    conditions = {
        Flag.TRAINED: trained_counts > 0,
        Flag.END_TRAINED: end_trained,
        Flag.END_MASKED: end_masked,
        Flag.EMPTY_THINK: _empty_thinks(batch, marks, pattern_starts),
        Flag.EVERYTHING: (trained_counts == batch.lengths) & (trained_counts > 0),
        Flag.TURN_TOKEN: _mask_of(batch, [_sequence_of(batch, turn_tokens)]),
        Flag.PROMPT: _prompt_tokens(batch, marks, pattern_starts) > 0,
        Flag.EMPTY_ANSWER: _empty_answers(batch, marks, run_starts, run_ends, pattern_starts),
        Flag.THINK_HEADER: _headers(batch, marks, run_starts, pattern_starts),
    }
    flags = np.zeros(len(batch), np.uint16)
    for flag, mask in conditions.items():
        flags[mask] |= np.uint16(flag)
    return flags


def _answer_ends(batch: Batch, marks: Marks) -> tuple[Mask, Mask]:
    """Find sequences whose last trained answer ends with a trained, or a masked, stop token."""
    positions = np.flatnonzero(batch.trained)
    if not len(positions) or not marks.stop:
        nothing = np.zeros(len(batch), np.bool_)
        return nothing, nothing
    # the last trained token of each sequence; one before its start belongs to an earlier one
    rank = np.searchsorted(positions, batch.starts[1:]) - 1
    last = np.where(rank >= 0, positions[rank], -1)
    has_trained = last >= batch.starts[:-1]
    stop_before = _find_stop(batch, marks, last, has_trained, step=-1)
    end_trained = (stop_before >= 0) & batch.trained[stop_before]
    stop_behind = _find_stop(batch, marks, last + 1, has_trained & ~end_trained, step=1)
    end_masked = has_trained & ~end_trained & ((stop_before >= 0) | (stop_behind >= 0))
    return end_trained, end_masked


def _find_stop(
    batch: Batch, marks: Marks, start: Positions, searched: Mask, *, step: int
) -> Positions:
    """Find the stop token of each sequence from `start` on, past at most `_TAIL` tail tokens.

    Args:
        start: (m,) position to begin at in each sequence.
        searched: (m,) true for the sequences to search.
        step: 1 to search onwards, -1 to search backwards.

    Returns:
        (m,) positions, -1 where there is none.
    """
    stops_at = np.full(len(start), -1, np.int64)
    active = searched.copy()
    for k in range(_TAIL + 1):
        position = start + step * k
        active &= (position >= batch.starts[:-1]) & (position < batch.starts[1:])
        token = batch.ids[np.where(active, position, 0)]
        is_stop = active & _is_any_of(token, marks.stop)
        stops_at[is_stop] = position[is_stop]
        active &= ~is_stop & _is_any_of(token, marks.tail)
    return stops_at


def _trained_runs(batch: Batch) -> tuple[Positions, Positions]:
    """Find starts and ends of runs of trained tokens; a run ends with its sequence."""
    is_boundary = np.zeros(len(batch.ids) + 1, np.bool_)
    is_boundary[batch.starts] = True
    trained_before = np.append(False, batch.trained)
    trained_behind = np.append(batch.trained, False)
    starts = np.flatnonzero(trained_behind & (~trained_before | is_boundary))
    ends = np.flatnonzero(trained_before & (~trained_behind | is_boundary))
    return starts, ends


def _sequence_of(batch: Batch, positions: Positions) -> Positions:
    """Index of the sequence that each position lies in."""
    return np.searchsorted(batch.starts, positions, side="right") - 1


def _mask_of(batch: Batch, sequences: Sequence[Positions]) -> Mask:
    """Build a (m,) mask that is true for the sequences of these indices."""
    mask = np.zeros(len(batch), np.bool_)
    for indices in sequences:
        mask[indices] = True
    return mask


def _empty_answers(
    batch: Batch,
    marks: Marks,
    run_starts: Positions,
    run_ends: Positions,
    pattern_starts: PatternStarts,
) -> Mask:
    """Find sequences with a trained run that holds, behind its trace, only the answer's end."""
    if not marks.stop or not len(run_starts):
        return _mask_of(batch, [])
    is_stop = _is_any_of(batch.ids, marks.stop)
    text_counts = _running_count(~(is_stop | _is_any_of(batch.ids, marks.tail)))
    stop_counts = _running_count(is_stop)
    trace_ends = [np.zeros(1, np.int64)]
    for pattern in marks.close:
        starts, _ = _occurrences(batch, pattern, pattern_starts)
        trace_ends.append(starts + len(pattern))
    answer_starts = np.unique(np.concatenate(trace_ends))
    # the answer of a run begins behind the last trace that ends in it, or with the run
    rank = np.searchsorted(answer_starts, run_ends, side="right") - 1
    answer = np.maximum(run_starts, answer_starts[rank])
    has_no_text = text_counts[run_ends] == text_counts[answer]
    has_stop = stop_counts[run_ends] > stop_counts[answer]
    return _mask_of(batch, [_sequence_of(batch, run_starts[has_no_text & has_stop])])


def _headers(
    batch: Batch, marks: Marks, run_starts: Positions, pattern_starts: PatternStarts
) -> Mask:
    """Find sequences with a trained run that begins with what the generation prompt ends with."""
    sequences: list[Positions] = []
    for pattern in marks.header:
        starts, sequence = _occurrences(batch, pattern, pattern_starts)
        sequences.append(sequence[np.isin(starts, run_starts)])
    return _mask_of(batch, sequences)


def _is_any_of(ids: Ids, tokens: Sequence[int]) -> Mask:
    """Mask the ids that are one of a few tokens; `np.isin` prepares for many, which costs more."""
    mask = np.zeros(len(ids), np.bool_)
    for token in tokens:
        mask |= ids == token
    return mask


def _empty_thinks(batch: Batch, marks: Marks, pattern_starts: PatternStarts) -> Mask:
    """Find sequences in which an empty trace stands right before, or in, trained text."""
    trained_counts = _running_count(batch.trained)
    sequences: list[Positions] = []
    for pattern in marks.empty_think:
        start, sequence = _occurrences(batch, pattern, pattern_starts)
        end = np.minimum(start + len(pattern) + _TAIL, batch.starts[sequence + 1])
        sequences.append(sequence[trained_counts[end] > trained_counts[start]])
    return _mask_of(batch, sequences)


def _prompt_tokens(batch: Batch, marks: Marks, pattern_starts: PatternStarts) -> Positions:
    """Count trained tokens in turns that are not the assistant's, (m,); 0 if roles are unknown."""
    counts = np.zeros(len(batch), np.int64)
    if not marks.knows_roles or not len(batch.ids):
        return counts
    starts_of_role: list[Positions] = []
    sequences_of_role: list[Positions] = []
    is_prompt_of_role: list[Mask] = []
    for role, pattern in marks.roles.items():
        starts, sequences = _occurrences(batch, pattern, pattern_starts)
        starts_of_role.append(starts)
        sequences_of_role.append(sequences)
        is_prompt_of_role.append(np.full(len(starts), role != "assistant"))
    start = np.concatenate(starts_of_role)
    order = np.argsort(start, kind="stable")
    start = start[order]
    sequence = np.concatenate(sequences_of_role)[order]
    is_prompt = np.concatenate(is_prompt_of_role)[order]
    # a turn ends where the next begins, or with its sequence
    end = np.minimum(np.append(start[1:], len(batch.ids)), batch.starts[sequence + 1])
    trained_counts = _running_count(batch.trained)
    trained_in_turn = trained_counts[end] - trained_counts[start]
    np.add.at(counts, sequence[is_prompt], trained_in_turn[is_prompt])
    return counts


def _occurrences(
    batch: Batch, pattern: tuple[int, ...], pattern_starts: PatternStarts
) -> tuple[Positions, Positions]:
    """Find where a pattern begins, and the sequence of each; none reaches into the next one."""
    starts = _find_pattern(batch.ids, pattern, pattern_starts)
    if not len(starts):
        return starts, starts
    sequences = _sequence_of(batch, starts)
    inside = starts + len(pattern) <= batch.starts[sequences + 1]
    return starts[inside], sequences[inside]


def _find_pattern(ids: Ids, pattern: tuple[int, ...], pattern_starts: PatternStarts) -> Positions:
    """Find all positions of a pattern, from those of the pattern without its last token."""
    if pattern not in pattern_starts:
        if len(pattern) == 1:
            pattern_starts[pattern] = np.flatnonzero(ids == pattern[0])
        else:
            starts = _find_pattern(ids, pattern[:-1], pattern_starts)
            starts = starts[starts + len(pattern) <= len(ids)]
            pattern_starts[pattern] = starts[ids[starts + len(pattern) - 1] == pattern[-1]]
    return pattern_starts[pattern]


def sequence_keys(batch: Batch) -> npt.NDArray[np.uint64]:
    """Hash each sequence's ids to 64 bits, equal for exact copies and for others only by chance."""
    data = memoryview(batch.ids.astype("<i4").tobytes())
    digests: list[bytes] = []
    for start, stop in itertools.pairwise((4 * batch.starts).tolist()):  # 4 bytes an id
        digests.append(hashlib.blake2b(data[start:stop], digest_size=8).digest())
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


# -- the marks of a tokenizer and its template: the tokens by which sequences are read -------------


def marks_of(
    encode: Encode,
    *,
    special: Mapping[str, int],
    stop_ids: Iterable[int],
    pad_id: int | None,
    template: ChatTemplate | None,
) -> Marks:
    """Find the marks of a tokenizer.

    Args:
        encode: function from texts to ids, nothing added.
        special: text → id of the tokens that the tokenizer marks as special.
        stop_ids: ids that end generation.
        pad_id: id of the pad, if there is one.
        template: chat template; without one, or with one that cannot be read, no turns are known.
    """
    special_ids = set(special.values())
    probes = list(probe_samples(template)) if template is not None else []
    # ids of each trained segment of each probe
    trained_ids: list[list[list[int]]] = []
    for probe in probes:
        trained_ids.append(encode([part.text for part in probe.segments if part.trained]))
    tail = tuple(ids[0] for ids in encode(_SPACES) if len(ids) == 1)
    stop = {*stop_ids, *_end_tokens(trained_ids, special_ids, set(tail))}
    tail = tuple(token for token in tail if token not in stop)
    tags = {special[tag] for tag in _TAGS if tag in special}
    roles: dict[str, Pattern] = {}
    opening: set[int] = set()
    header: tuple[Pattern, ...] = ()
    if template is not None and probes:
        profile = profile_of(template)
        openers = special_ids - stop - tags
        roles, opening = _roles(encode, template, profile.prompts, openers, {*stop, *tail, *tags})
        header = _turn_headers(encode, profile.prompts.after_user)
        if profile.mode == "generation-tags":
            # no prompt begins the assistant's turns
            roles = {}
    # some templates (gpt-oss) open a turn within what the assistant writes
    assistant_ids: set[int] = set()
    for segments in trained_ids:
        assistant_ids.update(*segments)
    turn = opening & special_ids - tags - stop - assistant_ids
    if pad_id is not None and pad_id not in stop:
        turn.add(pad_id)
    closings = [f"{CLOSE}{behind}" for behind in _BEHIND_TAGS]
    empty_traces: list[str] = []
    for closing in closings:
        empty_traces += [f"{OPEN}{space}{closing}" for space in ("", *_SPACES)]
    return Marks(
        stop=tuple(sorted(stop)),
        tail=tail,
        turn=tuple(sorted(turn)),
        empty_think=_patterns(encode, empty_traces),
        close=_patterns(encode, closings),
        header=header,
        roles=roles,
    )


def _patterns(encode: Encode, texts: Sequence[str]) -> tuple[Pattern, ...]:
    """Encode texts that may follow each other; one that only continues another is left out.

    Where tags are no tokens, a line end may merge with the last part of a tag, so that the ids with
    the line end are another pattern.
    """
    patterns: list[Pattern] = []
    for ids in map(tuple, encode(texts)):
        if ids and not any(ids[: len(pattern)] == pattern for pattern in patterns):
            patterns.append(ids)
    return tuple(patterns)


def probe_samples(template: ChatTemplate) -> Iterator[TrainingSample]:
    """Render small chats (two turns, a trace, a call and its result); yields last sequences."""
    user = _turn("user")
    answer = _turn("assistant")
    call = Message("assistant", tool_calls=(ToolCall(_NAME, id="call00000"),))
    result = Message("tool", _WORDS["tool"], tool_call_id="call00000", name=_NAME)
    for messages in (
        (user, answer, user, answer),
        (_turn("system"), user, answer),
        (user, Message("assistant", _WORDS["assistant"], reasoning="Foxtrot")),
        (user, call, result, answer),
        (user, call),
    ):
        try:
            yield training_samples(make_example(messages, source="", dialect=""), template)[-1]
        except RenderError:
            continue


def _turn(role: str) -> Message:
    """Message of a role whose text is the word of the role."""
    return Message(role, _WORDS[role])  # pyright: ignore[reportArgumentType]  # a key of `_WORDS`


def _end_tokens(
    trained_ids: Iterable[list[list[int]]], special_ids: set[int], tail: set[int]
) -> set[int]:
    """Find the special tokens with which trained text ends, e.g. `<|call|>` behind a call."""
    end_tokens: set[int] = set()
    for segments in trained_ids:
        for ids in segments:
            last = next((token for token in reversed(ids) if token not in tail), None)
            if last in special_ids:
                end_tokens.add(last)
    return end_tokens


def _roles(
    encode: Encode,
    template: ChatTemplate,
    prompts: Prompts,
    openers: set[int],
    ends: set[int],
) -> tuple[dict[str, Pattern], set[int]]:
    """Find the pattern that opens each role's turns, and every token in them; none if unclear.

    Args:
        encode: function from texts to ids.
        template: the template.
        prompts: its generation prompts, which open the assistant's turns.
        openers: ids that may open a turn.
        ends: ids with which a pattern ends.
    """
    openings = {"assistant": _common_prefix(prompts.after_user), **_texts_before_turns(template)}
    patterns: dict[str, Pattern] = {}
    # the first one found opens the turns of all roles
    opener: int | None = None
    for role, text in openings.items():
        ids = encode([text])[0] if text else []
        positions = [k for k, token in enumerate(ids) if token in openers]
        if not positions:
            continue
        if opener is None:
            opener = ids[positions[0]]
        start = max((k for k in positions if ids[k] == opener), default=positions[-1])
        end = next((k for k in range(start + 1, len(ids)) if ids[k] in ends), len(ids))
        patterns[role] = tuple(ids[start:end])
    assistant = patterns.get("assistant")
    if assistant is None or len(patterns) == 1:
        return {}, set()
    opening_ids: set[int] = set().union(*patterns.values())
    for role, pattern in patterns.items():
        shared = min(len(pattern), len(assistant))
        if role != "assistant" and pattern[:shared] == assistant[:shared]:
            # e.g. a template that tells roles apart by plain text
            return {}, opening_ids
    return patterns, opening_ids


def _common_prefix(texts: Sequence[str]) -> str:
    """Longest text with which all texts begin."""
    first = min(texts, default="")
    last = max(texts, default="")
    length = 0
    while first[length : length + 1] and first[: length + 1] == last[: length + 1]:
        length += 1
    return first[:length]


def _texts_before_turns(template: ChatTemplate) -> dict[str, str]:
    """Collect the text before a system, user and tool turn's text, behind trained text if any."""
    texts: dict[str, str] = {}
    for sample in probe_samples(template):
        text = sample.text
        end = 0
        trained_end = 0
        for segment in sample.segments:
            start = end
            end += len(segment.text)
            if segment.trained:
                trained_end = end
            before = start if segment.trained else trained_end
            for role in ("system", "user", "tool"):
                position = text.find(_WORDS[role], start, end)
                if position >= 0 and role not in texts and (role == "system" or before):
                    texts[role] = text[before:position].split(_NAME)[0]
    return texts


def _turn_headers(encode: Encode, prompts: Sequence[str]) -> tuple[Pattern, ...]:
    """Find the patterns by which generation prompts begin a trace, and no answer begins."""
    role_header = _common_prefix(prompts).partition(OPEN)[0]
    prompt_endings = {prompt[len(role_header) :].strip() for prompt in prompts}
    # a template that may leave opening the trace to the model lets answers begin with `<think>`
    opening_texts = [ending for ending in prompt_endings if ending.startswith(OPEN)]
    return _patterns(encode, sorted(opening_texts, key=len))
