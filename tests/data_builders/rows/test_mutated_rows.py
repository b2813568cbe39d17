"""Rows that something happened to: whatever they hold, they are kept or dropped, never a crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_builders.rows.examples import read_examples
from data_builders.rows.raw import Dropped
from data_builders.rows.read import RowCounts
from posttrain.config.source import SourceConfig
from posttrain.records import Example, example_from_row, example_to_row
from tests.data_builders.small_rows import CALL, WEATHER

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
    {"role": "assistant", "content": None, "reasoning_content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "rain"},
    {"role": "assistant", "content": "<think>rain</think>It rains."},
]
TURNS = [
    {"from": "human", "value": "Weather?"},
    {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Oslo"}}'},
    {"from": "observation", "value": "rain"},
    {"from": "gpt", "value": "It rains."},
]
SEEDS: list[dict[str, Any]] = [
    {"messages": MESSAGES, "tools": [WEATHER]},
    {"conversations": TURNS, "tools": json.dumps([WEATHER]), "system": "Be brief."},
    {"instruction": "Add.", "input": "2 2", "output": "4", "history": [["Hi", "Hello"]]},
    {"prompt": "2+2?", "completion": "<think>2</think>4", "reasoning_content": None},
    {"prompt": MESSAGES[:2], "chosen": MESSAGES[2:], "rejected": [MESSAGES[4]]},
    {"chosen": "\n\nHuman: 2+2?\n\nAssistant: 4", "rejected": "\n\nHuman: 2+2?"},
]
NAMES = st.sampled_from(
    [
        "role",
        "content",
        "name",
        "arguments",
        "type",
        "function",
        "value",
        "$ref",
        "properties",
        "required",
        "enum",
        "minimum",
        "multipleOf",
        "pattern",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["", "<think>", "</think>", "{}", "[", "assistant", "object", "dict", "("]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside a row."""
    found = [path] if path else []
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            found += paths(item, (*path, key))
    return found


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A sound row with up to three places overwritten, removed or added to."""
    row = json.loads(json.dumps(draw(st.sampled_from(SEEDS))))
    for _ in range(draw(st.integers(1, 3))):
        # deep places first: a row whose only list is gone has little left to go wrong
        choices = sorted(paths(row), key=len, reverse=True)
        if not choices:
            break
        *way, last = draw(st.sampled_from(choices))
        parent = row
        for key in way:
            parent = parent[key]
        if draw(st.booleans()):
            parent[last] = draw(VALUES)
        elif isinstance(parent, dict):
            del parent[last]
            parent[draw(NAMES)] = draw(VALUES)
        else:
            parent.insert(last, draw(VALUES))
    return row


@settings(
    max_examples=400, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(mutated())
def test_a_mutated_row_is_kept_or_dropped(tmp_path: Path, row: dict[str, Any]) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    report = RowCounts()
    config = SourceConfig(name="s", path="rows.jsonl", metadata=("label",))
    (item,) = read_examples(config, tmp_path, counts=report)
    assert report.rows_in == report.kept + report.dropped.total() == 1
    if isinstance(item, Dropped):
        assert (item.file, item.line) == ("rows.jsonl", 1)
        assert item.reason.isidentifier()
        assert item.detail.encode("utf-8")
    else:
        assert isinstance(item, Example)
        assert item.messages[-1].role == "assistant"
        assert all(isinstance(message.content, str) for message in item.messages)
        calls = [call for message in item.messages for call in message.tool_calls]
        assert all(isinstance(json.loads(call.arguments), dict) for call in calls)
        stored = json.loads(json.dumps(example_to_row(item)))
        assert example_from_row(stored) == item


@settings(max_examples=200, deadline=None, derandomize=True, database=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(st.lists(st.binary(max_size=40), max_size=5))
def test_any_bytes_are_bad_rows_at_worst(tmp_path: Path, lines: list[bytes]) -> None:
    content = b"\n".join(lines)
    (tmp_path / "rows.jsonl").write_bytes(content)
    items = list(read_examples(SourceConfig(name="s", path="rows.jsonl"), tmp_path))
    assert len(items) == sum(1 for line in content.split(b"\n") if line.strip())
    assert all(isinstance(item, Dropped) for item in items)
