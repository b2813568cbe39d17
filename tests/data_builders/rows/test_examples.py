"""Every row comes out kept or dropped by name, and the report adds up; what meets a `where`."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from data_builders.rows.raw import Drop
from data_builders.rows.read import RowCounts, read_examples, refuse_unreadable
from data_builders.rows.where import unmet
from posttrain.config.load import validate
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError
from posttrain.records import Example
from tests.data_builders.small_rows import WEATHER, read_all, write_lines

GOOD: dict[str, Any] = {"prompt": "2+2?", "completion": "4", "reward": 1}
OPEN: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "###STOP###"},
    ]
}


def test_every_row_is_kept_or_dropped_by_name(tmp_path: Path) -> None:
    write_lines(tmp_path / "rows.jsonl", [GOOD, {**GOOD, "reward": 0}, {"text": "a", "reward": 1},
                                          {**GOOD, "completion": ""}, OPEN])  # fmt: skip
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"prompt": "2')
    config = SourceConfig(name="s", path="rows.jsonl", where={"reward": {"eq": 1}})
    report = RowCounts()
    items = list(read_examples(config, tmp_path, counts=report))
    dropped = [(item.reason, item.line) for item in items if isinstance(item, Drop)]
    assert dropped == [
        ("where", 2), ("unrecognised", 3), ("empty_answer", 4), ("where", 5), ("malformed_json", 6)
    ]  # fmt: skip
    assert report.rows_in == len(items) == report.kept + report.dropped.total() == 6
    assert report.dialects == {"prompt_completion": 1}
    assert items[0] == read_all(tmp_path, where={"reward": 1})[0]


def test_a_filtered_record_is_known_by_its_id(tmp_path: Path) -> None:
    row = {"messages": [
        {"role": "user", "content": "?"},
        {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}}]},
    ], "tools": [WEATHER]}  # fmt: skip
    write_lines(tmp_path / "rows.jsonl", [row])
    (dropped,) = read_all(tmp_path)
    (kept,) = read_all(tmp_path, filters={"unknown_tool": False})
    assert (dropped.reason, dropped.file, dropped.line) == ("unknown_tool", "rows.jsonl", 1)
    assert dropped.record_id == kept.id


def test_the_ending_is_trimmed_or_the_row_dropped(tmp_path: Path) -> None:
    write_lines(tmp_path / "rows.jsonl", [OPEN, {"messages": OPEN["messages"][:1]}, GOOD])
    report = RowCounts()
    config = SourceConfig(name="s", path="rows.jsonl")
    kept, none, whole = read_examples(config, tmp_path, counts=report)
    assert [message.content for message in kept.messages] == ["2+2?", "4"]
    assert none.reason == "no_assistant"
    assert isinstance(whole, Example)
    assert report.trimmed_rows == 1
    first = read_all(tmp_path, ending="drop")[0]
    assert first.reason == "ends_without_assistant"


def test_licenses(tmp_path: Path) -> None:
    write_lines(tmp_path / "rows.jsonl", [{**GOOD, "license": "cc-by-4.0"}, GOOD])
    own, default = read_all(tmp_path, license="MIT", license_field="license")
    assert (own.license, default.license) == ("cc-by-4.0", "MIT")
    assert own.id == default.id
    settings: dict[str, Any] = {"license": "MIT", "license_field": "license", "allowed": ["mit"]}
    refused, passed = read_all(tmp_path, **settings)
    assert (refused.reason, refused.record_id) == ("license", own.id)
    assert passed == default


def test_metadata_is_what_the_recipe_names(tmp_path: Path) -> None:
    info = {"task": "sum", "n": None}
    write_lines(tmp_path / "rows.jsonl", [{**GOOD, "info": info, "x": 1}, {**GOOD, "rare": 1}])
    example, _ = read_all(tmp_path, metadata=("reward", "info.task", "info.n", "rare"))
    assert json.loads(example.metadata) == {"reward": 1, "task": "sum", "n": None}


def test_a_wrong_field_a_where_that_no_row_meets_and_a_missing_file(tmp_path: Path) -> None:
    write_lines(tmp_path / "rows.jsonl", [GOOD, {**GOOD, "reward": 0}])
    named: list[dict[str, Any]] = [{"where": {"rewrad": 1}}, {"metadata": ("rewrad",)}]
    for names in (*named, {"fields": {"input": "rewrad"}}, {"license_field": "rewrad"}):
        with pytest.raises(ConfigError, match=r"'rewrad', which none of 2 rows has.*mean 'reward'"):
            read_all(tmp_path, **names)
    with pytest.raises(ConfigError, match=r"none of 2 rows \(reward is 1, 0\)"):
        read_all(tmp_path, where={"reward": 2})
    # missing files are known before the first row
    with pytest.raises(ConfigError):
        read_examples(SourceConfig(name="s", path="rowz.jsonl"), tmp_path)


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    def peak(rows: int) -> int:
        write_lines(tmp_path / "rows.jsonl", ({**GOOD, "x": "y" * 2000} for _ in range(rows)))
        tracemalloc.start()
        config = SourceConfig(name="s", path="rows.jsonl", where={"reward": {"eq": 1}})
        kept = sum(isinstance(item, Example) for item in read_examples(config, tmp_path))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert kept == rows
        return size

    peak(10)  # first-time imports and caches
    assert peak(2000) < peak(50) + 500_000  # the 2,000 rows are 4 MB of text


@pytest.mark.parametrize(
    ("row", "dialect", "names"),
    [
        (OPEN, "alpaca", r"has the keys messages; it fits openai and inline_think; .*not alpaca"),
        ({"title": "a", "body": "b"}, None, r"has the keys title, body; it fits no dialect"),
    ],
)
def test_rows_of_another_dialect_are_told_which_would_fit(tmp_path: Path, row, dialect, names):
    write_lines(tmp_path / "rows.jsonl", [row, row])
    config = SourceConfig(name="s", path="rows.jsonl", dialect=dialect)
    with pytest.raises(ConfigError, match=names):
        refuse_unreadable(config, tmp_path)
    write_lines(tmp_path / "rows.jsonl", [row, {"instruction": "a", "output": "b"}])
    refuse_unreadable(config, tmp_path)  # one that can be read is enough


def test_a_hub_id_out_of_reach_is_refused_before_anything_heavy_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = SourceConfig(name="s", hub="org/chat", revision="0a" * 20, split="train")
    with pytest.raises(ConfigError, match=r"source 's': .*HF_HUB_OFFLINE is set: .* local path"):
        refuse_unreadable(config, tmp_path)


def test_a_file_of_objects_over_several_lines_is_refused_with_what_to_do(tmp_path: Path) -> None:
    config = SourceConfig(name="s", path="rows.json")
    (tmp_path / "rows.json").write_text(json.dumps(GOOD, indent=1) * 2)
    with pytest.raises(ConfigError, match=r"none of its first \d rows .*rows\.json:1: .*jq -c"):
        refuse_unreadable(config, tmp_path)
    (tmp_path / "rows.json").write_text("{\n" + json.dumps(GOOD))
    refuse_unreadable(config, tmp_path)


ROW = {
    "reward": 1.0, "label": True, "info": {"task": "a", "n": [1]}, "odd name": 3, "from": "x",
    "score": "0.5", "nothing": None, "a.b": 7,
}  # fmt: skip


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ({"reward": 1}, None),
        ({"label": True, "reward": {"ge": 1, "le": 1}}, None),
        ({"info.task": ["a", "b"]}, None),
        ({"info.task": {"not_in": ["c"]}}, None),
        ({"odd name": {"ge": 3, "lt": 3.5}}, None),
        ({"from": {"ne": "y", "gt": "w"}}, None),
        ({"nothing": {"exists": False}, "missing": {"exists": False}}, None),
        ({"a.b": 7, "score": {"exists": True}}, None),
        ({"score": [0.5, "0.5"]}, None),
        ({"reward": 0}, "where"),
        ({"reward": 1, "label": False}, "where"),
        ({"info.task": {"ne": "a"}}, "where"),
        # what is missing or null meets nothing but exists: false
        *(({"missing": test}, "where") for test in (1, {"ne": 1}, {"not_in": [1]}, {"exists": True})),
        ({"nothing": {"lt": 1}}, "where"),
        ({"info.x": 1}, "where"),
        ({"score": {"exists": False}}, "where"),
        # text, numbers and lists do not compare
        ({"score": {"ge": 0.5}}, "where_type"),
        ({"score": 0.5}, "where_type"),
        ({"reward": "1"}, "where_type"),
        ({"info.n": [1]}, "where_type"),
        ({"info": {"ne": 1}}, "where_type"),
    ],
)  # fmt: skip
def test_what_meets_a_condition_and_what_does_not(where: dict[str, Any], why: str | None) -> None:
    conditions = SourceConfig(name="s", path="s", where=where).where
    drop = unmet(conditions or {}, ROW)
    reason = None if drop is None else drop.reason
    assert reason == why


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ({}, "where is a mapping"),
        ({"a": None}, "a: eq takes a text"),
        ({"a": []}, "a: in takes a list"),
        ({"a": {}}, "no row can meet"),
        ({"a": {"in": "b"}}, "in takes a list"),
        ({"a": {"ge": True}}, "ge takes a number"),
        ({"a": {"exists": 1}}, "exists takes true"),
        ({"a": {"exists": False, "eq": 1}}, "no row can meet"),
        ({"a": {"eq": [1]}}, "eq takes a text"),
        ({"a": {"gte": 1}}, "did you mean 'ge'"),
        ({"a": {"notin": [1]}}, "did you mean 'not_in'"),
        ("reward == 1", "docs/reference/renamed.md"),
    ],
)
def test_refuses_what_no_row_can_meet(where: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        validate({"name": "s", "path": "s", "where": where}, SourceConfig, where="recipe")


def test_names_without_end_that_are_not_read_are_counted_together() -> None:
    counts = RowCounts()
    for number in range(150):
        counts.note_unread({"level": 3, f"key {number}": "a"})
    assert counts.unread["level"] == (150, "3")
    assert counts.unread["(columns and keys beyond these)"][0] == 51
    assert len(counts.unread) == 101
