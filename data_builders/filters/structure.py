"""Structural filters: pure functions `Example → Drop | None`, one reason each, one table of them.

To add one: a function here, a line in `STRUCTURAL` at its place in the order, its switch in
`posttrain.config.filters.StructuralFilters`, a line in `docs/guides/dialects.md`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import re2
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from data_builders.dialects.columns import kind_of
from data_builders.dialects.reading import is_blank
from data_builders.rows.raw import Drop
from posttrain.chat.detect.declared import TYPE_NAMES
from posttrain.chat.reasoning import has_tags, split_think
from posttrain.config.filters import StructuralFilters
from posttrain.jsontext import first_error, load_json, schema_error, writable
from posttrain.records import Example, Message, Role, ToolCall, json_text

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


def empty_user_turn(example: Example) -> Drop | None:
    """A turn without text: what the user asked is not in the record."""
    index = first_empty(example.messages, "user")
    return None if index is None else Drop("empty_user_turn", f"message {index}: no text")


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
# a tag of any bracket with its name at the start of a text; Harmony and Gemma name a channel behind
_OPENING_TAG = re.compile(
    r"\s*(?:<\|?|\[|◁|【|⟨|\{)\s*([\w:.\-]{1,40})(?:\s[^<>]{0,200}?)?(\|?>|\]|▷|】|⟩|\})\s*([a-z]*)"
)
_TYPE = re.compile(r"\stype=[\"']?([\w\-]{1,40})")
_CLOSING_TAG = re.compile(r"(?:</\|?|\[/|◁/|<\|end_)\s*([\w:.\-]{1,40}?)\s*(?:\|?>|\]|▷)")
# a heading of a trace at the start, one of the answer behind it
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
        "think", "thinking", "thought", "thoughts", "reason", "reasoning", "reflection",
        "scratchpad", "analysis", "cot", "monologue", "deliberation", "rationale",
    }
)  # fmt: skip
_CHANNEL_TAGS = ("channel", "unused")


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
    """An assistant text with a trace in other tags than `<think>`, opened at its start or before.

    Kept, it would be a reasoning trace trained as the answer of a turn with reasoning off.
    """
    for index, message in enumerate(example.messages):
        if message.role != "assistant":
            continue
        if tag := _foreign_tag(message.content):
            detail = f"the text has a trace under {tag!r}; rewrite such traces with <think> tags"
            return Drop("foreign_think", f"message {index}: {detail}")
    return None


def _foreign_tag(text: str) -> str | None:
    """The tag of a trace that opens a text, or closes one that the prompt opened."""
    if opening := _OPENING_TAG.match(text):
        name, _, channel = opening.groups()
        is_channel = name.lower().startswith(_CHANNEL_TAGS) and channel in _TRACE_WORDS
        typed = _TYPE.search(opening.group())
        if is_channel or _names_trace(name) or (typed and _names_trace(typed.group(1))):
            return opening.group()[: opening.end(2 if not is_channel else 3)].strip()
    if text[:1] in "#*\n " and (heading := _TRACE_HEADING.match(text)):
        return heading.group().strip() if _ANSWER_HEADING.search(text, heading.end()) else None
    closing = _CLOSING_TAG.search(text)
    if closing and _names_trace(closing.group(1)) and f"<{closing.group(1)}" not in text:
        return closing.group()
    return None


def _names_trace(name: str) -> bool:
    words = _LETTERS.findall(name.lower())
    return not _TRACE_WORDS.isdisjoint(words) or kind_of("_".join(words)) == "reasoning"


# marks of chat templates, in the notations that most of them have
_MARK = (
    r"(?:<\|[A-Za-z][\w ]{1,40}\|>|<｜[^<>]{1,40}｜>|<(?i:bos|eos|unk|pad)>|<</?SYS>>|\[/?INST\]"
    r"|<(?:start|end)_of_turn>|<extra_id_\d>)"
)
# beside a blank or in quotes such a mark is spoken of
_STARTS_WITH_MARK = re.compile(
    rf"\s*(?:{_MARK}(?! )|\[INST\]|<s>\s*\[INST\]|<image>|<(video|audio)>(?!.*</\1>))", re.DOTALL
)
_ENDS_WITH_MARK = re.compile(
    rf"(?:(?<![ `'\"]){_MARK}|</s>|<(?i:eos)>|<(?:image|video|audio)>)\s*\Z"
)
_INNER_MARK = re.compile(rf"(?<![ `'\"(\[{{}}+]){_MARK}(?![ `'\".,;:)\]}}+])")
# what stands before a turn in transcripts; and a user's turn with the answer to it
_ROLE_PREFIXES = (
    "Assistant:", "ASSISTANT:", "### Assistant:", "###Assistant:", "### ASSISTANT:",
    "### Response:",
)  # fmt: skip
_ASKS_FOR_SCRIPT = re.compile(
    r"dialog|conversation|\bscript|role.?play|\bscene|\bskit\b|screenplay|transcript|interview"
    r"|Assistant:",
    re.IGNORECASE,
)
_SPEAKER = re.compile(r"^\W*([^\W\d_][\w .'’-]{0,30}?)\W*:", re.MULTILINE)
_ROLES_OF_TRANSCRIPTS = frozenset({"assistant", "human", "user"})
_TURNS = (
    ("\n\nHuman:", "\n\nAssistant:"),
    ("### Human:", "### Assistant:"),
    ("###Human:", "###Assistant:"),
    ("\nUSER:", "\nASSISTANT:"),
)


def template_markup(example: Example) -> Drop | None:
    """A text with marks of a chat template at an edge, or an answer that goes on with more turns.

    It was rendered once before. Kept, an answer would end on another model's end token, spelt out
    before the real one, or the questions of a user would be trained.
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
    """A mark of a template that a text starts or ends with."""
    if "<" not in text and "INST]" not in text:  # as most texts
        return None
    starts = text[:40].lstrip()[:1] in ("<", "[")
    if starts and (mark := _STARTS_WITH_MARK.match(text)):
        return mark.group()
    if text[-20:].rstrip()[-1:] not in (">", "]"):
        return None
    mark = _ENDS_WITH_MARK.search(text, max(0, len(text) - 100))
    if mark is None or (mark.group().strip() == "</s>" and "<s>" in text.lstrip()[3:]):
        return None  # the latter is HTML
    return mark.group()


def _inner_mark(text: str, question: str) -> str | None:
    """What shows inside an answer that more than one turn stands in it."""
    if text.lstrip().startswith(_ROLE_PREFIXES) and not _is_script(text, question):
        return text.partition(":")[0]
    if ("<|" in text or "<｜" in text) and (mark := _INNER_MARK.search(text)):
        return mark.group()
    if "Human:" not in text and "USER:" not in text:
        return None
    for question, answer in _TURNS:
        start = text.find(question)
        if start >= 0 and text.find(answer, start) >= 0:
            return question
    return None


def _is_script(text: str, question: str) -> bool:
    """Whether "Assistant:" is a part in a conversation that somebody wrote: the question speaks of
    one, or another name speaks twice."""
    if not text.lstrip().lower().startswith("assistant:"):
        return False
    if _ASKS_FOR_SCRIPT.search(question):
        return True
    speakers = Counter(name.lower() for name in _SPEAKER.findall(text))
    return any(times > 1 for name, times in speakers.items() if name not in _ROLES_OF_TRANSCRIPTS)


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
        if message.role == "assistant" and (written := _written_call(message.content, example)):
            beside = "beside declared tools" if example.tools is not None else "and declares none"
            detail = f"writes {written} as text {beside}, not in tool_calls"
            return Drop("tool_markup", f"message {index} {detail}")
        if example.tools is None and (
            MARKUP in message.content or MARKUP in (message.reasoning or "")
        ):
            return Drop("tool_markup", f"message {index} contains {MARKUP}, no tool is declared")
    return None


def _written_call(text: str, example: Example) -> str | None:
    """The call that an assistant's text spells out: in tags, as JSON or as Python."""
    call = None
    if "<" in text or "[" in text:
        signed = any(sign in text for sign in _CALL_SIGNS)
        call = _CALL_AS_TEXT.search(text) if signed else None
    if call and (example.tools is not None or not call.group().startswith(MARKUP)):
        return f"a {call.group().split()[0].rstrip('{[')}"
    first = text.lstrip()[:1]
    tag = _CALL_TAG.match(text) if first in ("<", "[") else None
    if tag and kind_of(tag.group(1)) == "calls" and tag.group().strip() != MARKUP:
        return f"a {tag.group().strip()}"
    if example.tools is None:
        return None
    names = declared(example.tools)
    fenced = _FENCE.match(text) if first == "`" else None
    if (first in ("[", "{") or fenced) and any(f'"{name}"' in text for name in names):
        try:
            value = load_json(fenced.group(1) if fenced else text)
        except ValueError:
            value = None
        calls = value if isinstance(value, list) else [value]
        if calls and all(isinstance(c, dict) and c.get("name") in names for c in calls):
            return "a call in JSON"
    python = _CALL_IN_PYTHON.match(text) if text[-20:].rstrip()[-1:] in (")", "]") else None
    return "a call in Python" if python and python.group(1) in names else None


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


# -- the schemas of declared tools ----------------------------------------------------------------
# Type names of other languages ("dict", "float") are read as JSON Schema's own, nothing is fetched
# from anywhere. A `pattern` is matched by RE2, in linear time; what RE2 has no word for and
# `patternProperties` are not checked.

_SUBSCHEMAS = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then",
               "else", "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions", "dependentSchemas")
_BY_PATTERN = ("patternProperties", "additionalProperties", "unevaluatedProperties")


@lru_cache(maxsize=1024)
def declared(tools: str) -> dict[str, str]:
    """Every declared tool's name and the JSON text of its parameters' schema."""
    found: dict[str, str] = {}
    for tool in json.loads(tools):
        function = tool["function"]
        found.setdefault(function["name"], json_text(function.get("parameters")))
    return found


def violation(checker: Draft202012Validator, arguments: Any) -> str | None:
    """One way in which arguments break the schema, if they do. Raises one of `UNUSABLE`."""
    if (error := first_error(checker.iter_errors(arguments))) is None:
        return None
    place = "/".join(str(part) for part in error.absolute_path)
    text = f"{place}: {error.message:.200}" if place else f"{error.message:.200}"
    # keys of the arguments appear in it, and they may hold half a surrogate pair
    return writable(text)


# what a schema that passes for one can still raise: a reference to nowhere, endless or ill-formed,
# a pattern that is no regular expression, a number beyond floats
UNUSABLE = (Unresolvable, RecursionError, re.error, ValueError, ArithmeticError)


@lru_cache(maxsize=4096)
def validator(schema_text: str) -> Draft202012Validator | str:
    """A validator of arguments, or why the schema cannot be used.

    Made only for tools that are called and kept, since checking a schema costs milliseconds.
    """
    parameters = json.loads(schema_text)
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, dict):
        return f"parameters is {parameters!r:.80}"
    try:
        schema = _standard(parameters)
        error = schema_error(Draft202012Validator, schema)
    except RecursionError:
        return "nested too deep"
    if error is not None:
        place = "/".join(str(part) for part in error.absolute_path)
        return f"{place}: {error.message:.200}"
    # an empty registry resolves references inside the schema and fetches none
    return _Checker(schema, registry=Registry())


def _pattern(
    _validator: Any, pattern: Any, instance: Any, _schema: Any
) -> Iterator[ValidationError]:
    """The keyword `pattern`."""
    if isinstance(instance, str) and isinstance(pattern, str) and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r:.80} does not match {pattern!r:.80}")


def _matches(pattern: str, text: str) -> bool:
    """Whether the pattern is found; True if RE2 cannot tell. Raises `re.error`: it is none."""
    try:
        return re2.search(pattern, writable(text), options=_OPTIONS) is not None
    except (re2.error, UnicodeEncodeError):
        re.compile(pattern)
        return True


_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


_Checker = validators.extend(Draft202012Validator, {"pattern": _pattern})


def _standard(schema: Any) -> Any:
    """The schema with JSON Schema's own type names, at every place where a schema may stand."""
    if not isinstance(schema, dict):
        return schema
    left_out = _BY_PATTERN if "patternProperties" in schema else ()
    result = {key: value for key, value in schema.items() if key not in left_out}
    for key, value in result.items():
        if key in _SUBSCHEMAS:
            result[key] = _standard(value)
        elif key in _LISTS and isinstance(value, list):
            result[key] = [_standard(item) for item in value]
        elif key in _NAMED and isinstance(value, dict):
            result[key] = {name: _standard(item) for name, item in value.items()}
    if "type" in result:
        names = result["type"] if isinstance(result["type"], list) else [result["type"]]
        types = [TYPE_NAMES.get(str(name).lower(), name) for name in names]
        result["type"] = types if isinstance(result["type"], list) else types[0]
        if None in types:
            del result["type"]
    return result


# -- all of them -----------------------------------------------------------------------------------

# the first that objects names the reason, so what breaks the others' sense comes first
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
