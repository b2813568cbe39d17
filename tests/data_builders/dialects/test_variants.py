"""Rows as other projects' documentation writes them: read as they say, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from data_builders.rows.raw import Dropped, RawRow
from data_builders.rows.read import PlacedExample, examples_of
from posttrain.config.source import SourceConfig
from posttrain.jsontext import load_json
from posttrain.records import message_to_row
from tests.data_builders.small_rows import WEATHER

USER, ANSWER = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
READ = {
    "plain": [USER, ANSWER],
    "reasoned": [USER, ANSWER | {"reasoning": "2 and 2"}],
    "brief": [{"role": "system", "content": "Be brief."}, USER, ANSWER],
}
CASES = yaml.safe_load((Path(__file__).parent / "variants.yaml").read_text("utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_row_is_read_or_refused_by_name(case: dict[str, Any]) -> None:
    raw = iter([RawRow(case["row"], "s.jsonl", 1)])
    config = SourceConfig(name="s", path="s.jsonl")
    (item,) = examples_of(raw, config, allowed_licenses=None, counts=None)
    if "refused" in case:
        reason, field = case["refused"]
        assert isinstance(item, Dropped)
        assert item.reason == reason
        assert field in item.detail
        return
    assert isinstance(item, PlacedExample), item
    example = item.example
    expected = case.get("read", "plain")
    expected = READ[expected] if isinstance(expected, str) else expected
    assert [message_to_row(m) for m in example.messages] == expected
    assert load_json(example.tools or "null") == ([WEATHER] if case.get("tools") else None)
