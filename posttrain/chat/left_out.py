"""Losses: parts of a conversation that a template silently leaves out, such as traces or tools.

One proof, that every part of a message stands in the sequence that trains or first shows it, is
run on two conversations: on the record itself, and once per *shape* on a stand-in with a unique
word for every part. The record alone would hide losses of short texts, which stand somewhere else
by accident; the stand-in alone would hide texts that a template cuts.
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
    JudgedRole,
    Message,
    Role,
    ToolCall,
    json_text,
    tools_to_template,
    with_messages,
)

_KIND_OF_ROLE: Mapping[str, LossKind] = {"system": "system", "user": "user", "tool": "tool_result"}
_DESCRIPTIONS: Mapping[LossKind, str] = {
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
    """Part of a conversation that a template does not write.

    Attributes:
        kind: kind of the part.
        message: index of its message; None for declared tools.
    """

    kind: LossKind
    message: int | None = None

    def __str__(self) -> str:
        return _DESCRIPTIONS[self.kind].format(self.message)


def left_out(example: Example, template: ChatTemplate) -> str | None:
    """Describe what the template silently does not write; None for nothing, or if it refuses."""
    lost = losses(example, template)
    return describe(lost, template) if lost else None


def describe(lost: Sequence[Loss], template: ChatTemplate) -> str:
    """Describe losses in one line for a message to the user."""
    return f"{template.name} leaves out {', '.join(map(str, lost))}"


def losses(
    example: Example,
    template: ChatTemplate,
    samples: Sequence[TrainingSample] | None = None,
    *,
    every_step: bool = False,
) -> tuple[Loss, ...]:
    """Find the parts of a record that are not written where they belong.

    Args:
        example: the record.
        template: the template that writes it.
        samples: as `training_samples` returns them for this record; rendered here if absent.
        every_step: as in `training_samples`.

    Returns:
        The losses, each once; none if the template refuses the record.
    """
    texts = _texts(example, template, samples, every_step)
    if texts is None:
        return ()
    shape = _Shape.of(example)
    lost = dict.fromkeys(_losses_of_shape(template, shape, every_step))
    if example.tools is not None and Loss("tools") not in lost:
        lost |= dict.fromkeys(_losses_of_tools(template, example.tools))
    return tuple(lost | dict.fromkeys(_unwritten(example.messages, texts)))


# -- the text in which a message belongs ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Text:
    """Text of some messages, in the first sequence that holds them.

    Attributes:
        messages: indices of the messages that this sequence is the first to hold.
        new: text of the sequence without earlier messages.
        sample: the sequence; None where it holds no earlier messages.
    """

    messages: range
    new: str
    sample: TrainingSample | None

    def holds(self, part: str) -> bool:
        """Check that a part of a message is written."""
        if _is_written(part, self.new):
            return True
        # history is a last resort: searching it for every part would cost turns squared
        return self.sample is not None and _is_written(part, self.sample.text)


def _texts(
    example: Example,
    template: ChatTemplate,
    samples: Sequence[TrainingSample] | None,
    every_step: bool,
) -> list[_Text] | None:
    """Texts of all messages up to the last answer; None if the template refuses the record."""
    every_turn = _splits_every_turn(template)
    if samples is None and every_turn is not None:
        try:
            samples = training_samples(example, template, every_step=every_step)
        except RenderError:
            # no mask can be determined, though the template may write a text
            samples = None
    messages = example.messages
    stops = [len(messages)]
    trained_to_the_end = (
        samples and len(samples) == 1 and samples[0].trained_messages[-1] == len(messages) - 1
    )
    if not trained_to_the_end:
        plans = sequences(messages, every_turn=bool(every_turn), every_step=every_step)
        stops = [plan.stop for plan in plans] or stops
    ranges = [range(start, stop) for start, stop in itertools.pairwise([0, *stops])]
    if samples:
        return [_text_of(sample, first) for sample, first in zip(samples, ranges, strict=True)]
    try:
        rows, tools = as_rows(messages, example.tools)
        thinking = example.reasoning_mode == "on"
        texts: list[_Text] = []
        for first in ranges:
            text = template.text(rows[: first.stop], tools=tools, enable_thinking=thinking)
            texts.append(_Text(first, text, None))
        return texts
    except RenderError:
        return None


def _text_of(sample: TrainingSample, messages: range) -> _Text:
    """Text of the messages that a sequence is the first to hold."""
    new_segments = [part for part in sample.segments if part.message_index >= messages.start]
    new_text = "".join(segment.text for segment in new_segments)
    return _Text(messages, new_text, sample if messages.start else None)


@functools.lru_cache(maxsize=64)
def _splits_every_turn(template: ChatTemplate) -> bool | None:
    """True if every turn is a sequence of its own; None for a template without masks."""
    try:
        return profile_of(template).every_turn
    except RenderError:
        return None


# -- the proof -------------------------------------------------------------------------------------


def _unwritten(messages: Sequence[Message], texts: Sequence[_Text]) -> Iterator[Loss]:
    """Find the parts of messages that do not stand in the text of their message."""
    for text in texts:
        for number in text.messages:
            for kind, part in _parts(messages[number]):
                if not text.holds(part):
                    yield Loss(kind, number)


def _parts(message: Message) -> Iterator[tuple[LossKind, str]]:
    """Parts of a message that a template should write, each with its kind."""
    yield _KIND_OF_ROLE.get(message.role, "text"), message.content
    if message.role == "assistant" and message.reasons:
        yield "reasoning", message.reasoning or ""
    for call in message.tool_calls:
        yield "tool_call", call.name
        if call.arguments != "{}":
            for text in _strings(json.loads(call.arguments)):
                yield "tool_call", text


def _strings(value: object) -> Iterator[str]:
    """Keys and texts of a JSON value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in cast(dict[str, object], value).items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in cast(list[object], value):
            yield from _strings(inner)


# templates trim and indent texts, and escape them in JSON or as Python writes them
_LAYOUT = str.maketrans("", "", " \t\r\n\\'\"")


def _is_written(part: str, text: str) -> bool:
    """Check if a part stands in a text as it is, escaped, or laid out anew."""
    part = part.strip()
    if not part or part in text:
        return True
    text_without_layout = text.translate(_LAYOUT)
    spellings = (part, json.dumps(part, ensure_ascii=False), json.dumps(part), repr(part))
    return any(spelling.translate(_LAYOUT) in text_without_layout for spelling in spellings)


# -- the stand-in of a shape -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _CallShape:
    """Shape of a tool call."""

    has_arguments: bool
    has_id: bool


@dataclass(frozen=True, slots=True)
class _MessageShape:
    """Shape of a message: the parts that it has, whatever their texts.

    Attributes:
        answers: for a result, index of its call among all calls of the conversation; -1 if its id
            belongs to none, None without an id.
    """

    role: Role | JudgedRole
    has_text: bool
    reasons: bool
    calls: tuple[_CallShape, ...]
    answers: int | None
    has_name: bool
    trained: bool


@dataclass(frozen=True, slots=True)
class _Shape:
    """Shape of a conversation; all conversations of a shape lose the same parts."""

    messages: tuple[_MessageShape, ...]
    has_tools: bool

    @staticmethod
    def of(example: Example) -> _Shape:
        """Read the shape of a record."""
        index_of_id: dict[str, int] = {}
        calls = itertools.chain.from_iterable(m.tool_calls for m in example.messages)
        for index, call in enumerate(calls):
            if call.id:
                index_of_id[call.id] = index
        shapes: list[_MessageShape] = []
        for message in example.messages:
            answers = None
            if message.tool_call_id is not None:
                answers = index_of_id.get(message.tool_call_id, -1)
            shapes.append(
                _MessageShape(
                    role=message.role,
                    has_text=bool(message.content.strip()),
                    reasons=message.reasons,
                    calls=tuple(
                        _CallShape(call.arguments != "{}", call.id is not None)
                        for call in message.tool_calls
                    ),
                    answers=answers,
                    has_name=message.name is not None,
                    trained=message.trained,
                )
            )
        return _Shape(tuple(shapes), example.tools is not None)

    def stand_in(self) -> Example:
        """Make a conversation of this shape with a unique word for every part."""
        words = (f"zq{k}x" for k in itertools.count())
        messages: list[Message] = []
        # names of all calls so far
        call_names: list[str] = []
        for shape in self.messages:
            text = next(words) if shape.has_text else ""
            reasoning = next(words) if shape.reasons and shape.role == "assistant" else None
            calls: list[ToolCall] = []
            for call in shape.calls:
                call_id = _call_id(len(call_names)) if call.has_id else None
                call_names.append(next(words))
                arguments = {next(words): next(words)} if call.has_arguments else {}
                calls.append(ToolCall(call_names[-1], json_text(arguments), call_id))
            answers = shape.answers
            tool_call_id = None
            name = "f" if shape.has_name else None
            if answers is not None:
                # an id that belongs to no call
                tool_call_id = "x"
                if 0 <= answers < len(call_names):
                    tool_call_id = _call_id(answers)
                    name = call_names[answers] if shape.has_name else None
            messages.append(
                Message(
                    shape.role,
                    text,
                    reasoning=reasoning,
                    tool_calls=tuple(calls),
                    tool_call_id=tool_call_id,
                    trained=shape.trained,
                    name=name,
                )
            )
        tools = _STAND_IN_TOOLS if self.has_tools else None
        return Example(tuple(messages), tools, id="", source="", license="", dialect="")


def _call_id(index: int) -> str:
    # nine alphanumeric characters: the strictest form of id that templates insist on
    return f"call{index:05d}"


_STAND_IN_TOOL = "zqtool"
_STAND_IN_TOOLS = json_text(
    [
        {
            "type": "function",
            "function": {
                "name": _STAND_IN_TOOL,
                "description": "Does it.",
                "parameters": {
                    "type": "object",
                    "properties": {"x": {"type": "string"}},
                    "required": ["x"],
                },
            },
        }
    ]
)


@functools.lru_cache(maxsize=8192)
def _losses_of_shape(template: ChatTemplate, shape: _Shape, every_step: bool) -> tuple[Loss, ...]:
    """Find what every conversation of a shape loses, by its stand-in."""
    stand_in = shape.stand_in()
    texts = _texts(stand_in, template, None, every_step)
    if texts is None:
        return ()
    lost: list[Loss] = []
    if shape.has_tools and not texts[0].holds(_STAND_IN_TOOL):
        lost.append(Loss("tools"))
    # within a message calls come first: the first kind names the reason of a drop
    unwritten = list(_unwritten(stand_in.messages, texts))
    lost += sorted(unwritten, key=lambda loss: (loss.message, loss.kind != "tool_call"))
    return tuple(dict.fromkeys(lost))


# -- declared tools -------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _losses_of_tools(template: ChatTemplate, tools: str) -> tuple[Loss, ...]:
    """Find out whether the template loses names, descriptions or choices of declared tools."""
    words: list[str] = []
    stand_ins = [_with_words(tool, words) for tool in tools_to_template(tools) or ()]
    try:
        text = template.text([{"role": "user", "content": "q"}], tools=stand_ins)
    except RenderError:
        # it needs more than names and texts; the shape has shown that it writes tools
        return ()
    return () if all(word in text for word in words) else (Loss("tool_details"),)


def _with_words(declaration: Any, words: list[str]) -> Any:
    """Put a unique word, added to `words`, for each name, description and choice of a schema."""

    def word(value: object) -> object:
        if not isinstance(value, str) or not value.strip():
            return value
        words.append(f"zq{len(words)}x")
        return words[-1]

    if not isinstance(declaration, dict):
        return declaration
    schema = dict(cast(dict[str, Any], declaration))
    if isinstance(schema.get("function"), dict):
        # keys beside it are no part of the tool
        return schema | {"function": _with_words(schema["function"], words)}
    for key in schema:
        if key in ("name", "description"):
            schema[key] = word(schema[key])
        elif key in ("parameters", "items"):
            schema[key] = _with_words(schema[key], words)
        elif key == "enum" and isinstance(schema[key], list):
            schema[key] = [word(choice) for choice in schema[key]]
    if isinstance(schema.get("properties"), dict):
        word_of_name = {name: word(name) for name in schema["properties"]}
        properties: dict[Any, Any] = {}
        for name, inner in schema["properties"].items():
            properties[word_of_name[name]] = _with_words(inner, words)
        schema["properties"] = properties
        if isinstance(schema.get("required"), list):
            schema["required"] = [word_of_name.get(name, name) for name in schema["required"]]
    return schema


# -- a remedy --------------------------------------------------------------------------------------


def serial_calls(example: Example) -> Example:
    """Put parallel calls one after the other, each followed by its result.

    assistant(text, calls 1 and 2), tool 1, tool 2  →  assistant(text, call 1), tool 1,
                                                       assistant(call 2), tool 2
    Results belong to calls by id, or else by order. Calls whose results are not all there stay, and
    a record without parallel calls is returned as it is.
    """
    messages: list[Message] = []
    position = 0
    while position < len(example.messages):
        message = example.messages[position]
        position += 1
        calls = message.tool_calls
        results = example.messages[position : position + len(calls)]
        is_answered = len(results) == len(calls) and all(r.role == "tool" for r in results)
        if len(calls) < 2 or not is_answered:
            messages.append(message)
            continue
        result_of_id = {result.tool_call_id: result for result in results}
        ids_match = len(result_of_id) == len(calls) and all(c.id in result_of_id for c in calls)
        step = message
        for call, result in zip(calls, results, strict=True):
            messages.append(replace(step, tool_calls=(call,)))
            messages.append(result_of_id[call.id] if ids_match else result)
            # text and trace stand before the first call
            step = replace(message, content="", reasoning=None)
        position += len(calls)
    if len(messages) == len(example.messages):
        return example
    return with_messages(example, messages)
