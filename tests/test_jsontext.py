"""Nesting has one limit, however much room the stack has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from posttrain.jsontext import MAX_DEPTH, encode_json, jsonl_rows, load_json


def nested(depth: int, *, objects: bool) -> str:
    return '{"a":' * depth + "1" + "}" * depth if objects else "[" * depth + "]" * depth


@pytest.mark.parametrize("objects", [True, False])
def test_the_limit_is_the_same_for_reading_and_writing(objects):
    text = nested(MAX_DEPTH, objects=objects)
    assert json.loads(encode_json(load_json(text))) == json.loads(text)
    deeper = nested(MAX_DEPTH + 1, objects=objects)
    with pytest.raises(ValueError, match="nested too deep: lists and objects beyond 100 levels"):
        load_json(deeper)
    with pytest.raises(ValueError, match="nested too deep"):
        encode_json(json.loads(deeper))


def test_the_limit_holds_at_any_depth_of_the_stack():
    text = nested(MAX_DEPTH, objects=False)

    def down(frames: int) -> Any:
        return down(frames - 1) if frames else load_json(text)

    assert down(0) == down(400)
    with pytest.raises(ValueError, match="nested too deep"):
        load_json(nested(900, objects=True))


def test_many_brackets_are_no_depth():
    assert len(load_json("[" + ",".join(["[]"] * 1000) + "]")) == 1000
    assert load_json(json.dumps({"code": "[" * 5000})) == {"code": "[" * 5000}


def test_only_a_line_feed_ends_a_row():
    rows = [{"text": f"a{mark}b"} for mark in "\u2028\u2029\x85\x0b\x0c\x1c\r\n"]
    assert jsonl_rows("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)) == rows
    assert jsonl_rows("") == []
