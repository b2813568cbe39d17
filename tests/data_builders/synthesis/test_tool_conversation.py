"""Conversations with tools: state by code, simulated tools with a log, and who talks as whom."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from data_builders.rows.read import read_examples
from data_builders.synthesis.kinds import KINDS, open_kind
from data_builders.synthesis.steps import Seed
from data_builders.synthesis.tool_conversation import ToolConversations
from posttrain.config.source import SourceConfig
from posttrain.environments.base import Environment
from posttrain.errors import DataError
from posttrain.records import message_to_template
from posttrain.rollouts import Prompt
from posttrain.sampling.sampler import Request
from reward.environments.workplace import WorkplaceEnvironment
from tests.data_builders.synthesis.small_synthesis import made, recipe_of, server, write_rows
from tests.sampling.scripted import END, Scripted, call

ROWS = WorkplaceEnvironment().rows(seed=3, count=4)
WISHES = {row["messages"][1]["content"]: row for row in ROWS}
TOOL = {
    "type": "function",
    "function": {
        "name": "add_note",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    },
}
ALL_GOOD = {"user": True, "agent": True, "tools": True, "left_to_agent": True}


def recipe(tmp_path: Path, roles: tuple[str, ...] = ("user", "agent", "judge"), **make: Any):
    path = str(write_rows(tmp_path / "rows.jsonl", ROWS))
    source = {"name": "office", "format": "environment", "environment": "workplace", "path": path}
    kind = {
        "kind": "tool_conversation",
        "prompts": [source],
        "settings": [{"name": "tools", "tools": "given", "thinking": 0.0}],
        "turns": 3,
        "steps": 12,
        **make,
    }
    return recipe_of(tmp_path / "out", kind, {role: server(role) for role in roles})


def scenarios(tmp_path: Path, roles=("user", "agent", "tools", "judge"), **make: Any):
    rows = [{"scenario": f"You want a note about {what}.", "tools": [TOOL]} for what in "abcd"]
    path = str(write_rows(tmp_path / "scenarios.jsonl", rows))
    kind = {
        "kind": "tool_conversation",
        "scenarios": [{"name": "notes", "path": path}],
        "turns": 3,
        "steps": 4,
        **make,
    }
    return recipe_of(tmp_path / "out", kind, {role: server(role) for role in roles})


def user(request: Request, _: random.Random) -> str:
    shown = request.messages[0].content
    wish = shown.split("\n")[1]
    return ("###END###" if "\nassistant:" in shown else f"Please: {wish}") + END


def office_agent(request: Request, _: random.Random) -> str:
    """Makes the gold calls of the wish, one a step, and then says so."""
    wish = next(m.content for m in request.messages if m.role == "user").removeprefix("Please: ")
    gold = WISHES[wish]["metadata"]["calls"]
    done = sum(m.role == "tool" for m in request.messages)
    if done < len(gold):
        name, arguments = gold[done]
        return call(name, **arguments) + END
    return f"All of that has been handled.{END}"


def judge(request: Request, _: random.Random) -> str:
    labels = {**ALL_GOOD, "agent": "harbour" not in request.messages[0].content}
    return json.dumps(labels) + END


def test_conversations_that_reach_the_state_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    samplers = {"user": Scripted(user), "agent": Scripted(office_agent), "judge": Scripted(judge)}
    rows, manifest = made(recipe(tmp_path), samplers, monkeypatch)
    assert manifest.counts.dropped == {}
    assert len(rows) == 4
    for row in rows:
        roles = [message["role"] for message in row["messages"]]
        assert roles[:2] == ["system", "user"]
        assert roles[-1] == "assistant"
        assert "tool" in roles
        checks = row["metadata"]["synthesis"]["checks"]
        assert checks == ["declared calls", "environment", "judge"]
    assert manifest.stats["figures"]["judge and state"] == {"judge yes, state yes": 4}
    assert manifest.stats["planted"] == {"rows": 4, "dropped": {"judge_refuses_agent": 4}}
    source = SourceConfig(name="rows", path=str(tmp_path / "out/rows.jsonl"))
    for example in read_examples(source, tmp_path):
        assert example.tools is not None
        assert any("tool_calls" in message_to_template(m) for m in example.messages)


def test_an_agent_that_leaves_out_a_call_does_not_reach_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def lazy(request: Request, rng: random.Random) -> str:
        return f"All of that has been handled.{END}"

    samplers = {"user": Scripted(user), "agent": Scripted(lazy), "judge": Scripted(judge)}
    with pytest.raises(DataError, match="state_not_reached 4"):
        made(recipe(tmp_path), samplers, monkeypatch)


def test_without_a_judge_an_undeclared_call_is_planted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    samplers = {"user": Scripted(user), "agent": Scripted(office_agent)}
    _, manifest = made(recipe(tmp_path, ("user", "agent")), samplers, monkeypatch)
    assert manifest.stats["planted"] == {"rows": 4, "dropped": {"undeclared_call": 4}}


def note_agent(request: Request, _: random.Random) -> str:
    done = [m.content for m in request.messages if m.role == "tool"]
    if len(done) < 2:
        return call("add_note", text=f"note {len(done)}") + END
    return f"Your notes are {', '.join(done)}.{END}"


def note_tools(request: Request, _: random.Random) -> str:
    """Numbers its notes by its own log."""
    shown = request.messages[0].content
    made_before = shown.count(" -> ")
    return f'{{"note": {made_before + 1}}}{END}'


def test_simulated_tools_see_their_own_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    samplers = {
        "user": Scripted(user),
        "agent": Scripted(note_agent),
        "tools": Scripted(note_tools),
        "judge": Scripted(judge),
    }
    rows, _ = made(scenarios(tmp_path), samplers, monkeypatch)
    assert len(rows) == 4
    for row in rows:
        results = [m["content"] for m in row["messages"] if m["role"] == "tool"]
        assert results == ['{"note": 1}', '{"note": 2}']
        assert row["metadata"]["synthesis"]["models"]["tools"] == "tools"


def contradicting(request: Request, _: random.Random) -> str:
    return f'{{"note": 1, "all": []}}{END}'


def strict_judge(request: Request, _: random.Random) -> str:
    shown = request.messages[0].content
    labels = {**ALL_GOOD, "tools": shown.count('"note": 1') < 2}
    return json.dumps(labels) + END


BAD = [
    ({"user": lambda r, _: f"assistant: I have added it.{END}"}, "user_talks_as_agent 4"),
    ({"user": lambda r, _: f'<tool_call>{{"name": "add_note"}}{END}'}, "user_talks_as_agent 4"),
    ({"user": lambda r, _: f"###END###{END}"}, "user_ends_at_once 4"),
    ({"user": lambda r, _: f"And then?{END}"}, "user_never_ends 4"),
    ({"user": lambda r, _: END}, "empty_answer 4"),
    ({"agent": lambda r, _: call("drop_all", text="x") + END}, "undeclared_call 4"),
    ({"agent": lambda r, _: call("add_note", text="x") + END}, "agent_never_answers 4"),
    ({"agent": lambda r, _: END}, "empty_answer 4"),
    ({"agent": lambda r, _: "<tool_call>\n<function=add_note>" + END}, "malformed_call 4"),
    ({"tools": lambda r, _: END}, "empty_answer 4"),
    ({"tools": contradicting, "judge": strict_judge}, "judge_refuses_tools 4"),
    ({"judge": lambda r, _: f"Looks fine.{END}"}, "judge_unreadable 4"),
]


@pytest.mark.parametrize(("changes", "reason"), BAD)
def test_bad_sides_are_named(changes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    scripts = {"user": user, "agent": note_agent, "tools": note_tools, "judge": judge} | changes
    samplers = {name: Scripted(script) for name, script in scripts.items()}
    with pytest.raises(DataError, match=reason):
        made(scenarios(tmp_path), samplers, monkeypatch)


def test_an_agent_that_calls_without_end_costs_no_more_than_the_plan_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def greedy(request: Request, _: random.Random) -> str:
        return "".join(call("add_note", text=str(number)) for number in range(9)) + END

    tools = Scripted(note_tools)
    samplers = {"user": Scripted(user), "agent": Scripted(greedy), "tools": tools}
    config = scenarios(tmp_path, ("user", "agent", "tools"), turns=1, steps=4)
    with pytest.raises(DataError, match="too_many_calls 4"):
        made(config, samplers, monkeypatch)
    assert sum(map(len, tools.calls)) == 4 * 4


def test_a_kind_has_as_many_rounds_as_its_plan_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Uncounted(ToolConversations):
        def max_completions(self, seed: Seed) -> dict[str, int]:
            return {"user": 2, "agent": 2}

    samplers = {
        "user": Scripted(user),
        "agent": Scripted(note_agent),
        "tools": Scripted(note_tools),
    }
    monkeypatch.setitem(KINDS, "tool_conversation", Uncounted)
    with pytest.raises(AssertionError, match="more than the 4 rounds of its plan"):
        made(scenarios(tmp_path, ("user", "agent", "tools")), samplers, monkeypatch)


@pytest.mark.parametrize("part", ["call", "close"])
def test_a_fault_of_an_environment_drops_its_row_alone(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object):
        raise KeyError("desk")

    class Faulty(ToolConversations):
        def open_environment(self, prompt: Prompt) -> Environment | None:
            environment = super().open_environment(prompt)
            if prompt.task == faulty_task:
                monkeypatch.setattr(environment, part, fail)
            return environment

    monkeypatch.setitem(KINDS, "tool_conversation", Faulty)
    config = recipe(tmp_path, ("user", "agent"))
    faulty_task = open_kind(config).seeds(tmp_path).seeds[0].content.prompt.task
    samplers = {"user": Scripted(user), "agent": Scripted(office_agent)}
    rows, manifest = made(config, samplers, monkeypatch)
    dropped = {} if part == "close" else {"environment_fault": 1}
    assert manifest.counts.dropped == dropped
    assert len(rows) == 4 - len(dropped)


def test_scenarios_without_a_model_for_their_tools_are_no_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(DataError, match="no_tools_model 4"):
        made(scenarios(tmp_path, ("user", "agent")), {}, monkeypatch)
