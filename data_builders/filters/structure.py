"""Structural filters: pure functions `Example → Drop | None`, one reason each, one table of them.

To add one: a function here, a line in `STRUCTURAL` at its place in the order, its switch in
`posttrain.config.filters.StructuralFilters`, a line in `docs/guides/dialects.md`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from data_builders.filters.schemas import UNUSABLE, declared, validator, violation
from data_builders.rows.raw import Drop
from posttrain.chat.reasoning import has_tags, split_think
from posttrain.config.filters import StructuralFilters
from posttrain.records import Example, Message, Role, ToolCall

_AFTER = {
    # a turn → the turns that may stand right before it ("" is the start)
    "system": ("",),
    "user": ("", "system", "assistant"),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}


def role_order(example: Example) -> Drop | None:
    """A system turn first if at all, then a user; answers after questions, results after calls."""
    before = ""
    for index, message in enumerate(example.messages):
        if before not in _AFTER[message.role]:
            place = f"after {before}" if before else "first"
            return Drop("role_order", f"message {index}: {message.role} {place}")
        before = message.role
    return None


def empty_answer(example: Example) -> Drop | None:
    """An assistant turn with neither text nor calls; a trace alone is no answer."""
    for index, message in enumerate(example.messages):
        if message.role == "assistant" and not message.tool_calls and is_blank(message.content):
            detail = "a trace without an answer" if message.reasons else "no text and no call"
            return Drop("empty_answer", f"message {index}: {detail}")
    return None


def first_empty(messages: Sequence[Message], role: Role) -> int | None:
    """Which turn of a role has no text, if one has none."""
    return next((i for i, m in enumerate(messages) if m.role == role and is_blank(m.content)), None)


def empty_turn(example: Example, *, role: Role) -> Drop | None:
    """A turn without text: what the user asked or the system said is not in the record."""
    index = first_empty(example.messages, role)
    return None if index is None else Drop(f"empty_{role}_turn", f"message {index}: no text")


# characters of no width, which `str.strip` keeps: joiners, marks of direction, the byte-order mark
_NO_WIDTH = "\u00ad\u034f\u061c\u180e\u200b\u200c\u200d\u200e\u200f\u2060\u2061\u2062\u2063\ufeff"
_BLANK = _NO_WIDTH + "".join(c for c in map(chr, range(0x3001)) if c.isspace())


def is_blank(text: str) -> bool:
    """Whether a text shows nothing: white space and characters of no width alone."""
    return not text.strip(_BLANK)


def bad_unicode(example: Example) -> Drop | None:
    """Text with half a surrogate pair: no tokenizer or file can hold it."""
    for place, text in _texts(example):
        try:
            if text is not None and not text.isascii():  # which costs nothing to know
                text.encode("utf-8")
        except UnicodeEncodeError as error:
            return Drop("bad_unicode", f"{place}: {error.reason} at character {error.start}")
    return None


def _texts(example: Example) -> Iterator[tuple[str, str | None]]:
    """All text of a record, with its message or another place."""
    for index, message in enumerate(example.messages):
        place = f"message {index}"
        for text in (message.content, message.reasoning, message.tool_call_id, message.name):
            yield place, text
        for call in message.tool_calls:
            yield place, f"{call.name}{call.arguments}{call.id}"
    for name in ("tools", "metadata", "license"):
        yield name, getattr(example, name)


_THINK_PROBLEMS = {  # of `split_think`, with the drop reason
    "unclosed_think": ("unclosed_think", "an opening tag without its closing one"),
    "unopened_think": (
        "unclosed_think", "a closing tag without its opening one (see prefilled_think)"
    ),
    "nested_think": ("nested_think", "a trace inside a trace"),
    "second_think": ("nested_think", "a trace after the start of the text"),
}  # fmt: skip
_FOREIGN = (
    "<|begin_of_thought|>", "<thinking>", "<thought>", "<reasoning>", "<reason>", "<reflection>",
    "<seed:think>", "[THINK]", "◁think▷", "<|channel|>analysis",
)  # fmt: skip


def misplaced_think(example: Example, *, reason: str) -> Drop | None:
    """A think tag without its partner (`unclosed_think`), or inside or after a trace."""
    for index, message in enumerate(example.messages):
        if message.role != "assistant":
            continue
        if reason == "nested_think" and has_tags(message.reasoning or ""):
            return Drop(reason, f"message {index}: a think tag inside the trace")
        if has_tags(message.content):
            problem = split_think(message.content).problem
            named, detail = _THINK_PROBLEMS.get(problem or "", ("", ""))
            if named == reason:
                return Drop(reason, f"message {index}: {detail}")
    return None


def foreign_think(example: Example) -> Drop | None:
    """An assistant text that opens with a trace in other tags than `<think>`.

    Kept, it would be a reasoning trace trained as the answer of a turn with reasoning off.
    """
    for index, message in enumerate(example.messages):
        if message.role == "assistant" and message.content.lstrip().startswith(_FOREIGN):
            tag = next(tag for tag in _FOREIGN if message.content.lstrip().startswith(tag))
            detail = f"the text opens with {tag}; rewrite such traces with <think> tags"
            return Drop("foreign_think", f"message {index}: {detail}")
    return None


MARKUP = "<tool_call>"
_CALL_AS_TEXT = re.compile(r"<tool_call>\s*(?:\{|<function=)")
_DECLARATION = "# Tools"


def undeclared_tools(example: Example) -> Drop | None:
    """Tool calls in a record that declares no tool at all."""
    if example.tools is None:
        for index, call in _calls(example):
            return Drop("undeclared_tools", f"message {index} calls {call.name!r}")
    return None


def unknown_tool(example: Example) -> Drop | None:
    """A call to a tool that is not among those declared."""
    if example.tools is None:
        return None
    tools = declared(example.tools)
    for index, call in _calls(example):
        if call.name not in tools:
            close = difflib.get_close_matches(call.name, tools, n=1)
            hint = f" (declared: {close[0]!r})" if close else ""
            return Drop("unknown_tool", f"message {index} calls {call.name!r}{hint}")
    return None


def tool_markup(example: Example) -> Drop | None:
    """Tool calls written as text: where no tool is declared (NVIDIA's check), or beside tools.

    A template writes declared tools with instructions for its own notation of calls; an answer
    that spells out another would contradict them.
    """
    if any(_DECLARATION in m.content for m in example.messages):
        return None
    for index, message in enumerate(example.messages):
        if example.tools is not None:
            if message.role == "assistant" and _CALL_AS_TEXT.search(message.content):
                detail = f"writes a {MARKUP} as text beside declared tools, not in tool_calls"
                return Drop("tool_markup", f"message {index} {detail}")
        elif MARKUP in message.content or MARKUP in (message.reasoning or ""):
            return Drop("tool_markup", f"message {index} contains {MARKUP}, no tool is declared")
    return None


def _calls(example: Example) -> Iterator[tuple[int, ToolCall]]:
    for index, message in enumerate(example.messages):
        for call in message.tool_calls:
            yield index, call


def failing_arguments(example: Example, *, reason: str) -> Drop | None:
    """Arguments that fail the schema their tool declares (`bad_arguments`), or a called tool whose
    schema is not a JSON Schema (`unusable_schema`); tools that nobody calls may have any."""
    tools = declared(example.tools) if example.tools is not None else {}
    for index, call in _calls(example):
        if call.name not in tools:
            continue  # other filters name it
        checker, problem, unusable = validator(tools[call.name]), None, None
        if isinstance(checker, str):
            unusable = checker
        else:
            try:
                problem = violation(checker, json.loads(call.arguments))
            except UNUSABLE as error:
                unusable = str(error)
        detail = unusable if reason == "unusable_schema" else problem
        if detail is not None:
            return Drop(reason, f"message {index}, call of {call.name!r}: {detail}")
    return None


_UNPAIRED = "unpaired_tool_result"


def unpaired_tool_result(example: Example) -> Drop | None:
    """A result without its call, or a call that the conversation goes on without answering."""
    open_calls: list[ToolCall] = []
    caller = -1
    for index, message in enumerate(example.messages):
        if message.role == "tool":
            call = _answered(message, open_calls)
            if call is None:
                return Drop(_UNPAIRED, f"message {index}: answers no open call")
            open_calls.remove(call)
            continue
        if open_calls:
            break
        open_calls, caller = list(message.tool_calls), index
    if open_calls and caller < len(example.messages) - 1:
        return Drop(_UNPAIRED, f"message {caller}: call of {open_calls[0].name!r} unanswered")
    return None


def _answered(result: Message, open_calls: list[ToolCall]) -> ToolCall | None:
    """The open call that a result answers."""
    for call in open_calls:
        if result.tool_call_id is not None and call.id is not None:
            if call.id == result.tool_call_id:
                return call
        elif result.name is None or call.name == result.name:
            return call
    return None


# the first that objects names the reason, so what breaks the others' sense comes first
STRUCTURAL: dict[str, Callable[[Example], Drop | None]] = {
    "bad_unicode": bad_unicode,
    "role_order": role_order,
    "unclosed_think": partial(misplaced_think, reason="unclosed_think"),
    "nested_think": partial(misplaced_think, reason="nested_think"),
    "foreign_think": foreign_think,
    "empty_answer": empty_answer,
    "empty_user_turn": partial(empty_turn, role="user"),
    "empty_system_turn": partial(empty_turn, role="system"),
    "undeclared_tools": undeclared_tools,
    "unknown_tool": unknown_tool,
    "unusable_schema": partial(failing_arguments, reason="unusable_schema"),
    "bad_arguments": partial(failing_arguments, reason="bad_arguments"),
    # calls as text leave their results unpaired: the cause before its effect
    "tool_markup": tool_markup,
    "unpaired_tool_result": unpaired_tool_result,
}

# these object to no record that declares no tools and has neither calls nor results
_OF_CALLS = {"undeclared_tools", "unknown_tool", "unusable_schema", "bad_arguments", _UNPAIRED}


def structural_drop(example: Example, switches: StructuralFilters) -> Drop | None:
    """The first objection of the filters that are switched on."""
    calls = any(m.tool_calls or m.role == "tool" for m in example.messages)
    for name, check in STRUCTURAL.items():
        if name in _OF_CALLS and not calls and example.tools is None:
            continue
        if getattr(switches, name) and (drop := check(example)) is not None:
            return drop
    return None
