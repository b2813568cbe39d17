"""Patterns in the schemas of tools: matched in time that grows with the text and no faster."""

from __future__ import annotations

import json

import pytest

from data_builders.filters.schemas import validator, violation


def test_a_pattern_that_backtracks_for_ever_stops_nothing():
    """`re` would take longer than the sun has; RE2 takes a moment."""
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "(a+)+$"}}}
    checker = validator(json.dumps(schema))
    assert not isinstance(checker, str)
    assert violation(checker, {"x": "a" * 200 + "b"}) == f"x: '{'a' * 79} does not match '(a+)+$'"
    assert violation(checker, {"x": "b" + "a" * 200}) is None


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"properties": {"x": {"pattern": "^(?=.*[0-9]).{8}"}}}, {"x": "no digit"}),
        ({"patternProperties": {"^(a+)+$": {"type": "integer"}}, "additionalProperties": False},
         {"a" * 200 + "b": 1}),
    ],
)  # fmt: skip
def test_what_re2_has_no_word_for_is_not_checked(schema, arguments):
    checker = validator(json.dumps(schema))
    assert not isinstance(checker, str)
    assert violation(checker, arguments) is None
