from __future__ import annotations

import pytest

from data_builders.tiny_world.tools import TOOLS, ToolWorld, tool_schemas


def world(**kwargs: object) -> ToolWorld:
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
    assert world().call("calculate", {"expression": expression}) == result


def test_lookups_and_their_errors() -> None:
    assert world().call("get_price", {"item": "lamp"}) == "42"
    assert world().call("get_price", {"item": "rug"}) == "error: no rug"
    assert world().call("check_price", {"item": "lamp", "price": "42"}) == "right"
    assert world().call("check_price", {"item": "lamp", "price": "41"}) == "wrong"


def test_malformed_calls_are_answered_not_raised() -> None:
    assert world().call("get_prices", {}) == "error: no tool get_prices"
    assert world().call("get_price", {"thing": "lamp"}) == "error: get_price takes item"
    assert world().call("get_price", {"item": ["lamp"]}) == "error: get_price takes item"
    limited = world(declared=["get_stock"])
    assert limited.call("get_price", {"item": "lamp"}) == "error: no tool get_price"


def test_writes_keep_to_their_own_copy_and_respect_the_order() -> None:
    state = {"tickets": {"10": {"owner": "ana", "status": "open"}}}
    ours = ToolWorld(state)
    assert ours.call("set_status", {"ticket": "10", "status": "closed"}) == "ok"
    assert ours.state["tickets"]["10"]["status"] == "closed"
    assert state["tickets"]["10"]["status"] == "open"
    blocked = world()
    close = {"ticket": "20", "status": "closed"}
    assert blocked.call("set_status", close) == "error: ticket 10 is open"
    blocked.call("set_status", {"ticket": "10", "status": "closed"})
    assert blocked.call("set_status", close) == "ok"


def test_a_fault_lasts_as_often_as_it_says() -> None:
    faulty = world(fault={"tool": "get_price", "kind": "busy", "times": 2})
    results = [faulty.call("get_price", {"item": "lamp"}) for _ in range(3)]
    assert results == ["error: busy", "error: busy", "42"]
    assert [call.result for call in faulty.calls] == results


def test_schemas_declare_what_the_functions_take() -> None:
    for schema, tool in zip(tool_schemas(list(TOOLS)), TOOLS.values(), strict=True):
        function = schema["function"]
        assert function["name"] == tool.name
        assert function["parameters"]["required"] == list(tool.parameters)
