"""The environment "tool_call": the one next action, calls compared by name and arguments.

    {"environment": "tool_call", "question": "Weather in Bonn, in kelvin?", "tools": […],
     "gold": {"calls": [{"name": "weather", "arguments": {"city": "Bonn", "unit": "K"}}]}}
    {…, "gold": {"message": "For which city?", "mentions": [["city", "town"], ["?"]]}}

Parallel calls may come in any order. A call of the gold may have `accepts` (argument → further
right values) and `optional` (arguments that may be left out). An expected message has no calls,
mentions one text of each group and none of `avoids`; if a group is `["?"]` it has to ask for the
others: keywords and a question mark are no question. A row is refused if its message has nothing to
check, or if an argument is prose that no message contains word by word.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, cast

from posttrain.jsontext import load_json
from posttrain.records import NOT_IN_FORMAT, Score, json_text
from posttrain.rollouts import Completion, Prompt
from reward.environments.base import RLVREnvironment, Script, calls, same_value, says

PROSE_WORDS = 6  # a text argument of so many words is prose
MOST_CALLS = 16  # more calls are wrong without being compared
LONGEST_MESSAGE = 2000  # characters: a text that mentions everything asks for nothing
_MISSING = object()
_BROKEN = frozenset({"half_call", "malformed_call", "argument_type"})
Fields = Mapping[str, Any]


class ToolCallEnvironment(RLVREnvironment):
    """The next calls of tools, or the question for a missing argument."""

    name = "tool_call"

    def malformed(self, prompt: Prompt) -> str | None:
        gold = _gold(prompt)
        tools = declared(prompt)
        if not tools:
            return "no tools"
        if "message" in gold:
            return None if gold.get("mentions") else "an expected message with nothing to check"
        if not gold.get("calls"):
            return "gold has neither calls nor message"
        conversation = _plain("\n".join(m.content for m in prompt.messages))
        for call in gold["calls"]:
            if call["name"] not in tools:
                return f"gold calls {call['name']}, which is not declared"
            for name, value in call["arguments"].items():
                for text in _texts(value):
                    is_prose = len(text.split()) >= PROSE_WORDS
                    if is_prose and _plain(text) not in conversation:
                        return f"argument {name} is prose, which has no one right wording"
        return None

    def gold(self, prompt: Prompt) -> Script:
        gold = _gold(prompt)
        if "message" in gold:
            mentioned = " ".join(str(group[0]) for group in gold["mentions"])
            return says(gold["message"] or f"Which {mentioned}?")
        return calls(*((call["name"], call["arguments"]) for call in gold["calls"]))

    def wrong(self, prompt: Prompt) -> list[Script]:
        if "message" not in _gold(prompt):
            return [says("Done.")]
        return [says("OK."), calls((next(iter(declared(prompt))), {}))]

    async def score(self, prompt: Prompt, completion: Completion) -> Score:
        step = completion.steps[-1]
        gold = _gold(prompt)
        if broken := _BROKEN & set(step.parsed.problems):
            problem = f"{NOT_IN_FORMAT}: calls that cannot be read: {', '.join(sorted(broken))}"
            return Score(0.0, None, problem)
        actual_calls: list[tuple[str, Any]] = []
        for call in completion.tool_calls[: MOST_CALLS + 1]:
            try:
                actual_calls.append((call.name, load_json(call.arguments)))
            except ValueError as error:
                return Score(0.0, call.name, f"arguments of {call.name}: {error}")
        shown = json_text([list(call) for call in actual_calls])[:200]
        if "message" in gold:
            return _score_message(gold, step.parsed.answer, has_calls=bool(actual_calls))
        if len(actual_calls) != len(gold["calls"]):
            return Score(0.0, shown, f"{len(actual_calls)} calls, {len(gold['calls'])} expected")
        defaults = {name: _defaults(tool) for name, tool in declared(prompt).items()}
        if _same_calls(gold["calls"], actual_calls, defaults):
            return Score(1.0, shown, "the expected calls")
        return Score(0.0, shown, "other names or arguments than expected")


def _gold(prompt: Prompt) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(prompt.gold or "{}"))


def declared(prompt: Prompt) -> dict[str, Fields]:
    """The prompt's tools: name → declaration of the function."""
    tools: list[dict[str, Any]] = json.loads(prompt.tools or "[]")
    functions = [cast(Fields, tool.get("function", tool)) for tool in tools]
    return {function["name"]: function for function in functions}


def _defaults(tool: Fields) -> dict[str, Any]:
    """Default values that a tool's declaration states, by argument."""
    parameters: Fields = tool.get("parameters") or {}
    properties: dict[str, Any] = parameters.get("properties") or {}
    return {
        name: schema["default"]
        for name, schema in properties.items()
        if isinstance(schema, dict) and "default" in schema
    }


def _score_message(gold: Fields, text: str, *, has_calls: bool) -> Score:
    if has_calls:
        return Score(0.0, None, "a call where a message is expected")
    if len(text) > LONGEST_MESSAGE:
        return Score(0.0, None, f"a message of more than {LONGEST_MESSAGE} characters")
    problems = [f"none of {group}" for group in gold["mentions"] if not _mentions_any(text, group)]
    problems += [str(word) for word in gold.get("avoids") or () if _mentions(text, str(word))]
    if not problems and ["?"] in gold["mentions"] and not _asks(text, gold["mentions"]):
        return Score(0.0, text[:200], "no question for what is missing")
    if problems:
        return Score(0.0, text[:200], f"the message mentions {problems[0]}")
    return Score(1.0, text[:200], "a message that mentions what it has to")


_REQUEST = re.compile(
    r"\b(?:what|which|when|where|how (?:many|much|should|would)|whose|tell|give|provide|specify"
    r"|share|send|may i|need|(?:is|are|am|i'm) missing|let me know|have a|in mind)\b",
    re.IGNORECASE,
)
_DONE = re.compile(
    r"\b(?:done|i(?:'ve| have)? (?:just )?(?:used|set|sent|took|chose|booked|made|converted"
    r"|assumed)|(?:is|was|are|been) (?:booked|sent|set|done|made|converted))\b",
    re.IGNORECASE,
)


def _asks(text: str, mentions: Sequence[Sequence[Any]]) -> bool:
    """Tell whether a message asks for everything that it has to mention.

    Some sentence ends with a question mark; together with the sentence before it, it has a word of
    request and the mentions; and the message does not say that something was done meanwhile.
    """
    text = text.replace("’", "'")
    if _DONE.search(text):
        return False
    sentences = [part for part in re.split(r"(?<=[.!?])\s+|\n+", text) if re.search(r"\w", part)]
    groups = [group for group in mentions if list(group) != ["?"]]
    for index, sentence in enumerate(sentences):
        if not sentence.rstrip("*_\"' )").endswith("?"):
            continue
        with_previous = " ".join(sentences[max(0, index - 1) : index + 1])
        mentions_all = all(_mentions_any(with_previous, group) for group in groups)
        if mentions_all and _REQUEST.search(with_previous):
            return True
    return False


def _mentions_any(text: str, words: Sequence[Any]) -> bool:
    return any(_mentions(text, str(word)) for word in words)


def _mentions(text: str, word: str) -> bool:
    """Tell whether a text has a word or phrase, not as a part of another word."""
    plain = _plain(word)
    before = r"(?<!\w)" if plain[0].isalnum() else ""
    behind = r"(?!\w)" if plain[-1].isalnum() else ""
    return re.search(before + re.escape(plain) + behind, _plain(text)) is not None


def _same_calls(
    gold_calls: Sequence[Fields],
    actual_calls: Sequence[tuple[str, Any]],
    defaults: Mapping[str, Mapping[str, Any]],
) -> bool:
    """Tell whether equally many calls can be paired off with the gold's, in any order."""
    if not gold_calls:
        return True
    # backtracking: a gold call that accepts several values may match more than one
    gold_call = gold_calls[0]
    for index, call in enumerate(actual_calls):
        if _same_call(gold_call, call, defaults.get(gold_call["name"], {})):
            unmatched = [*actual_calls[:index], *actual_calls[index + 1 :]]
            if _same_calls(gold_calls[1:], unmatched, defaults):
                return True
    return False


def _same_call(gold: Fields, call: tuple[str, Any], defaults: Mapping[str, Any]) -> bool:
    name, arguments = call
    if name != gold["name"] or not isinstance(arguments, dict):
        return False
    actual = cast(dict[str, Any], arguments)
    expected = cast(dict[str, Any], gold["arguments"])
    accepts: Mapping[str, list[Any]] = gold.get("accepts") or {}
    optional: set[str] = set(gold.get("optional") or ())
    for argument in actual.keys() | expected.keys():
        value = actual.get(argument, _MISSING)
        right_values = [expected[argument]] if argument in expected else []
        right_values += accepts.get(argument) or []
        if argument in defaults:  # an argument that is left out has its default
            if not right_values:
                right_values = [defaults[argument]]
            if value is _MISSING:
                value = defaults[argument]
        if value is _MISSING and argument in optional:
            continue
        if value is _MISSING:
            return False
        if not any(same_argument(right_value, value) for right_value in right_values):
            return False
    return True


def same_argument(gold: Any, actual: Any) -> bool:
    """Compare two arguments as `same_value` does, up to white space and a final stop of texts.

    Case counts: it tells paths, codes and ids apart.
    """
    return same_value(gold, actual, plain=_spaced)


def same_content(gold: Any, actual: Any) -> bool:
    """Compare two values copied from a document: as `same_argument` does, ignoring case."""
    return same_value(gold, actual, plain=_plain)


def _spaced(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).split()).rstrip(".") or text


def _plain(text: str) -> str:
    return _spaced(text).casefold()


def _texts(value: Any) -> list[str]:
    """All texts in a JSON value, but for its keys."""
    if isinstance(value, str):
        return [value]
    inner_values: list[Any] = []
    if isinstance(value, dict):
        inner_values = list(cast(dict[str, Any], value).values())
    elif isinstance(value, list):
        inner_values = cast(list[Any], value)
    texts: list[str] = []
    for inner_value in inner_values:
        texts += _texts(inner_value)
    return texts
