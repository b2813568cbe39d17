"""Structured answers judged by many schemas, and values that a plain reading of a document misses.

Each line of `json_schemas.jsonl` is a case: `schema`, values that fit it (`good`) and that do not
(`bad`); with `none` true it is no schema, and with `doc` the values have to come from this text.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.errors import DataError
from posttrain.rollouts import Prompt
from reward.environments.base import Script, calls, says, unusable
from reward.environments.structured_output import StructuredOutputEnvironment
from tests.reward.environments.scoring import verify_each

CASES = [
    json.loads(line)
    for line in Path(__file__).with_name("json_schemas.jsonl").read_text("utf-8").splitlines()
]
CHINESE = "合同HT-2087：李明于2023年4月18日在杭州购买了3台笔记本电脑，每台5,999元。"
THAI = "คุณสมชายซื้อพัดลมรุ่นF25จำนวน3เครื่องที่เชียงใหม่ราคาเครื่องละ890บาท"
LOG = "2024-05-02 14:03:11 ERROR worker-7: job 55123 aborted."
ENVIRONMENT = StructuredOutputEnvironment()


def prompt_of(question: str, output_format: str, **task: Any) -> Prompt:
    task |= {"format": output_format, "tool": "save", "payload": "data"}
    parameters = {"type": "object", "properties": {"data": {}}}
    function = {"name": "save", "parameters": parameters}
    row = {"id": "1", "environment": "structured_output", "question": question, "metadata": task}
    return ENVIRONMENT.prompt({**row, "tools": [{"type": "function", "function": function}]})


def in_format(output_format: str, value: Any) -> Script:
    if output_format == "tool_call":
        return calls(("save", {"data": value}))
    if output_format == "yaml":
        return says(yaml.safe_dump(value, allow_unicode=True, sort_keys=False))
    return says(json.dumps(value, ensure_ascii=False))


@pytest.mark.parametrize("output_format", ["json", "yaml", "tool_call"])
def test_what_fits_a_schema_passes_and_nothing_else(output_format: str):
    attempts: list[tuple[Prompt, Script]] = []
    labels: list[tuple[str, Any, bool]] = []
    for case in (case for case in CASES if not case.get("none")):
        match = "content" if "doc" in case else "schema_only"
        question = case.get("doc", "Any values.")
        prompt = prompt_of(question, output_format, schema=case["schema"], match=match)
        assert ENVIRONMENT.malformed(prompt) is None
        for right, value in [(True, v) for v in case["good"]] + [(False, v) for v in case["bad"]]:
            attempts.append((prompt, in_format(output_format, value)))
            labels.append((case["id"], value, right))
    scores = verify_each(ENVIRONMENT, attempts)
    verdicts = [(score.value is not None and score.value >= 1) for score in scores]
    assert not [label for label, passes in zip(labels, verdicts, strict=True) if passes != label[2]]


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.get("none")], ids=lambda c: c["id"]
)
def test_what_is_no_schema_is_not_used(case: dict[str, Any]):
    for match in ("content", "schema_only"):
        try:
            prompt = prompt_of("Any values.", "json", schema=case["schema"], match=match)
        except DataError:
            return
        assert asyncio.run(unusable(ENVIRONMENT, prompt))


@pytest.mark.parametrize(
    ("document", "answer", "value"),
    [
        (CHINESE, {"contract": "HT-2087", "date": "2023年4月18日", "goods": "笔记本电脑"}, 1),
        (CHINESE, {"name": "李明", "city": "杭州", "date": "2023-04-19", "count": 8, "price": 61}, 0),
        (THAI, {"name": "สมชาย", "city": "เชียงใหม่", "model": "F25", "count": 3, "price": 890}, 1),
        (THAI, {"name": "วิชัย", "city": "ภูเก็ต", "model": "A10", "count": 8, "price": 120}, 0),
        (LOG, {"time": "2024-05-02T14:03:11Z", "host": "worker-7", "job": 55123}, 1),
        (LOG, {"time": "2024-05-02T17:41:58Z", "host": "worker-7", "job": 55123}, 0),
    ],
)  # fmt: skip
def test_values_are_found_where_no_room_parts_them(document: str, answer: Any, value: float):
    prompt = prompt_of(document, "json", schema={"type": "object"})
    [score] = verify_each(ENVIRONMENT, [(prompt, in_format("json", answer))])
    assert score.value == value
