"""The conditions of `where`: what meets them, what does not compare, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from data_builders.rows.where import unmet
from posttrain.config.load import validate
from posttrain.config.source import SourceConfig
from posttrain.errors import ConfigError

ROW = {
    "reward": 1.0, "label": True, "info": {"task": "a", "n": [1]}, "odd name": 3, "from": "x",
    "score": "0.5", "nothing": None, "a.b": 7,
}  # fmt: skip


def reason(where: dict[str, Any]) -> str | None:
    """Why the row is dropped."""
    conditions = SourceConfig(name="s", path="s", where=where).where
    assert conditions is not None
    why = unmet(conditions, ROW)
    return None if why is None else why[0]


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
    assert reason(where) == why


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"a": None},
        {"a": []},
        {"a": {}},
        {"a": {"in": "b"}},
        {"a": {"ge": True}},
        {"a": {"exists": 1}},
        {"a": {"exists": False, "eq": 1}},
        {"a": {"eq": [1]}},
    ],
)
def test_refuses_what_no_row_can_meet(where: Any) -> None:
    with pytest.raises(ValidationError):
        SourceConfig(name="s", path="s", where=where)


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ({"a": {"gte": 1}}, "did you mean 'ge'"),
        ({"a": {"notin": [1]}}, "did you mean 'not_in'"),
        ("reward == 1", "docs/reference/renamed.md"),
    ],
)
def test_names_the_operator_that_was_meant(where: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        validate({"name": "s", "path": "s", "where": where}, SourceConfig, where="recipe")
