"""The `where` language: what matches, what is unknown, what is refused."""

from __future__ import annotations

import pytest

from data_builders.rows.where import parse_where
from posttrain.errors import ConfigError

ROW = {
    "reward": 1.0, "label": True, "info": {"task": "a", "n": [1]}, "odd name": 3, "from": "x",
    "score": "0.5", "nothing": None, "a.b": 7,
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "reward == 1",
        "label == true",
        "label",
        "not label == false",
        "info.task in ['a', \"b\"]",
        "info.task not in []",
        "1 in info.n",
        "`odd name` >= 3 and `odd name` < 3.5",
        "from != 'y'",
        "nothing == null",
        "a.b == 7",
        "not (reward < 1 or label == false)",
        "missing == 2 or reward == 1",
        "reward == 1 or missing == 2",
        "-1 < reward",
        "score == '0.5'",
    ],
)
def test_matches(text: str) -> None:
    assert parse_where(text).matches(ROW) is None


@pytest.mark.parametrize(
    "text",
    ["reward == 0", "not label", "info.task == 'b'", "reward == 1 and label == false", "nothing"],
)
def test_does_not_match(text: str) -> None:
    assert parse_where(text).matches(ROW) == f"not {text}"


@pytest.mark.parametrize("text", ["missing == 1", "not missing == 1", "missing", "info.x == 1"])
def test_a_missing_field_matches_neither_way(text: str) -> None:
    assert "the row has no field" in str(parse_where(text).matches(ROW))


def test_values_that_do_not_compare_are_named() -> None:
    assert "cannot compare str >= float" in str(parse_where("score >= 0.5").matches(ROW))


def test_and_or_follow_kleene() -> None:
    assert parse_where("missing == 1 and reward == 0").matches(ROW) is not None
    assert "no field" in str(parse_where("missing == 1 and reward == 1").matches(ROW))


def test_names_its_fields() -> None:
    assert parse_where("a == 1 or b.c in [d] or a == 2").fields == ("a", "b.c", "d")


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("", 1),
        ("reward = 1", 7),
        ("reward ==", 10),
        ("(a", 3),
        ("a b", 3),
        ("1 < a < 2", 7),
        ("__import__('os')", 11),
        ("a in [1 2]", 9),
        ("a not b", 7),
        ("a == 'unclosed", 5),
        ("a == 1 or", 10),
        ("a == " + "9" * 5000, 6),
    ],
)
def test_points_at_what_it_cannot_read(text: str, column: int) -> None:
    with pytest.raises(ConfigError, match=f"column {column} "):
        parse_where(text)


@pytest.mark.parametrize("text", ["(" * 500 + "a", "a in " + "[" * 500])
def test_refuses_to_nest_without_bound(text: str) -> None:
    with pytest.raises(ConfigError, match="nested too deep"):
        parse_where(text)


def test_any_number_of_nots() -> None:
    assert parse_where("not " * 4000 + "reward == 1").matches(ROW) is None
