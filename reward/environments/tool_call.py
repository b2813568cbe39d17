"""The environment "tool_call": the one next action, calls compared by name and arguments.

    {"environment": "tool_call", "question": "Weather in Bonn, in kelvin?", "tools": […],
     "gold": {"calls": [{"name": "weather", "arguments": {"city": "Bonn", "unit": "K"}}]}}
    {…, "gold": {"message": "For which city?", "mentions": [["city", "town"], ["?"]]}}

Parallel calls may come in any order. A call of the gold may have `accepts` (argument → all values
that are right) and `optional` (arguments that may be left out). An expected message is one without
calls that mentions one text of each group and none of `avoids`; where a group is `["?"]` it has to
ask for them: keywords and a question mark are no question. Refused are a message with nothing
to check, and an argument of prose that no message holds word by word.
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

PROSE = 6  # words from which an argument's text is prose
MOST_CALLS = 16  # more are wrong at once
LONGEST_MESSAGE = 2000  # characters: a text that mentions everything asks for nothing
_MISSING = object()
_BROKEN = frozenset({"half_call", "malformed_call", "argument_type"})
Fields = Mapping[str, Any]


class ToolCallEnvironment(RLVREnvironment):
    name = "tool_call"

    def malformed(self, prompt: Prompt) -> str | None:
        gold, tools = _gold(prompt), declared(prompt)
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
                prose = (_plain(text) for text in _texts(value) if len(text.split()) >= PROSE)
                if any(text not in conversation for text in prose):
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
        step, gold = completion.steps[-1], _gold(prompt)
        if broken := _BROKEN & set(step.parsed.problems):
            return Score(
                0.0,
                None,
                f"{NOT_IN_FORMAT}: calls that cannot be read: {', '.join(sorted(broken))}",
            )
        given: list[tuple[str, Any]] = []
        for call in completion.tool_calls[: MOST_CALLS + 1]:
            try:
                given.append((call.name, load_json(call.arguments)))
            except ValueError as error:
                return Score(0.0, call.name, f"arguments of {call.name}: {error}")
        shown = json_text([list(call) for call in given])[:200]
        if "message" in gold:
            return _judge_message(gold, step.parsed.answer, given)
        if len(given) != len(gold["calls"]):
            return Score(0.0, shown, f"{len(given)} calls, {len(gold['calls'])} expected")
        defaults = {name: _defaults(tool) for name, tool in declared(prompt).items()}
        if _matched(gold["calls"], given, defaults):
            return Score(1.0, shown, "the expected calls")
        return Score(0.0, shown, "other names or arguments than expected")


def _gold(prompt: Prompt) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(prompt.gold or "{}"))


def declared(prompt: Prompt) -> dict[str, Fields]:
    """Name → function of the prompt's tools."""
    tools: list[dict[str, Any]] = json.loads(prompt.tools or "[]")
    functions = [cast(Fields, tool.get("function", tool)) for tool in tools]
    return {function["name"]: function for function in functions}


def _defaults(tool: Fields) -> dict[str, Any]:
    parameters: Fields = tool.get("parameters") or {}
    properties: dict[str, Any] = parameters.get("properties") or {}
    return {
        name: schema["default"]
        for name, schema in properties.items()
        if isinstance(schema, dict) and "default" in schema
    }


def _judge_message(gold: Fields, text: str, given: Sequence[Any]) -> Score:
    if given:
        return Score(0.0, None, "a call where a message is expected")
    if len(text) > LONGEST_MESSAGE:
        return Score(0.0, None, f"a message of more than {LONGEST_MESSAGE} characters")
    problems = [
        f"none of {group}"
        for group in gold["mentions"]
        if not any(_mentions(text, str(one)) for one in group)
    ]
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
    """Whether a message asks for what it mentions: a sentence with a word of request and the
    mentioned one, or one beside it, ends with a question mark, and nothing was done meanwhile."""
    text = text.replace("’", "'")
    if _DONE.search(text):
        return False
    sentences = [part for part in re.split(r"(?<=[.!?])\s+|\n+", text) if re.search(r"\w", part)]
    wanted = [group for group in mentions if list(group) != ["?"]]
    for place, sentence in enumerate(sentences):
        near = " ".join(sentences[max(0, place - 1) : place + 1])
        named = all(any(_mentions(near, str(one)) for one in group) for group in wanted)
        if sentence.rstrip("*_\"' )").endswith("?") and named and _REQUEST.search(near):
            return True
    return False


def _mentions(text: str, word: str) -> bool:
    """Whether a text has a word or phrase, not as a part of another word."""
    plain = _plain(word)
    before = r"(?<!\w)" if plain[0].isalnum() else ""
    behind = r"(?!\w)" if plain[-1].isalnum() else ""
    return re.search(before + re.escape(plain) + behind, _plain(text)) is not None


def _matched(
    expected: Sequence[Fields],
    given: Sequence[tuple[str, Any]],
    defaults: Mapping[str, Mapping[str, Any]],
) -> bool:
    if not expected:
        return True
    first, *others = expected
    return any(
        _same_call(first, call, defaults.get(first["name"], {}))
        and _matched(others, [*given[:k], *given[k + 1 :]], defaults)
        for k, call in enumerate(given)
    )


def _same_call(gold: Fields, call: tuple[str, Any], defaults: Mapping[str, Any]) -> bool:
    name, arguments = call
    if name != gold["name"] or not isinstance(arguments, dict):
        return False
    given, expected = cast(dict[str, Any], arguments), cast(dict[str, Any], gold["arguments"])
    accepts: Mapping[str, list[Any]] = gold.get("accepts") or {}
    optional: set[str] = set(gold.get("optional") or ())
    for argument in given.keys() | expected.keys():
        value = given.get(argument, _MISSING)
        wanted = [expected[argument]] if argument in expected else []
        wanted += accepts.get(argument) or []
        if argument in defaults:  # left out, it has that value
            wanted += [] if wanted else [defaults[argument]]
            value = defaults[argument] if value is _MISSING else value
        if value is _MISSING and argument in optional:
            continue
        if value is _MISSING or not any(same_argument(one, value) for one in wanted):
            return False
    return True


def same_argument(gold: Any, given: Any) -> bool:
    """As `same_value`; white space and a final stop of texts do not count. Their case does: it
    tells paths, codes and ids apart."""
    return same_value(gold, given, plain=_spaced)


def same_content(gold: Any, given: Any) -> bool:
    """As `same_argument`, whatever the case: of texts that are copied from a document."""
    return same_value(gold, given, plain=_plain)


def _spaced(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).split()).rstrip(".") or text


def _plain(text: str) -> str:
    return _spaced(text).casefold()


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for inner in cast(dict[str, Any], value).values() for text in _texts(inner)]
    if isinstance(value, list):
        return [text for inner in cast(list[Any], value) for text in _texts(inner)]
    return [value] if isinstance(value, str) else []
