"""Environments from outside: found by `module:Class` or an entry point, checked, and guarded."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from data_builders.registry import EnvironmentGrader, Environments, toolkit_of
from posttrain import time_limits
from posttrain.environments.base import ScriptedUser
from posttrain.errors import ConfigError
from posttrain.rollouts import Prompt
from reward.environments import find_environment, outside
from reward.environments.base import admit, calls, replay, says
from reward.graders.base import Attempt
from reward.graders.workers import Workers
from tests.data_builders.small_prompts import GRADERS, TOOLKITS, build
from tests.reward.environments.scoring import verify

MODULE = '''
import asyncio, os, time
from posttrain.records import Message, Score
from reward.environments.base import RLVREnvironment, calls, says

def stands(prompt, completion):
    match completion.answer:
        case "sleep": time.sleep(3600)
        case "exit": raise SystemExit(0)
        case "true": return True
        case "die": os._exit(3)
    return Score(float(completion.answer == (prompt.gold or "")[::-1]), completion.answer, "")

class Reversed(RLVREnvironment):
    name = "reversed"
    def gold(self, prompt): return says(prompt.gold[::-1])
    def check(self, prompt, completion): return stands(prompt, completion)
    def row(self, seed, number): return {"question": f"Reverse {seed} {number}", "gold": f"{seed}{number}x"}

class Lenient(Reversed):
    def check(self, prompt, completion): return Score(1.0, None, "whatever it says")

class Awaiting(Reversed):
    """`score` alone, with tools and a user."""
    check = RLVREnvironment.check
    def gold(self, prompt): return (*calls(("add", {"by": 1})), *says("more"), *says(prompt.gold[::-1]))
    def open(self, prompt): return Tools()
    async def score(self, prompt, completion):
        await asyncio.sleep(0)
        return stands(prompt, completion) if '"total": 1' in completion.state else Score(0.0, None, "")

class Tools:
    total = 0
    async def call(self, name, arguments):
        if name == "hang": await asyncio.sleep(3600)
        if name == "exit": raise SystemExit(1)
        self.total += arguments["by"]
        return str(self.total)
    async def respond(self, answer): return "go on" if answer == "more" else None
    def snapshot(self): return '{"total": %d}' % self.total
    async def close(self): pass

class Broken(RLVREnvironment):
    name = "broken"
    def __init__(self): raise OSError("no data")

class Malformed(Reversed):
    def malformed(self, prompt): raise IndexError("a bug")

nothing = 3
'''


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("outside")
    (folder / "someones.py").write_text(MODULE)
    workers = Workers(size=2, cpu_seconds=20.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        patch.syspath_prepend(str(folder))
        patch.setattr(outside, "OUTSIDE_WORKERS", workers)
        patch.setattr(outside, "STEP_SECONDS", 0.5)
        patch.setattr(time_limits, "STEP_SECONDS", 0.5)
        yield
    workers.close()
    sys.modules.pop("someones", None)


def rows(name: str, *golds: str) -> Iterator[dict[str, Any]]:
    return iter([{"environment": name, "question": f"Reverse {g}", "gold": g} for g in golds])


def test_the_gold_passes_a_wrong_answer_fails_or_the_row_is_dropped():
    name = "someones:Reversed"
    environment = find_environment(name)
    assert environment is not None
    admitted = asyncio.run(admit(rows(name, "abc", "xy"), {name: environment}))
    assert [prompt.environment for prompt in admitted.prompts] == [name] * 2
    scores = verify(environment, admitted.prompts[0], "cba", "abc")
    assert [score.value for score in scores] == [1.0, 0.0]
    lenient = find_environment("someones:Lenient")
    assert lenient is not None
    admitted = asyncio.run(admit(rows("l", "abc"), {"l": lenient}))
    assert [why.split(":")[0] for _, why in admitted.dropped] == ["wrong_passes"]
    broken = find_environment("someones:Malformed")
    assert broken is not None
    admitted = asyncio.run(admit(rows("m", "abc"), {"m": broken}))
    assert "IndexError: a bug" in admitted.dropped[0][1]


def test_verdicts_come_from_a_process_that_may_die(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("reward.graders.workers.WALL_SECONDS", 3.0)
    environment = find_environment("someones:Reversed")
    assert environment is not None
    prompt = environment.prompt({"question": "Reverse abc", "gold": "abc"})
    scores = verify(environment, prompt, "cba", "sleep", "exit", "true", "die", "cba")
    assert [score.value for score in scores] == [1.0, None, None, None, None, 1.0]
    kinds = ["timeout", "verifier_error", "verifier_error", "verifier_error"]
    assert [score.failure for score in scores[1:5]] == kinds
    assert all("someones:Reversed" in score.explanation for score in scores[1:5])


def test_tools_that_hang_leave_the_completion_unscored_and_what_they_raise_is_read():
    environment = find_environment("someones:Awaiting")
    assert environment is not None
    prompt = environment.prompt({"question": "Reverse ab", "gold": "ab", "tools": []})
    assert isinstance(environment.open(prompt), ScriptedUser)
    by = calls(("add", {"by": 1}))
    faults = [calls(("add", {})), calls(("exit", {})), calls(("hang", {}))]
    scores = verify(
        environment, prompt, (*by, *says("ba")), *((*one, *by, *says("ba")) for one in faults)
    )
    assert [score.value for score in scores] == [1.0, 1.0, 1.0, None]
    assert "hang" in scores[-1].explanation
    completion = asyncio.run(replay(environment, prompt, (*by, *says("more"), *says("ba"))))
    assert [m.role for m in completion.messages][-2:] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("someones:Missing", "has no attribute 'Missing'"),
        ("nobodys_package:Name", "No module named 'nobodys_package'"),
        ("someones:nothing", "is no subclass"),
        ("someones:Broken", "cannot be made: OSError: no data"),
        ("reward.environments.judged:RubricEnvironment", "asks a judge"),
    ],
)
def test_what_cannot_be_used_says_why_before_anything_runs(name: str, why: str):
    with pytest.raises(ConfigError, match=why):
        find_environment(name)


def test_an_entry_point_names_one(monkeypatch: pytest.MonkeyPatch):
    point = EntryPoint("backwards", "someones:Reversed", outside.GROUP)
    monkeypatch.setattr(
        outside, "entry_points", lambda group, name: [point] if name == point.name else []
    )
    environment = find_environment("backwards")
    assert environment is not None
    assert environment.prompt({"question": "x", "gold": "ab"}).environment == "backwards"
    assert find_environment("forwards") is None


def test_a_recipe_takes_its_rows_and_verifies_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = "someones:Reversed"
    grader = EnvironmentGrader()
    monkeypatch.setitem(GRADERS, "environment", grader)
    monkeypatch.setitem(TOOLKITS, name, toolkit_of(name))
    given = [
        {"environment": "reversed", "question": "Reverse ab", "gold": "ab"},
        {"question": "Reverse cd", "gold": "cd"},
        {"environment": "math", "question": "1+1?", "gold": "2"},
    ]
    made = build(
        tmp_path, given, [{"name": "rlvr", "thinking": 0.0}], format="environment", environment=name
    )
    assert sorted(str(prompt.gold) for prompt in made.prompts) == ["ab", "cd"]
    assert made.row_counts["s"].dropped["other_environment"] == 1
    verifier = Environments().verifier(made.prompts[0])
    assert verifier is find_environment(name)
    own: Prompt = made.prompts[0]
    completion = asyncio.run(replay(toolkit_of(name), own, says(str(own.gold)[::-1])))  # pyright: ignore[reportArgumentType]
    assert [score.value for score in grader.grade([Attempt(own, completion)])] == [1.0]
