"""Conversations that a template is tried on before its output is trusted to be splittable.

    Probe(messages=(Message("user", "q0"), Message("assistant", "a0")), tools=())

Each stands for a shape that templates treat apart: a system message, earlier reasoning, tool loops,
parallel results, white space at the edges. A template may refuse some of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.records import Message, ToolCall

_TOOLS: tuple[Mapping[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look a word up.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string", "description": "the word"}},
                "required": ["word"],
            },
        },
    },
)


@dataclass(frozen=True, slots=True)
class Probe:
    """A conversation and the tools it declares."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()


def _user(text: str) -> Message:
    return Message("user", text)


def _says(text: str, reasoning: str | None = None) -> Message:
    return Message("assistant", text, reasoning=reasoning)


def _calls(word: str, text: str = "", reasoning: str | None = None, number: int = 0) -> Message:
    # nine alphanumeric characters: the strictest form of call id that templates insist on
    call = ToolCall("look_up", f'{{"word":"{word}"}}', id=f"call0000{number}")
    return Message("assistant", text, reasoning=reasoning, tool_calls=(call,))


def _result(text: str, number: int = 0) -> Message:
    return Message("tool", text, tool_call_id=f"call0000{number}", name="look_up")


_SYSTEM = Message("system", "Be brief.")

PROBES: tuple[Probe, ...] = (
    Probe((_user("q0"), _says("a0"))),
    Probe((_user("q0"), _says("a0"), _user("q1"), _says("a1"), _user("q2"), _says("a2"))),
    Probe((_SYSTEM, _user("q0"), _says("a0"), _user("q1"), _says("a1"))),
    Probe((_user(" q0\n"), _says("\n a0 \n"), _user("\nq1"), _says(" a1"))),
    Probe((_user("q0"), _says("a0", "r0"))),
    Probe((_SYSTEM, _user("q0"), _says("a0", "r0\n\nr00"), _user("q1"), _says("a1", "r1"))),
    Probe((_user("q"), _says("a0", "r0"), _user("q1"), _says("a1"), _user("q2"), _says("a2", "r"))),
    Probe((_user("q0"), _says("a0", " r0\n"), _user("q1"), _says("\na1", "\n r1 "))),
    Probe((_user("q0"), _says("a0"), _user("q1"), _says("a1", "r1"), _user("q2"), _says("a2"))),
    Probe((_user("q0"), _calls("w"), _result("found"), _says("a0")), _TOOLS),
    Probe(
        (_SYSTEM, _user("q0"), _calls("w", "let me see"), _result("found"), _says("a0"),
         _user("q1"), _calls("v"), _result("lost"), _calls("u"), _result("found"), _says("a1")),
        _TOOLS,
    ),
    Probe(
        (_user("q0"), _calls("w", "", "r0"), _result("found"), _says("a0", "r00"),
         _user("q1"), _calls("v", "so", "r1"), _result("lost"), _calls("u"), _result("found"),
         _says("a1", "r11"), _user("q2"), _says("a2", "r2")),
        _TOOLS,
    ),
    Probe(
        (_user("q0"),
         Message("assistant", "", reasoning="two", tool_calls=(
             ToolCall("look_up", '{"word":"a"}', id="call00000"),
             ToolCall("look_up", '{"word":"b"}', id="call00001"))),
         _result("A"), _result("B", 1), _says("a0", "done"), _user("q1"), _says("a1", "r1")),
        _TOOLS,
    ),
)  # fmt: skip
