"""A tokenizer and its chat template → the tokens by which sequences are read.

How a template opens its turns is found by rendering small chats: what stands between the end of one
turn's trained text and the next turn's text, from the token on that opens turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from posttrain.chat import ChatTemplate, TrainingSample, profile_of, training_samples
from posttrain.chat.locate import Prompts
from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.errors import RenderError
from posttrain.records import Message, ToolCall, make_example
from posttrain.tokens.supervision import Marks

_TAGS = (OPEN, CLOSE, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_SPACES = ("\n", "\n\n", " ", "\r\n", "\n\n\n")
_WORDS = {"system": "Alfa", "user": "Bravo", "assistant": "Charlie", "tool": "Delta"}
_NAME = "Echo"
Encode = Callable[[Sequence[str]], list[list[int]]]
Pattern = tuple[int, ...]


def marks_of(
    encode: Encode,
    *,
    special: Mapping[str, int],
    stop_ids: Iterable[int],
    pad_id: int | None,
    template: ChatTemplate | None,
) -> Marks:
    """The marks of a tokenizer.

    Args:
        encode: texts → ids, nothing added.
        special: the tokens that the tokenizer marks as special.
        template: without one, or with one that cannot be read, nothing is known of turns.
    """
    probes = list(probe_samples(template)) if template is not None else []
    written = [encode([part.text for part in one.segments if part.trained]) for one in probes]
    tail = tuple(ids[0] for ids in encode(_SPACES) if len(ids) == 1)
    stop = {*stop_ids, *_closing(written, set(special.values()), set(tail))}
    tail = tuple(token for token in tail if token not in stop)
    tags = {special[tag] for tag in _TAGS if tag in special}
    ends = {*stop, *tail, *tags}
    roles, opening = {}, set[int]()
    header: tuple[Pattern, ...] = ()
    if template is not None and probes:
        profile = profile_of(template)
        prompts = profile.prompts
        openers = set(special.values()) - stop - tags
        roles, opening = _roles(encode, template, prompts, openers, ends)
        header = _headers(encode, prompts.after_user)
        if profile.mode == "generation-tags":  # no prompt that would begin the assistant's turns
            roles = {}
    # some templates (gpt-oss) open a turn within what the assistant writes
    own = {token for spans in written for ids in spans for token in ids}
    turn = opening & set(special.values()) - tags - stop - own
    if pad_id is not None and pad_id not in stop:
        turn.add(pad_id)
    return Marks(
        stop=tuple(sorted(stop)),
        tail=tail,
        turn=tuple(sorted(turn)),
        empty_think=_patterns(
            encode,
            (f"{OPEN}{space}{CLOSE}{after}" for after in ("", "\n", "\n\n")
             for space in ("", *_SPACES)),
        ),
        close=_patterns(encode, (f"{CLOSE}{after}" for after in ("", "\n", "\n\n"))),
        header=header,
        roles=roles,
    )  # fmt: skip


def _patterns(encode: Encode, texts: Iterable[str]) -> tuple[Pattern, ...]:
    """Texts as ids; where tags are no tokens, a line end may merge with the last."""
    found: list[Pattern] = []
    for ids in map(tuple, encode(list(texts))):
        if ids and not any(ids[: len(known)] == known for known in found):
            found.append(ids)
    return tuple(found)


def probe_samples(template: ChatTemplate) -> Iterator[TrainingSample]:
    """The last sequence of small chats: two turns, a trace, a call with its result."""
    user, answer = _turn("user"), _turn("assistant")
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
    return Message(role, _WORDS[role])  # pyright: ignore[reportArgumentType]  # a key of `_WORDS`


def _closing(written: Iterable[list[list[int]]], special: set[int], tail: set[int]) -> set[int]:
    """The special tokens with which trained text ends, e.g. `<|call|>` behind a call."""
    found: set[int] = set()
    for spans in written:
        for ids in spans:
            last = next((token for token in reversed(ids) if token not in tail), None)
            found |= {last} & special if last is not None else set()
    return found


def _roles(
    encode: Encode,
    template: ChatTemplate,
    prompts: Prompts,
    special: set[int],
    ends: set[int],
) -> tuple[dict[str, Pattern], set[int]]:
    """The pattern that opens each role's turns, and every token in them; nothing if unclear."""
    gaps = {"assistant": _common(prompts.after_user), **_gaps(template)}
    found: dict[str, Pattern] = {}
    opener: int | None = None
    for role, gap in gaps.items():
        ids = encode([gap])[0] if gap else []
        places = [k for k, token in enumerate(ids) if token in special]
        if not places:
            continue
        opener = ids[places[0]] if opener is None else opener
        start = max((k for k in places if ids[k] == opener), default=places[-1])
        end = next((k for k in range(start + 1, len(ids)) if ids[k] in ends), len(ids))
        found[role] = tuple(ids[start:end])
    own = found.get("assistant")
    others = [pattern for role, pattern in found.items() if role != "assistant"]
    opening = {token for pattern in found.values() for token in pattern}
    if own is None or not others:
        return {}, set()
    if any(own[: len(p)] == p or p[: len(own)] == own for p in others):
        return {}, opening  # e.g. a template that tells roles apart by plain text
    return found, opening


def _common(texts: Sequence[str]) -> str:
    """What all texts begin with."""
    first, last = min(texts, default=""), max(texts, default="")
    equal = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(a for a, _ in equal)


def _gaps(template: ChatTemplate) -> dict[str, str]:
    """What stands before a system, user and tool turn's text, behind trained text if there is."""
    gaps: dict[str, str] = {}
    for sample in probe_samples(template):
        text, at, trained_end = sample.text, 0, 0
        for segment in sample.segments:
            at += len(segment.text)
            trained_end = at if segment.trained else trained_end
            start = at - len(segment.text)
            for role in ("system", "user", "tool"):
                place = text.find(_WORDS[role], start, at)
                before = trained_end if not segment.trained else start
                if place >= 0 and role not in gaps and (role == "system" or before):
                    gaps[role] = text[before:place].split(_NAME)[0]
    return gaps


def _headers(encode: Encode, prompts: Sequence[str]) -> tuple[Pattern, ...]:
    """What generation prompts write of a trace: no answer begins with it."""
    role = _common(prompts).partition(OPEN)[0]
    tails = {prompt[len(role) :].strip() for prompt in prompts}
    # a template that may leave opening the trace to the model lets answers begin with `<think>`
    return _patterns(encode, sorted((t for t in tails if t.startswith(OPEN)), key=len))
