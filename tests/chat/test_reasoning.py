"""Splitting, stripping and cutting reasoning traces."""

from __future__ import annotations

import pytest

from posttrain.chat.reasoning import (
    ThinkSplit,
    split_think,
    strip_reasoning,
    truncate_reasoning,
)
from posttrain.records import Message, make_example


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", ThinkSplit(None, "plain", None)),
        ("<think>\nr\n\nr\n</think>\n\na", ThinkSplit("r\n\nr", "a", None)),
        ("\n <think>r</think>a", ThinkSplit("r", "a", None)),
        ("<think></think>a", ThinkSplit(None, "a", None)),
        ("<think>\n\n</think>\n\na", ThinkSplit(None, "a", None)),
        ("<think>\r\nr\r\n</think>\r\n\r\na", ThinkSplit("r", "a", None)),
        ("<think>r", ThinkSplit(None, "<think>r", "unclosed_think")),
        ("r</think>a", ThinkSplit(None, "r</think>a", "unopened_think")),
        ("hm <think>r</think>a", ThinkSplit(None, "hm <think>r</think>a", "second_think")),
        ("<think>a<think>b</think>c</think>d",
         ThinkSplit(None, "<think>a<think>b</think>c</think>d", "nested_think")),
        ("<think>a</think>b<think>c</think>d",
         ThinkSplit(None, "<think>a</think>b<think>c</think>d", "second_think")),
    ],
)  # fmt: skip
def test_split_think(text, expected):
    assert split_think(text) == expected


def words(text: str) -> list[tuple[int, int]]:
    """Offsets of blank-led words: the shape a byte-level tokenizer gives."""
    spans, start = [], 0
    for i in range(1, len(text) + 1):
        if i == len(text) or text[i] == " ":
            spans.append((start, i))
            start = i
    return spans


def half_characters(text: str) -> list[tuple[int, int]]:
    return [span for i in range(len(text)) for span in [(i, i + 1)] * 2]


@pytest.mark.parametrize(
    ("trace", "budget", "offsets", "kept"),
    [
        ("one two three four", 2, words, "one two"),
        ("one two", 2, words, None),  # within the budget
        ("漢字", 3, half_characters, "漢"),  # never half a character
    ],
)
def test_truncation_keeps_exactly_the_budget(trace, budget, offsets, kept):
    assert truncate_reasoning(trace, budget=budget, offsets=offsets) == kept


def test_truncation_refuses_a_budget_of_nothing():
    with pytest.raises(ValueError, match="at least 1"):
        truncate_reasoning("a b", budget=0, offsets=words)


def test_stripping_keeps_answers_and_identity():
    record = make_example(
        [Message("user", "q"), Message("assistant", "a", reasoning="r")],
        source="t", dialect="openai",
    )  # fmt: skip
    stripped = strip_reasoning(record)
    assert stripped.reasoning_mode == "off"
    assert stripped.id == record.id
    assert [m.content for m in stripped.messages] == ["q", "a"]
