"""Tools and boxes of tools: what a model writes never raises, and every error can be read."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from posttrain.environments import base
from posttrain.environments.base import RESULT_CHARACTERS, Tool, Toolbox, open_toolkit
from posttrain.errors import ConfigError
from posttrain.rollouts import Prompt

PROMPT = Prompt("p", "p", "tools", ())
TEXT = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "times": {"type": "integer", "minimum": 1}},
    "required": ["text"],
    "additionalProperties": False,
}


def repeat(text: str, times: int = 2) -> str:
    if text == "fail":
        raise RuntimeError("it failed")
    if text == "fail silently":
        raise KeyError
    return text * times


async def where(text: str) -> str:
    await asyncio.sleep(0)
    return f"{text} {threading.current_thread() is threading.main_thread()}"


BOX = Toolbox(
    [Tool("repeat", "Say it again.", TEXT, repeat), Tool("where", "Where it runs.", TEXT, where)]
)


def call(name: str, arguments: dict[str, Any]) -> str:
    return asyncio.run(BOX.open(PROMPT).call(name, arguments))


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("repeat", {"text": "ab", "times": 3}, "ababab"),
        ("where", {"text": "main thread:"}, "main thread: True"),
        ("repeat", {}, "error: 'text' is a required property"),
        ("repeat", {"text": 5}, "error: text: 5 is not of type 'string'"),
        ("repeat", {"text": "a", "times": 0}, "error: times: 0 is less than the minimum of 1"),
        ("repeat", {"text": "a", "self": 1}, "error: Additional properties are not allowed"),
        ("repeat", {"text": "fail"}, "error: it failed"),
        ("repeat", {"text": "fail silently"}, "error: KeyError"),
        ("search", {"q": "x"}, "error: no tool search; there is repeat, where"),
        ("repeat", {"text": "\ud800", "times": 1}, "\\ud800"),
        ("x\udfff", {}, "error: no tool x\\udfff; there is repeat, where"),
    ],
)
def test_every_call_has_a_result(name: str, arguments: dict[str, Any], result: str):
    assert call(name, arguments).startswith(result)


def test_a_long_result_loses_its_middle_and_says_so():
    half = "01234567" * (RESULT_CHARACTERS // 16)
    result = call("repeat", {"text": "01234567", "times": RESULT_CHARACTERS // 4})
    assert result == f"{half}\n[… {RESULT_CHARACTERS} characters left out …]\n{half}"


def test_a_plain_function_does_not_block_the_others():
    def wait(text: str) -> str:
        return str(met.wait(30))

    async def meet(text: str) -> str:
        met.set()
        return "here"

    met = threading.Event()
    box = Toolbox([Tool("wait", "", TEXT, wait), Tool("meet", "", TEXT, meet)]).open(PROMPT)

    async def both() -> list[str]:
        waiting = asyncio.ensure_future(box.call("wait", {"text": "x"}))
        await asyncio.sleep(0)
        return [await box.call("meet", {"text": "x"}), await waiting]

    assert asyncio.run(both()) == ["here", "True"]


def hangs(text: str) -> str:
    if not NEVER.wait(60):
        raise AssertionError("nobody waits for this thread")
    return text


async def hangs_too(text: str) -> str:
    return str(await asyncio.Event().wait())


async def loops(text: str) -> Any:
    while True:
        sum(range(1000))


def leaves(text: str) -> str:
    raise SystemExit(text)


def is_full(text: str) -> str:
    raise MemoryError


NEVER = threading.Event()


@pytest.mark.parametrize(
    ("run", "result"),
    [
        (hangs, "error: no result within 0.05 s"),
        (hangs_too, "error: no result within 0.05 s"),
        (loops, "error: hangs, stopped after 0.05 s"),
        (leaves, "error: x"),
        (is_full, "error: MemoryError"),
        (lambda text: b"x", "error: broken returned bytes, not text"),
        (lambda text: None, "error: broken returned NoneType, not text"),
    ],
)
def test_whatever_a_tool_does_is_a_result(run: Any, result: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(base, "TOOL_SECONDS", 0.05)
    box = Toolbox([Tool("broken", "", TEXT, run)])
    assert asyncio.run(box.call("broken", {"text": "x"})) == result
    NEVER.set()


def test_a_tool_this_machine_cannot_run_is_no_result():
    def refuse(text: str) -> str:
        raise ConfigError("install it")

    with pytest.raises(ConfigError, match="install it"):
        asyncio.run(Toolbox([Tool("refuse", "", TEXT, refuse)]).call("refuse", {"text": "x"}))


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": 5},
        {"type": "string"},
        # no JSON, so that no prompt could declare it
        {"type": "object", "required": {"text"}},
        {"type": "object", "default": float("nan")},
    ],
)
def test_a_tool_without_a_schema_of_an_object_is_refused(parameters: dict[str, object]):
    with pytest.raises(ConfigError, match="broken"):
        Tool("broken", "", parameters, repeat)


def test_toolkits_by_name():
    for names in ("calculator", ["calculator"], " calculator "):
        box = open_toolkit(names)
        assert asyncio.run(box.call("calculate", {"expression": "1+1"})) == "2"
        [schema] = json.loads(box.schemas(PROMPT))
        assert (schema["type"], schema["function"]["name"]) == ("function", "calculate")
    with pytest.raises(ConfigError, match="did you mean 'calculator'"):
        open_toolkit("calculater")
    with pytest.raises(ConfigError, match="two tools are called calculate"):
        open_toolkit("calculator+calculator")
