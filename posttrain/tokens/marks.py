"""Marks of a tokenizer and its chat template: the tokens by which sequences are read.

How a template opens its turns is found by rendering small chats: a turn is opened by the text
between the end of the last trained text and the turn's own text, from the opening token on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from posttrain.chat import ChatTemplate, TrainingSample, profile_of, training_samples
from posttrain.chat.locate import Prompts
from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.errors import RenderError
from posttrain.records import Message, ToolCall, make_example
from posttrain.tokens.supervision import Marks

_TAGS = (OPEN, CLOSE, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_SPACES = ("\n", "\n\n", " ", "\r\n", "\n\n\n")
# texts that templates write behind a closing tag
_BEHIND_TAGS = ("", "\n", "\n\n")
# unlike each other and any text of a template, so that each is found in its output
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
        header = _headers(encode, profile.prompts.after_user)
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


def _headers(encode: Encode, prompts: Sequence[str]) -> tuple[Pattern, ...]:
    """Find the patterns by which generation prompts begin a trace, and no answer begins."""
    role_header = _common_prefix(prompts).partition(OPEN)[0]
    prompt_endings = {prompt[len(role_header) :].strip() for prompt in prompts}
    # a template that may leave opening the trace to the model lets answers begin with `<think>`
    opening_texts = [ending for ending in prompt_endings if ending.startswith(OPEN)]
    return _patterns(encode, sorted(opening_texts, key=len))
