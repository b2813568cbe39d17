"""The base of every environment: rows in, prompts or reasons out; failures are no zeros."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from posttrain.environments.base import Environment
from posttrain.errors import JudgeError
from posttrain.records import Score
from posttrain.rollouts import Completion, Prompt
from reward.environments import ENVIRONMENTS, base
from reward.environments.base import RLVREnvironment, Script, admit, calls, replay, says
from reward.graders.workers import Workers
from tests.reward.environments.scoring import verify

TASK = {"environment": "math", "question": "2+2? Use \\boxed{}.", "gold": "4"}


class Counter(RLVREnvironment):
    """A state, a user who asks again, and verdicts that go wrong on request."""

    name = "counter"

    def open(self, prompt: Prompt) -> Environment:
        return _Count()

    def gold(self, prompt: Prompt) -> Script:
        return (*calls(("add", {"by": 2})), *says("done"), *says("bye"))

    def wrong(self, prompt: Prompt) -> list[Script]:
        return [says("done")]

    async def score(self, prompt: Prompt, completion: Completion) -> Score:
        match completion.answer:
            case "judge":
                raise JudgeError("no answer from the judge")
            case "nan":
                return Score(float("nan"), None, "")
            case "crash":
                raise RuntimeError("a bug")
            case _:
                total = json.loads(completion.state or "{}")["total"]
                return Score(float(total == json.loads(prompt.gold or "0")), None, str(total))


class _Count:
    total = 0

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        self.total += arguments["by"]
        return str(self.total)

    async def respond(self, answer: str) -> str | None:
        return "anything else?" if answer == "done" else None

    def snapshot(self) -> str:
        return json.dumps({"total": self.total})

    async def close(self) -> None: ...


class Stalls(RLVREnvironment):
    """Runs in a worker, and never ends, or hogs memory."""

    name = "stalls"

    def check(self, prompt: Prompt, completion: Completion) -> Score:
        if completion.answer == "memory":
            return Score(1.0, "x" * (1 << 40), "")
        while True:
            pass


def test_rows_become_prompts_or_a_reason():
    unnamed = {"role": "assistant", "tool_calls": [{"name": "add"}]}
    rows = [
        {**TASK, "id": "a"},
        {**TASK, "id": "a"},
        {**TASK, "environment": "meth"},
        {**TASK, "gold": None},
        {**TASK, "question": "2+2?"},
        {**TASK, "gold": "x^{"},
        {**TASK, "messages": [{"role": "user", "content": "2+2? \\boxed{}"}]},
        {"environment": "math", "gold": "4", "messages": [{"role": "user", "content": [1]}]},
        {"environment": "counter", "question": "count to two", "gold": 2},
        {"environment": "counter", "question": "count to three", "gold": 3},
        {"environment": "counter", "question": "stay at zero", "gold": 0},
        {"environment": "math", "gold": "4", "messages": ["2+2? \\boxed{}"]},
        {"environment": "math", "gold": "4", "messages": [unnamed]},
    ]
    environments = {"math": ENVIRONMENTS["math"](), "counter": Counter()}
    admitted = asyncio.run(admit(iter(rows), environments, source="file"))
    assert [p.gold for p in admitted.prompts] == ["4", "2"]
    assert {p.source for p in admitted.prompts} == {"file"}
    reasons = {index: reason.partition(":")[0] for index, reason in admitted.dropped}
    malformed = dict.fromkeys((3, 4, 6, 7, 11, 12), "malformed_row")
    assert "object with a role" in dict(admitted.dropped)[11]
    assert "a tool call has a function" in dict(admitted.dropped)[12]
    assert reasons.pop(5).startswith(("gold_", "malformed"))
    assert reasons == {1: "duplicate_id", 2: "unknown_environment", **malformed,
                       9: "gold_fails", 10: "gold_fails"}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("never_say", [""]),
        ("user", {"facts": [{"words": "code", "text": "4821"}], "asides": []}),
        ("forbidden", [5]),
    ],
)
def test_fields_of_another_shape_drop_the_row_and_never_stop_the_others(field: str, value: Any):
    environment = ENVIRONMENTS["conversation"]()
    [row] = environment.rows(seed=1, count=1)
    broken = {**row, "id": "broken", "metadata": {**row["metadata"], field: value}}
    admitted = asyncio.run(admit(iter([broken, row]), {"conversation": environment}))
    assert [prompt.id for prompt in admitted.prompts] == [row["id"]]
    [(_, reason)] = admitted.dropped
    assert reason.startswith("malformed_row")


def test_a_script_is_replayed_with_one_state_and_the_users_turns():
    environment = Counter()
    prompt = environment.prompt({"question": "count", "gold": 2})
    completion = asyncio.run(replay(environment, prompt, environment.gold(prompt)))
    assert [m.role for m in completion.messages] == ["assistant", "tool", "assistant", "user",
                                                     "assistant"]  # fmt: skip
    assert completion.state == '{"total": 2}'


@pytest.mark.parametrize(
    ("answer", "failure"),
    [("judge", "service"), ("nan", "verifier_error"), ("crash", "verifier_error")],
)
def test_a_failed_verifier_is_unscored(answer: str, failure: str):
    environment = Counter()
    prompt = environment.prompt({"question": "count", "gold": 0})
    [score] = verify(environment, prompt, answer)
    assert (score.value, score.failure) == (None, failure)


def test_what_never_ends_is_killed_and_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch):
    workers = Workers(size=2, cpu_seconds=0.5)
    monkeypatch.setattr(base, "SHARED_WORKERS", workers)
    environment, structured = Stalls(), ENVIRONMENTS["structured_output"]()
    prompt = environment.prompt({"question": "x"})
    # a pattern that never ends
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    pattern = structured.prompt({"question": "x", "metadata": {"schema": schema, "format": "json"}})
    cases = [(environment, prompt, "loop"), (environment, prompt, "memory"),
             (structured, pattern, json.dumps({"a": "a" * 60 + "b"}))]  # fmt: skip

    async def every() -> tuple[list[Score], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.ensure_future(tick())
        scores = await asyncio.gather(
            *[e.verify(p, await replay(e, p, says(text))) for e, p, text in cases]
        )
        ticking.cancel()
        return scores, ticks

    scores, ticks = asyncio.run(every())
    workers.close()
    kinds = ["timeout", "verifier_error", "timeout"]
    assert [(s.value, s.failure) for s in scores] == [(None, kind) for kind in kinds]
    assert ticks > 10


@pytest.mark.parametrize(
    ("finish", "answer", "value"),
    [("stop", " \n", 0.0), ("length", "crash", 0.0), ("failed", "crash", None)],
)
def test_empty_truncated_and_failed_completions_never_reach_a_verifier(finish, answer, value):
    environment = Counter()
    prompt = environment.prompt({"question": "count", "gold": 0})
    completion = asyncio.run(replay(environment, prompt, says(answer)))
    completion = replace(completion, finish=finish, state='{"total": 0}')
    assert asyncio.run(environment.verify(prompt, completion)).value == value
