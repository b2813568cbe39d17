"""The tools of the tiny world, alone and as the environment of a completion."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from data_builders.tiny_world.grading import grade
from data_builders.tiny_world.items import Place, make_item
from data_builders.tiny_world.tools import (
    TOOLS,
    TinyWorldEnvironment,
    TinyWorldToolkit,
    ToolWorld,
)
from posttrain.errors import DataError
from posttrain.records import Message, json_text
from posttrain.rollouts import Prompt

STATE = {
    "price": {"lamp": 42},
    "tickets": {
        "10": {"owner": "ana", "status": "open"},
        "20": {"owner": "ben", "status": "open", "needs": "10"},
    },
}


def prompt_of(metadata: dict[str, Any]) -> Prompt:
    return Prompt("p", "p", "tools", (Message("user", "?"),), metadata=json_text(metadata))


def call(environment: TinyWorldEnvironment, name: str, **arguments: Any) -> str:
    return asyncio.run(environment.call(name, arguments))


@pytest.mark.parametrize("family", ["lookups", "plans", "recover", "near_miss"])
def test_a_reference_played_through_the_environment_is_graded_right(family: str) -> None:
    """Every call of the reference has the result it shows, and the snapshot grades as correct."""
    for item in (make_item(Place(3, "heldout", family, k)) for k in range(25)):
        environment = TinyWorldToolkit().open(prompt_of(item["metadata"]))
        results = [m["content"] for m in item["reference"] if m["role"] == "tool"]
        made = [c["function"] for m in item["reference"] for c in m.get("tool_calls", ())]
        assert made or family != "recover"
        for function, result in zip(made, results, strict=True):
            arguments = json.loads(function["arguments"])
            assert call(environment, function["name"], **arguments) == result
        end = json.loads(environment.snapshot())
        assert end["calls"] == [function["name"] for function in made]
        answer = item["reference"][-1]["content"]
        reason = grade(item["metadata"], answer, calls=end["calls"], final_state=end["state"])
        assert reason == "correct", item


def test_each_completion_has_a_world_of_its_own_and_logs_what_it_calls() -> None:
    item = {"initial_state": STATE, "fault": None, "tools_declared": ["get_price", "set_status"]}
    toolkit, prompt = TinyWorldToolkit(), prompt_of(item)
    first, second = toolkit.open(prompt), toolkit.open(prompt)
    assert call(first, "set_status", ticket="10", status="closed") == "ok"
    assert call(first, "get_city", item="lamp") == "error: no tool get_city"
    assert call(first, "get_price", thing=1) == "error: get_price takes item"
    assert call(first, "x\ud800") == "error: no tool x\\ud800"
    end = json.loads(first.snapshot())
    assert first.snapshot().encode("utf-8")
    assert end["state"]["tickets"]["10"]["status"] == "closed"
    assert end["calls"] == ["set_status", "get_city", "get_price", "x\ud800"]
    assert json.loads(second.snapshot()) == {"state": STATE, "calls": []}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "metadata has no 'initial_state'"),
        ({"initial_state": {}, "fault": None, "tools_declared": ["fly"]}, "no tool 'fly'"),
    ],
)
def test_another_prompt_is_refused(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        TinyWorldToolkit().open(prompt_of(metadata))


@pytest.mark.parametrize(
    ("name", "values", "result"),
    [
        ("calculate", ["345+278"], "623"), ("calculate", [" 7 * 8 "], "56"),
        ("calculate", ["3-5"], "-2"), ("calculate", ["2**9"], "error: not a sum"),
        ("get_price", ["lamp"], "42"), ("get_price", ["rug"], "error: no rug"),
        ("check_price", ["lamp", "42"], "right"), ("check_price", ["lamp", "41"], "wrong"),
        ("list_tickets", ["ben"], "20"), ("list_tickets", ["dan"], "none"),
        ("set_status", ["99", "open"], "error: no ticket 99"),
        ("set_status", ["10", "gone"], "error: no status gone"),
        ("set_status", ["20", "closed"], "error: ticket 10 is open"),
        ("set_owner", ["20", "ana"], "ok"),
    ],
)  # fmt: skip
def test_results_and_errors(name: str, values: list[str], result: str) -> None:
    arguments = dict(zip(TOOLS[name].parameters, values, strict=True))
    assert ToolWorld(STATE).call(name, arguments) == result


def test_a_fault_lasts_as_often_as_it_says() -> None:
    faulty = ToolWorld(STATE, fault={"tool": "get_price", "kind": "busy", "times": 2})
    results = [faulty.call("get_price", {"item": "lamp"}) for _ in range(3)]
    assert results == ["error: busy", "error: busy", "42"]
