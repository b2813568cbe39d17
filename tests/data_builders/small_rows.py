"""Small rows and records for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from data_builders.dialects import Conversation, RowProblem, read_row
from data_builders.rows.read import read_examples
from posttrain.config.source import SourceConfig
from posttrain.records import Example, Message, ToolCall, make_example

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CALL: dict[str, Any] = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
}


def read(row: dict[str, Any], **settings: Any) -> tuple[str, Conversation]:
    """The dialect and conversation of one row."""
    return read_row(row, SourceConfig(name="s", path="s.jsonl", **settings))


def problem(row: dict[str, Any], **settings: Any) -> RowProblem:
    """What a row is refused for."""
    with pytest.raises(RowProblem) as caught:
        read(row, **settings)
    return caught.value


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """A JSONL file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_all(
    folder: Path, *, path: str = "rows.jsonl", allowed: list[str] | None = None, **settings: Any
) -> list[Any]:
    """Everything that becomes of a file's rows."""
    config = SourceConfig(name="s", path=path, **settings)
    return list(read_examples(config, folder, allowed_licenses=allowed))


def chat(*turns: Message, tools: list[dict[str, Any]] | None = None) -> Example:
    """A record."""
    text = None if tools is None else json.dumps(tools)
    return make_example(turns, tools=text, source="s", dialect="openai")


def user(text: str = "Weather in Oslo?") -> Message:
    """A user turn."""
    return Message("user", text)


def answer(text: str = "It rains.", **more: Any) -> Message:
    """An assistant turn."""
    return Message("assistant", text, **more)


def calls(*names: str, arguments: str = '{"city":"Oslo"}') -> Message:
    """An assistant turn that calls tools, with ids c0, c1, …"""
    made = (ToolCall(name, arguments, f"c{i}") for i, name in enumerate(names))
    return Message("assistant", tool_calls=tuple(made))


def result(call_id: str | None = "c0", *, name: str | None = None) -> Message:
    """A tool's answer."""
    return Message("tool", "rain", tool_call_id=call_id, name=name)
