"""Figures of repetition in rows."""

from __future__ import annotations

from data_builders.dedup.columns import shingles
from data_builders.synthesis.variety import near_duplicates
from posttrain.records import Example, Message, make_example


def example(number: int, ending: str) -> Example:
    """Conversation whose first half all examples share."""
    shared = " ".join(f"word{k} of the template" for k in range(30))
    filled = " ".join(f"value {number} and {number * k}" for k in range(30))
    messages = [Message("user", f"{shared} {filled} {ending}"), Message("assistant", f"{filled}")]
    return make_example(messages, source="test", dialect="openai")


def test_near_duplicates_are_found_among_many_rows_of_one_template():
    examples = [example(number, "one") for number in range(2, 62)]
    assert near_duplicates(shingles(examples)) == 0
    edited = [example(number, "another ending") for number in range(2, 62, 6)]
    assert near_duplicates(shingles([*examples, *edited])) == 10
