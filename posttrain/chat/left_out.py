"""What a template silently leaves out of a conversation: texts, traces, calls, results, tools.

Two proofs for every record: its *shape* is rendered once with a word of its own for every part, and
its own texts are looked for in the sequence that trains or first shows them.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from posttrain.chat.locate import sequences
from posttrain.chat.masks import TrainingSample, as_rows, training_samples
from posttrain.chat.profile import profile_of
from posttrain.chat.template import ChatTemplate
from posttrain.config.build_sft import LossKind
from posttrain.errors import RenderError
from posttrain.records import (
    Example,
    Message,
    ToolCall,
    json_text,
    tools_to_template,
    with_messages,
)

_OF_ROLE: Mapping[str, LossKind] = {"system": "system", "user": "user", "tool": "tool_result"}
_WORDS: Mapping[LossKind, str] = {
    "system": "the system text of message {}",
    "user": "the text of message {} (user)",
    "text": "the text of message {}",
    "reasoning": "the reasoning of message {}",
    "tool_call": "tool calls of message {}",
    "tool_result": "the tool result in message {}",
    "tools": "the declared tools",
    "tool_details": "details of the declared tools",
}


@dataclass(frozen=True, slots=True)
class Loss:
    """A part of a conversation that a template does not write; `message` is None for tools."""

    kind: LossKind
    message: int | None = None

    def __str__(self) -> str:
        return _WORDS[self.kind].format(self.message)


def left_out(example: Example, template: ChatTemplate) -> str | None:
    """What the template silently does not write of a record; None for nothing, or if it refuses."""
    lost = losses(example, template)
    return describe(lost, template) if lost else None


def describe(lost: Sequence[Loss], template: ChatTemplate) -> str:
    """One line for a message to the user."""
    return f"{template.name} leaves out {', '.join(map(str, lost))}"


def losses(
    example: Example,
    template: ChatTemplate,
    samples: Sequence[TrainingSample] | None = None,
    *,
    every_step: bool = False,
) -> tuple[Loss, ...]:
    """What of a record is not written where it belongs; nothing if the template refuses it.

    Args:
        samples: as `training_samples` gives them for this record; rendered here if absent.
        every_step: as in `training_samples`.
    """
    texts = _texts(example, template, samples, every_step)
    if texts is None:
        return ()
    shape = _shape(example.messages)
    lost = dict.fromkeys(_of_shape(template, shape, example.tools is not None, every_step))
    if example.tools is not None and Loss("tools") not in lost:
        lost |= dict.fromkeys(_of_tools(template, example.tools))
    return tuple(lost | dict.fromkeys(_missing(example.messages, texts)))


# -- where a message belongs ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Text:
    """The first sequence that holds some messages; `new` is its text without earlier messages."""

    messages: range
    new: str
    sample: TrainingSample | None

    def holds(self, part: str) -> bool:
        """Whether a text is written; history, which would cost turns squared, is a last resort."""
        return _is_written(part, self.new) or (
            self.sample is not None and _is_written(part, self.sample.text)
        )


def _texts(
    example: Example,
    template: ChatTemplate,
    samples: Sequence[TrainingSample] | None,
    every_step: bool,
) -> list[_Text] | None:
    """The text of every message; None if the template refuses. Unanswered messages have none."""
    every_turn = _every_turn(template)
    if samples is None and every_turn is not None:
        try:
            samples = training_samples(example, template, every_step=every_step)
        except RenderError:  # no mask can be determined, though the template may write a text
            samples = None
    messages = example.messages
    stops = [len(messages)]
    if not (samples and len(samples) == 1 and samples[0].trained_messages[-1] == stops[0] - 1):
        plans = sequences(messages, every_turn=bool(every_turn), every_step=every_step)
        stops = [plan.stop for plan in plans] or stops
    ranges = [range(a, b) for a, b in itertools.pairwise([0, *stops])]
    if samples:
        return [
            _Text(
                own,
                "".join(s.text for s in sample.segments if s.message_index >= own.start),
                sample if own.start else None,
            )
            for own, sample in zip(ranges, samples, strict=True)
        ]
    try:
        rows, tools = as_rows(messages, example.tools)
        thinking = example.reasoning_mode == "on"
        return [
            _Text(own, template.text(rows[: own.stop], tools=tools, enable_thinking=thinking), None)
            for own in ranges
        ]
    except RenderError:
        return None


@functools.lru_cache(maxsize=64)
def _every_turn(template: ChatTemplate) -> bool | None:
    """Whether every turn is a sequence of its own; None for a template without masks."""
    try:
        return profile_of(template).every_turn
    except RenderError:
        return None


# -- by content ------------------------------------------------------------------------------------


def _missing(messages: Sequence[Message], texts: Sequence[_Text]) -> Iterator[Loss]:
    """The parts of messages that do not stand in the text of their message."""
    for text in texts:
        for number in text.messages:
            for kind, part in _parts(messages[number]):
                if not text.holds(part):
                    yield Loss(kind, number)


def _parts(message: Message) -> Iterator[tuple[LossKind, str]]:
    yield _OF_ROLE.get(message.role, "text"), message.content
    if message.role == "assistant" and message.reasons:
        yield "reasoning", message.reasoning or ""
    for call in message.tool_calls:
        yield "tool_call", call.name
        if call.arguments != "{}":
            for text in _strings(json.loads(call.arguments)):
                yield "tool_call", text


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in cast(dict[str, object], value).items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in cast(list[object], value):
            yield from _strings(inner)


_LAYOUT = str.maketrans("", "", " \t\r\n\\'\"")


def _is_written(part: str, text: str) -> bool:
    """Whether a text stands in another as it is, escaped, or laid out anew."""
    part = part.strip()
    if not part or part in text:
        return True
    bare = text.translate(_LAYOUT)
    forms = (part, json.dumps(part, ensure_ascii=False), json.dumps(part), repr(part))
    return any(form.translate(_LAYOUT) in bare for form in forms)


# -- by shape --------------------------------------------------------------------------------------

# role, has a text, has a trace, (has arguments, has an id) of each call, which call a result is of,
# has a name, is trained
_Turn = tuple[str, bool, bool, tuple[tuple[bool, bool], ...], int | None, bool, bool]


def _shape(messages: Sequence[Message]) -> tuple[_Turn, ...]:
    ids = {
        call.id: k for k, call in enumerate(c for m in messages for c in m.tool_calls) if call.id
    }
    return tuple(
        (
            m.role,
            bool(m.content.strip()),
            m.reasons,
            tuple((call.arguments != "{}", call.id is not None) for call in m.tool_calls),
            None if m.tool_call_id is None else ids.get(m.tool_call_id, -1),
            m.name is not None,
            m.trained,
        )
        for m in messages
    )


_TOOLS = (
    '[{"type":"function","function":{"name":"zqtool","description":"Does it.","parameters":'
    '{"type":"object","properties":{"x":{"type":"string"}},"required":["x"]}}}]'
)


@functools.lru_cache(maxsize=8192)
def _of_shape(
    template: ChatTemplate, shape: tuple[_Turn, ...], tools: bool, every_step: bool
) -> tuple[Loss, ...]:
    """What every conversation of a shape loses: rendered with a word for each of its parts."""
    words = (f"zq{k}x" for k in itertools.count())
    messages: list[Message] = []
    names: list[str] = []  # of all calls so far
    for role, has_text, reasons, calls, answered, named, trained in shape:
        made: list[ToolCall] = []
        for has_arguments, has_id in calls:
            # nine alphanumeric characters: the strictest form of id that templates insist on
            call_id = f"call{len(names):05d}" if has_id else None
            names.append(next(words))
            arguments = {next(words): next(words)} if has_arguments else {}
            made.append(ToolCall(names[-1], json_text(arguments), call_id))
        known = answered is not None and 0 <= answered < len(names)
        messages.append(
            Message(
                cast(Any, role),
                next(words) if has_text else "",
                reasoning=next(words) if reasons and role == "assistant" else None,
                tool_calls=tuple(made),
                tool_call_id=f"call{answered:05d}" if known else None if answered is None else "x",
                trained=trained,
                name=None if not named else names[answered or 0] if known else "f",
            )
        )
    declared = _TOOLS if tools else None
    example = Example(tuple(messages), declared, id="", source="", license="", dialect="")
    texts = _texts(example, template, None, every_step)
    if texts is None:
        return ()
    # of one message calls come first: the first kind names the reason of a drop
    parts = sorted(_missing(messages, texts), key=lambda o: (o.message, o.kind != "tool_call"))
    undeclared = [Loss("tools")] if tools and not texts[0].holds("zqtool") else []
    return tuple(dict.fromkeys([*undeclared, *parts]))


# -- declared tools -------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _of_tools(template: ChatTemplate, tools: str) -> tuple[Loss, ...]:
    """Whether a template writes the names, descriptions and choices of declared tools."""
    words: list[str] = []
    declared = [_in_words(tool, words) for tool in tools_to_template(tools) or ()]
    try:
        text = template.text([{"role": "user", "content": "q"}], tools=declared)
    except RenderError:  # it wants more than names and texts; the shape shows that it writes tools
        return ()
    return () if all(word in text for word in words) else (Loss("tool_details"),)


def _in_words(declared: Any, words: list[str]) -> Any:
    """A tool or a schema with a word of its own for each name, description and choice."""

    def word(given: object) -> object:
        if not isinstance(given, str) or not given.strip():
            return given
        words.append(f"zq{len(words)}x")
        return words[-1]

    if not isinstance(declared, dict):
        return declared
    made = dict(cast(dict[str, Any], declared))
    if isinstance(made.get("function"), dict):  # what stands beside it is no part of the tool
        return made | {"function": _in_words(made["function"], words)}
    for key in made:
        if key in ("name", "description"):
            made[key] = word(made[key])
        elif key in ("parameters", "items"):
            made[key] = _in_words(made[key], words)
        elif key == "enum" and isinstance(made[key], list):
            made[key] = [word(choice) for choice in made[key]]
    if isinstance(made.get("properties"), dict):
        names = {name: word(name) for name in made["properties"]}
        own = made["properties"].items()
        made["properties"] = {names[name]: _in_words(schema, words) for name, schema in own}
        if isinstance(made.get("required"), list):
            made["required"] = [names.get(name, name) for name in made["required"]]
    return made


# -- the way out ----------------------------------------------------------------------------------


def serial_calls(example: Example) -> Example:
    """The record with parallel calls one after the other, each followed by its result.

    assistant(text, calls 1 and 2), tool 1, tool 2  →  assistant(text, call 1), tool 1,
                                                       assistant(call 2), tool 2
    Results belong to calls by id, or else by order; calls whose results are not all there stay.
    """
    messages: list[Message] = []
    source = list(example.messages)
    k = 0
    while k < len(source):
        message, calls = source[k], source[k].tool_calls
        results = source[k + 1 : k + 1 + len(calls)]
        k += 1
        if len(calls) < 2 or len(results) < len(calls) or any(r.role != "tool" for r in results):
            messages.append(message)
            continue
        by_id = {result.tool_call_id: result for result in results}
        named = len(by_id) == len(calls) and all(call.id in by_id for call in calls)
        for place, (call, result) in enumerate(zip(calls, results, strict=True)):
            step = message if place == 0 else replace(message, content="", reasoning=None)
            messages.append(replace(step, tool_calls=(call,)))
            messages.append(by_id[call.id] if named else result)
        k += len(calls)
    return with_messages(example, messages) if len(messages) > len(source) else example
