"""Structural filters: pure functions `Example → Drop | None`, one drop reason each, in a table.

To add one: a function here, a line in `STRUCTURAL` at its place in the order, its switch in
`posttrain.config.filters.StructuralFilters`, a line in `docs/guides/dialects.md`.
"""

from __future__ import annotations

import difflib
import html
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache, partial

from data_builders.dialects.columns import kind_of
from data_builders.dialects.reading import is_blank
from data_builders.rows.raw import Drop
from posttrain.chat.reasoning import has_tags, split_think
from posttrain.config.filters import StructuralFilters
from posttrain.jsontext import load_json
from posttrain.records import Example, Message, Role, ToolCall, json_text

_ALLOWED_BEFORE = {  # role → roles that may stand right before it ("" is the start)
    "system": ("",),
    "user": ("", "system", "assistant"),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}

# data sets write one for a question that they may not pass on (OpenCodeReasoning: `"input": "-"`)
_DASHES = "-\u2013\u2014"


def role_order(example: Example) -> Drop | None:
    """Drop a conversation whose roles are out of order.

    The order is a system turn if any, a user, then answers after questions, results after calls.
    """
    previous = ""
    for index, message in enumerate(example.messages):
        if previous not in _ALLOWED_BEFORE[message.role]:
            position = f"after {previous}" if previous else "first"
            return Drop("role_order", f"message {index}: {message.role} {position}")
        previous = message.role
    return None


def empty_answer(example: Example) -> Drop | None:
    """Drop an assistant turn with neither text nor calls; a trace alone is no answer."""
    for index, message in enumerate(example.messages):
        if message.role == "assistant" and not message.tool_calls and is_blank(message.content):
            detail = "a trace without an answer" if message.reasons else "no text and no call"
            return Drop("empty_answer", f"message {index}: {detail}")
    return None


def first_empty(messages: Sequence[Message], role: Role) -> int | None:
    """Index of the first turn of a role without text, None where all have text."""
    for index, message in enumerate(messages):
        if message.role == role and is_blank(message.content.strip().strip(_DASHES)):
            return index
    return None


def empty_user_turn(example: Example) -> Drop | None:
    """Drop a user turn without text: the question is not in the record."""
    index = first_empty(example.messages, "user")
    return None if index is None else Drop("empty_user_turn", f"message {index}: no text")


def bad_unicode(example: Example) -> Drop | None:
    """Drop text with half a surrogate pair: no tokenizer or file can hold it."""
    for field, text in _texts(example):
        try:
            if text is not None and not text.isascii():  # isascii reads a flag of the string
                text.encode("utf-8")
        except UnicodeEncodeError as error:
            return Drop("bad_unicode", f"{field}: {error.reason} at character {error.start}")
    return None


def _texts(example: Example) -> Iterator[tuple[str, str | None]]:
    """Yield all texts of a record, each after the name of the message or field that holds it."""
    for index, message in enumerate(example.messages):
        field = f"message {index}"
        for text in (message.content, message.reasoning, message.tool_call_id, message.name):
            yield field, text
        for call in message.tool_calls:
            yield field, f"{call.name}{call.arguments}{call.id}"
    for name in ("tools", "metadata", "license"):
        yield name, getattr(example, name)


_UNOPENED = "a closing tag without its opening one (see prefilled_think)"
_THINK_PROBLEMS = {  # problem of `split_think` → drop reason, detail
    "unclosed_think": ("unclosed_think", "an opening tag without its closing one"),
    "unopened_think": ("unclosed_think", _UNOPENED),
    "nested_think": ("nested_think", "a trace inside a trace"),
    "second_think": ("nested_think", "a trace after the start of the text"),
}
# A tag in any brackets at the start of a text. Harmony and Gemma write a channel's name behind it.
_OPENING_TAG = re.compile(
    r"\s*(?:<\|?|\[|◁|【|⟨|\{)\s*([\w:.\-]{1,40})(?:\s[^<>]{0,200}?)?(\|?>|\]|▷|】|⟩|\})\s*([a-z]*)"
)
_TYPE_ATTRIBUTE = re.compile(r"\stype=[\"']?([\w\-]{1,40})")
_CLOSING_TAG = re.compile(r"(?:</\|?|\[/|◁/|<\|end_)\s*([\w:.\-]{1,40}?)\s*(?:\|?>|\]|▷)")
# A trace may stand under a heading at the start, before a heading of the answer.
_TRACE_HEADING = re.compile(
    r"\s*(?:#{1,6} *|\*\*)(?:(?:my|inner|internal) )?"
    r"(?:think(?:ing)?(?: process)?|thoughts?(?: process)?"
    r"|monologue|chain of thought|scratchpad|思考过程|思考|推理过程)\W{0,4}\n",
    re.IGNORECASE,
)
_ANSWER_HEADING = re.compile(
    r"^ *(?:#{1,6} *|\*\*)(?:(?:my|the|final) )?"
    r"(?:answer|response|reply|output|最终回答|最终答案|回答|答案)\W{0,4}$",
    re.IGNORECASE | re.MULTILINE,
)
_LETTERS = re.compile(r"[^\W\d_]+")
_TRACE_WORDS = frozenset(
    {
        "think",
        "thinking",
        "thought",
        "thoughts",
        "reason",
        "reasoning",
        "reflection",
        "scratchpad",
        "analysis",
        "cot",
        "monologue",
        "deliberation",
        "rationale",
    }
)
_CHANNEL_TAGS = ("channel", "unused")


def misplaced_think(example: Example, *, reason: str) -> Drop | None:
    """Drop unpaired think tags (`unclosed_think`), or such in or after a trace (`nested_think`)."""
    for index, message in enumerate(example.messages):
        if message.role != "assistant":
            continue
        if reason == "nested_think" and has_tags(message.reasoning or ""):
            return Drop(reason, f"message {index}: a think tag inside the trace")
        if has_tags(message.content):
            problem = split_think(message.content).problem
            problem_reason, detail = _THINK_PROBLEMS.get(problem or "", ("", ""))
            if problem_reason == reason:
                return Drop(reason, f"message {index}: {detail}")
    return None


def foreign_think(example: Example) -> Drop | None:
    """Drop an answer with a trace in other tags than `<think>`, opened at its start or before.

    Kept, it would be a reasoning trace trained as the answer of a turn with reasoning off.
    """
    for index, message in enumerate(example.messages):
        if message.role != "assistant":
            continue
        if mark := _trace_mark(message.content):
            detail = f"the text has a trace under {mark!r}; rewrite such traces with <think> tags"
            return Drop("foreign_think", f"message {index}: {detail}")
    return None


def _trace_mark(text: str) -> str | None:
    """Tag or heading of a trace that a text begins with, or a closing tag that nothing opened."""
    # brackets of HTML's entities and of full width
    text = html.unescape(text).replace("\uff1c", "<").replace("\uff1e", ">")
    if opening := _OPENING_TAG.match(text):
        name, _, channel = opening.groups()
        is_channel = name.lower().startswith(_CHANNEL_TAGS) and channel in _TRACE_WORDS
        type_attribute = _TYPE_ATTRIBUTE.search(opening.group())
        has_trace_type = type_attribute is not None and _names_trace(type_attribute.group(1))
        if is_channel or _names_trace(name) or has_trace_type:
            tag_end = opening.end(3 if is_channel else 2)
            return opening.group()[:tag_end].strip()
    if text[:1] in "#*\n " and (heading := _TRACE_HEADING.match(text)):
        # without a heading of the answer behind it, the heading may be that of the answer itself
        has_answer = _ANSWER_HEADING.search(text, heading.end())
        return heading.group().strip() if has_answer else None
    closing = _CLOSING_TAG.search(text)
    if closing and _names_trace(closing.group(1)) and f"<{closing.group(1)}" not in text:
        return closing.group()
    return None


def _names_trace(name: str) -> bool:
    """True where the name of a tag is one of a reasoning trace."""
    words = _LETTERS.findall(name.lower())
    return not _TRACE_WORDS.isdisjoint(words) or kind_of("_".join(words)) == "reasoning"


# Marks of chat templates, in the notations that most of them have.
_MARK = (
    r"(?:<\|[A-Za-z][\w ]{1,40}\|>|<｜[^<>]{1,40}｜>|<(?i:bos|eos|unk|pad)>|<</?SYS>>|\[/?INST\]"
    r"|<(?:start|end)_of_turn>|<extra_id_\d>)"
)
# Beside a blank or in quotes a mark is mentioned, and was not written by a template.
_STARTS_WITH_MARK = re.compile(
    rf"\s*(?:{_MARK}(?! )|\[INST\]|<s>\s*\[INST\]|<image>|<(video|audio)>(?!.*</\1>))", re.DOTALL
)
_ENDS_WITH_MARK = re.compile(
    rf"(?:(?<![ `'\"]){_MARK}|</s>|<(?i:eos)>|<(?:image|video|audio)>)\s*\Z"
)
_INNER_MARK = re.compile(rf"(?<![ `'\"(\[{{}}+]){_MARK}(?![ `'\".,;:)\]}}+])")
# Prefixes of an assistant's turn in transcripts.
_ROLE_PREFIXES = (
    "Assistant:",
    "ASSISTANT:",
    "### Assistant:",
    "###Assistant:",
    "### ASSISTANT:",
    "### Response:",
)
_ASKS_FOR_SCRIPT = re.compile(
    r"dialog|conversation|\bscript|role.?play|\bscene|\bskit\b|screenplay|transcript|interview"
    r"|Assistant:",
    re.IGNORECASE,
)
_SPEAKER = re.compile(r"^\W*([^\W\d_][\w .'’-]{0,30}?)\W*:", re.MULTILINE)
_ROLES_OF_TRANSCRIPTS = frozenset({"assistant", "human", "user"})
# Prefixes of a user's turn and of the answer to it.
_TURN_PREFIXES = (
    ("\n\nHuman:", "\n\nAssistant:"),
    ("### Human:", "### Assistant:"),
    ("###Human:", "###Assistant:"),
    ("\nUSER:", "\nASSISTANT:"),
)


def template_markup(example: Example) -> Drop | None:
    """Drop a text with a template's marks at an edge, or an answer that goes on with more turns.

    Such a text has been rendered once before. Kept, an answer would end on another model's end
    token, spelt out before the real one, or the questions of a user would be trained.
    """
    for index, message in enumerate(example.messages):
        if message.role == "tool":
            continue
        mark = _edge_mark(message.content)
        if mark is None and message.role == "assistant":
            question = example.messages[index - 1].content if index else ""
            mark = _inner_mark(message.content, question)
        if mark is not None:
            detail = f"has {mark.strip():.60}, which chat templates and transcripts write"
            return Drop("template_markup", f"message {index} {detail}")
    return None


def _edge_mark(text: str) -> str | None:
    """Mark of a template that a text starts or ends with, None where there is none."""
    if "<" not in text and "INST]" not in text:  # most texts: the patterns below cost more
        return None
    starts_with_bracket = text[:40].lstrip()[:1] in ("<", "[")
    if starts_with_bracket and (mark := _STARTS_WITH_MARK.match(text)):
        return mark.group()
    if text[-20:].rstrip()[-1:] not in (">", "]"):
        return None
    mark = _ENDS_WITH_MARK.search(text, max(0, len(text) - 100))
    if mark is None:
        return None
    if mark.group().strip() == "</s>" and "<s>" in text.lstrip()[3:]:
        return None  # HTML's tag of struck-out text
    return mark.group()


def _inner_mark(text: str, question: str) -> str | None:
    """Mark or prefix inside an answer that shows more than one turn, None where there is none."""
    if text.lstrip().startswith(_ROLE_PREFIXES) and not _is_script(text, question):
        return text.partition(":")[0]
    if ("<|" in text or "<｜" in text) and (mark := _INNER_MARK.search(text)):
        return mark.group()
    if "Human:" not in text and "USER:" not in text:
        return None
    for user_prefix, assistant_prefix in _TURN_PREFIXES:
        start = text.find(user_prefix)
        if start >= 0 and text.find(assistant_prefix, start) >= 0:
            return user_prefix
    return None


def _is_script(text: str, question: str) -> bool:
    """True where "Assistant:" is a speaker of a conversation that somebody wrote.

    Then the question speaks of a conversation, or another speaker has two lines.
    """
    if not text.lstrip().lower().startswith("assistant:"):
        return False
    if _ASKS_FOR_SCRIPT.search(question):
        return True
    lines_by_speaker = Counter(name.lower() for name in _SPEAKER.findall(text))
    for speaker, lines in lines_by_speaker.items():
        if lines > 1 and speaker not in _ROLES_OF_TRANSCRIPTS:
            return True
    return False


MARKUP = "<tool_call>"
_CALL_AS_TEXT = re.compile(
    r"<tool_call>\s*(?:\{|<function=)|<function=[\w.\-]+>|<functioncall>\s*\{|<invoke name="
    r"|\[TOOL_CALLS\]\s*[\[{]"
)
_CALL_SIGNS = ("<tool_call>", "<function", "<invoke ", "[TOOL_CALLS]")
_FENCE = re.compile(r"\s*```\w*\n(.*)\n```\s*\Z", re.DOTALL)
_CALL_TAG = re.compile(r"\s*(?:<\|?|\[)\s*/?([\w\-]{4,40})\s*(?:\|?>|\])")
_CALL_IN_PYTHON = re.compile(r"\s*\[?\s*([A-Za-z_][\w.\-]{0,80})\(.*\)\s*\]?\s*\Z", re.DOTALL)
_DECLARATION = "# Tools"


def undeclared_tools(example: Example) -> Drop | None:
    """Drop tool calls in a record that declares no tool at all."""
    if example.tools is None:
        for index, call in _calls(example):
            return Drop("undeclared_tools", f"message {index} calls {call.name!r}")
    return None


def unknown_tool(example: Example) -> Drop | None:
    """Drop a call to a tool that is not declared."""
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
    """Drop tool calls written as text, unless a message declares tools in its own text.

    Without declared tools it is NVIDIA's check. Beside them, a template writes the tools with
    instructions for its own notation of calls; an answer that spells out another would contradict
    them.
    """
    if any(_DECLARATION in message.content for message in example.messages):
        return None
    for index, message in enumerate(example.messages):
        if message.role == "assistant" and (written := _written_call(message.content, example)):
            beside = "beside declared tools" if example.tools is not None else "and declares none"
            detail = f"writes {written} as text {beside}, not in tool_calls"
            return Drop("tool_markup", f"message {index} {detail}")
        has_markup = MARKUP in message.content or MARKUP in (message.reasoning or "")
        if example.tools is None and has_markup:
            return Drop("tool_markup", f"message {index} contains {MARKUP}, no tool is declared")
    return None


def _written_call(text: str, example: Example) -> str | None:
    """Description of the call that an assistant's text spells out in tags, as JSON or as Python."""
    tag = _call_tag(text, tools_declared=example.tools is not None)
    if tag is not None:
        return f"a {tag}"
    # without a declared name, JSON and Python are like any other text
    if example.tools is None:
        return None
    names = declared(example.tools)
    if _is_json_call(text, names):
        return "a call in JSON"
    if text[-20:].rstrip()[-1:] in (")", "]"):  # most texts: the pattern costs more
        python_call = _CALL_IN_PYTHON.match(text)
        if python_call and python_call.group(1) in names:
            return "a call in Python"
    return None


def _call_tag(text: str, *, tools_declared: bool) -> str | None:
    """Tag of a call in a text. Without declared tools `MARKUP` is left to the caller."""
    call = None
    if "<" in text or "[" in text:
        has_sign = any(sign in text for sign in _CALL_SIGNS)
        call = _CALL_AS_TEXT.search(text) if has_sign else None
    if call and (tools_declared or not call.group().startswith(MARKUP)):
        return call.group().split()[0].rstrip("{[")
    if text.lstrip()[:1] not in ("<", "["):
        return None
    tag = _CALL_TAG.match(text)
    if tag and kind_of(tag.group(1)) == "calls" and tag.group().strip() != MARKUP:
        return tag.group().strip()
    return None


def _is_json_call(text: str, names: Collection[str]) -> bool:
    """True if a text is JSON, fenced or not, of one or several calls of these tools."""
    first_character = text.lstrip()[:1]
    fenced = _FENCE.match(text) if first_character == "`" else None
    if first_character not in ("[", "{") and not fenced:
        return False
    if not any(f'"{name}"' in text for name in names):  # most texts: reading JSON costs more
        return False
    try:
        value = load_json(fenced.group(1) if fenced else text)
    except ValueError:
        return False
    calls = value if isinstance(value, list) else [value]
    if not calls:
        return False
    return all(isinstance(call, dict) and call.get("name") in names for call in calls)


def _calls(example: Example) -> Iterator[tuple[int, ToolCall]]:
    """Yield each call of a record, after the index of its message."""
    for index, message in enumerate(example.messages):
        for call in message.tool_calls:
            yield index, call


def failing_arguments(example: Example, *, reason: str) -> Drop | None:
    """Drop arguments that fail their tool's schema, or a call of a tool without a usable schema.

    The reasons are `bad_arguments` and `unusable_schema`. Schemas of tools that are not called are
    not checked.
    """
    tools = declared(example.tools) if example.tools is not None else {}
    for index, call in _calls(example):
        if call.name not in tools:
            continue  # other filters name it
        # 0.1 s to import, and most data call no tool
        from data_builders.filters.arguments import UNUSABLE, validator, violation

        checker = validator(tools[call.name])
        argument_problem = None
        schema_problem = None
        if isinstance(checker, str):
            schema_problem = checker
        else:
            try:
                argument_problem = violation(checker, json.loads(call.arguments))
            except UNUSABLE as error:
                schema_problem = str(error)
        detail = schema_problem if reason == "unusable_schema" else argument_problem
        if detail is not None:
            return Drop(reason, f"message {index}, call of {call.name!r}: {detail}")
    return None


_UNPAIRED = "unpaired_tool_result"


def unpaired_tool_result(example: Example) -> Drop | None:
    """Drop a result without its call, or a call that the conversation leaves unanswered."""
    open_calls: list[ToolCall] = []
    caller = -1
    for index, message in enumerate(example.messages):
        if message.role == "tool":
            call = _answered_call(message, open_calls)
            if call is None:
                return Drop(_UNPAIRED, f"message {index}: answers no open call")
            open_calls.remove(call)
            continue
        if open_calls:
            break
        open_calls = list(message.tool_calls)
        caller = index
    if open_calls and caller < len(example.messages) - 1:
        return Drop(_UNPAIRED, f"message {caller}: call of {open_calls[0].name!r} unanswered")
    return None


def _answered_call(result: Message, open_calls: list[ToolCall]) -> ToolCall | None:
    """First open call that a result answers, by id where both have one, else by name."""
    for call in open_calls:
        if result.tool_call_id is not None and call.id is not None:
            if call.id == result.tool_call_id:
                return call
        elif result.name is None or call.name == result.name:
            return call
    return None


@lru_cache(maxsize=1024)
def declared(tools: str) -> dict[str, str]:
    """Name of each declared tool → JSON text of the schema of its parameters."""
    schemas: dict[str, str] = {}
    for tool in json.loads(tools):
        function = tool["function"]
        schemas.setdefault(function["name"], json_text(function.get("parameters")))
    return schemas


# -- the table of filters --------------------------------------------------------------------------

# The first filter that objects names the reason, so faults that mislead later filters come first.
STRUCTURAL: dict[str, Callable[[Example], Drop | None]] = {
    "bad_unicode": bad_unicode,
    "role_order": role_order,
    "unclosed_think": partial(misplaced_think, reason="unclosed_think"),
    "nested_think": partial(misplaced_think, reason="nested_think"),
    "foreign_think": foreign_think,
    "template_markup": template_markup,
    "empty_answer": empty_answer,
    "empty_user_turn": empty_user_turn,
    "undeclared_tools": undeclared_tools,
    "unknown_tool": unknown_tool,
    "unusable_schema": partial(failing_arguments, reason="unusable_schema"),
    "bad_arguments": partial(failing_arguments, reason="bad_arguments"),
    # calls as text leave their results unpaired: the cause before its effect
    "tool_markup": tool_markup,
    "unpaired_tool_result": unpaired_tool_result,
}

# Filters that never object to a record without declared tools, calls and results.
_CALL_FILTERS = {"undeclared_tools", "unknown_tool", "unusable_schema", "bad_arguments", _UNPAIRED}


def structural_drop(example: Example, switches: StructuralFilters) -> Drop | None:
    """Drop of the first filter that objects, among those that are switched on."""
    uses_tools = example.tools is not None or any(
        message.tool_calls or message.role == "tool" for message in example.messages
    )
    for name, check in STRUCTURAL.items():
        if name in _CALL_FILTERS and not uses_tools:
            continue
        if getattr(switches, name) and (drop := check(example)) is not None:
            return drop
    return None
