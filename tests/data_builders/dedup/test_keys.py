"""What makes two conversations, or two prompts, the same."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from data_builders.dedup.columns import conversation_key, prompt_key
from posttrain.records import Message, make_example
from tests.data_builders.dedup.copies import TOOLS, chat, with_call


def test_layout_and_ids_do_not_count():
    one = with_call(3, call_id="call_1")
    other = with_call(3, call_id="x9", indent=2)
    assert one.id != other.id
    assert conversation_key(one) == conversation_key(other)
    assert prompt_key(one) == prompt_key(other)
    reordered = replace(one, tools=json.dumps(json.loads(TOOLS)[::-1], indent=1))
    assert conversation_key(reordered) == conversation_key(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a  b\n\nc ", "a b c"),
        ("caf\u00e9", "cafe\u0301"),
        ('{"b": 1, "a": [1, 2]}', '{\n "a": [1,2],\n "b": 1}'),
        ('{"a": "\\u00e9"}', '{"a": "é"}'),
    ],
)
def test_the_same_text(one: str, other: str):
    assert conversation_key(chat(one, "x")) == conversation_key(chat(other, "x"))
    assert conversation_key(chat("x", one)) == conversation_key(chat("x", other))
    assert conversation_key(chat("x", "y", reasoning=one)) == conversation_key(
        chat("x", "y", reasoning=other)
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 12+7?", "What is 12+8?"),
        ("What is 1 2?", "What is 12?"),
        ("Upper case", "upper case"),
        ("x²", "x2"),
        ('{"a": 1}', '{"a": 2}'),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
        ('[{"a": 1e999}]', "[]"),
        ("[" * 100_000 + "]" * 100_000, "[]"),
        ("\ud800", "\ud801"),
    ],
)
def test_another_text(one: str, other: str):
    assert conversation_key(chat(one, "x")) != conversation_key(chat(other, "x"))
    assert prompt_key(chat(one, "x")) != prompt_key(chat(other, "x"))


def test_the_prompt_is_what_system_and_user_say():
    one, other = chat("2+2?", "4"), chat("2+2?", "four", reasoning="2 and 2")
    assert prompt_key(one) == prompt_key(other)
    assert conversation_key(one) != conversation_key(other)
    assert prompt_key(replace(one, tools=TOOLS)) != prompt_key(one)
    turns = (Message("system", "Be brief."), *one.messages)
    assert prompt_key(make_example(turns, source="a", dialect="openai")) != prompt_key(one)
    longer = (*one.messages, Message("user", "3+3?"), Message("assistant", "6"))
    assert prompt_key(make_example(longer, source="a", dialect="openai")) != prompt_key(one)


def test_no_text_runs_over_into_the_next():
    assert conversation_key(chat("a", "b c")) != conversation_key(chat("a b", "c"))
    assert conversation_key(chat("q", "b", reasoning="a")) != conversation_key(chat("q", "a b"))
