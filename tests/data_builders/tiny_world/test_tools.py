"""The tools of the tiny world, alone and as the environment of a completion."""

from __future__ import annotations

import asyncio
import json
from itertools import islice
from typing import Any

import pytest

from data_builders.tiny_world.grading import grade
from data_builders.tiny_world.items import family_items
from data_builders.tiny_world.tools import (
    TinyWorldEnvironment,
    TinyWorldToolkit,
    ToolWorld,
)
from posttrain.errors import DataError
from posttrain.records import Message, json_text
from posttrain.rollouts import Prompt

WITH_TOOLS = ("lookups", "plans", "recover", "near_miss")


def prompt_of(metadata: dict[str, Any]) -> Prompt:
    return Prompt("p", "p", "tools", (Message("user", "?"),), metadata=json_text(metadata))


def opened(**changes: Any) -> TinyWorldEnvironment:
    state = {"price": {"lamp": 42}, "tickets": {"10": {"owner": "ana", "status": "open"}}}
    item = {"initial_state": state, "fault": None, "tools_declared": ["get_price", "set_status"]}
    return TinyWorldToolkit().open(prompt_of(item | changes))


def call(environment: TinyWorldEnvironment, name: str, **arguments: Any) -> str:
    return asyncio.run(environment.call(name, arguments))


@pytest.mark.parametrize("family", WITH_TOOLS)
def test_a_reference_played_through_the_environment_is_graded_right(family: str) -> None:
    """Every call of the reference has the result it shows, and the snapshot grades as correct."""
    calls = 0
    for item in islice(family_items(seed=3, split="heldout", family=family), 40):
        environment = TinyWorldToolkit().open(prompt_of(item["metadata"]))
        results = [m["content"] for m in item["reference"] if m["role"] == "tool"]
        made = [c["function"] for m in item["reference"] for c in m.get("tool_calls", ())]
        for function, result in zip(made, results, strict=True):
            assert (
                call(environment, function["name"], **json.loads(function["arguments"])) == result
            )
        end = json.loads(environment.snapshot())
        assert end["calls"] == [function["name"] for function in made]
        answer = item["reference"][-1]["content"]
        verdict = grade(item["metadata"], answer, calls=end["calls"], final_state=end["state"])
        assert verdict.correct, item
        calls += len(made)
    assert calls >= 20


def test_each_completion_has_a_world_of_its_own() -> None:
    item = {"initial_state": {"tickets": {"1": {"owner": "a", "status": "open"}}}, "fault": None}
    prompt = prompt_of(item | {"tools_declared": ["set_status"]})
    toolkit = TinyWorldToolkit()
    first, second = toolkit.open(prompt), toolkit.open(prompt)
    assert call(first, "set_status", ticket="1", status="closed") == "ok"
    assert json.loads(first.snapshot())["state"]["tickets"]["1"]["status"] == "closed"
    assert json.loads(second.snapshot()) == {"state": item["initial_state"], "calls": []}


def test_undeclared_and_malformed_calls_are_answered_and_logged() -> None:
    environment = opened()
    assert call(environment, "get_city", item="lamp") == "error: no tool get_city"
    assert call(environment, "get_price", thing=1) == "error: get_price takes item"
    assert call(environment, "x\ud800") == "error: no tool x\\ud800"
    end = environment.snapshot()
    assert json.loads(end)["calls"] == ["get_city", "get_price", "x\ud800"]
    assert end.encode("utf-8")
    asyncio.run(environment.close())


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


def tool_world(**kwargs: object) -> ToolWorld:
    tickets = {
        "10": {"owner": "ana", "status": "open"},
        "20": {"owner": "ben", "status": "open", "needs": "10"},
    }
    return ToolWorld({"price": {"lamp": 42}, "tickets": tickets}, **kwargs)


@pytest.mark.parametrize(
    ("expression", "result"),
    [("345+278", "623"), (" 7 * 8 ", "56"), ("3-5", "-2"), ("2**9", "error: not a sum"), ("1+", "error: not a sum")],
)  # fmt: skip
def test_calculate(expression: str, result: str) -> None:
    assert tool_world().call("calculate", {"expression": expression}) == result


def test_lookups_and_their_errors() -> None:
    assert tool_world().call("get_price", {"item": "lamp"}) == "42"
    assert tool_world().call("get_price", {"item": "rug"}) == "error: no rug"
    assert tool_world().call("check_price", {"item": "lamp", "price": "42"}) == "right"
    assert tool_world().call("check_price", {"item": "lamp", "price": "41"}) == "wrong"


def test_writes_keep_to_their_own_copy_and_respect_the_order() -> None:
    state = {"tickets": {"10": {"owner": "ana", "status": "open"}}}
    ours = ToolWorld(state)
    assert ours.call("set_status", {"ticket": "10", "status": "closed"}) == "ok"
    assert ours.state["tickets"]["10"]["status"] == "closed"
    assert state["tickets"]["10"]["status"] == "open"
    blocked = tool_world()
    close = {"ticket": "20", "status": "closed"}
    assert blocked.call("set_status", close) == "error: ticket 10 is open"
    blocked.call("set_status", {"ticket": "10", "status": "closed"})
    assert blocked.call("set_status", close) == "ok"


def test_a_fault_lasts_as_often_as_it_says() -> None:
    faulty = tool_world(fault={"tool": "get_price", "kind": "busy", "times": 2})
    results = [faulty.call("get_price", {"item": "lamp"}) for _ in range(3)]
    assert results == ["error: busy", "error: busy", "42"]
    assert [call.result for call in faulty.calls] == results
