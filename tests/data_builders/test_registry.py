"""Prompts graded by the environments that they name, all in one event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from data_builders.registry import EnvironmentGrader
from posttrain.config.judge import LabelJudgeConfig
from posttrain.errors import ConfigError
from reward.environments import ENVIRONMENTS
from reward.graders.base import Attempt
from reward.judge.judge import JudgeSampler
from tests.reward.graders.attempts import completion_of
from tests.sampling.scripted import Scripted


def test_each_attempt_is_graded_by_the_environment_of_its_prompt():
    choice = {"question": "Which? \\boxed{}", "gold": "B", "metadata": {"options": ["3", "4"]}}
    prompts = [
        ENVIRONMENTS["math"]().prompt({"question": "2+2? \\boxed{}", "gold": "4"}),
        ENVIRONMENTS["multiple_choice"]().prompt(choice),
    ]
    texts = ("\\boxed{4}", "\\boxed{B}", "4", "\\boxed{A}")
    attempts = [Attempt(p, completion_of(t)) for p, t in zip(prompts * 2, texts, strict=True)]
    assert [score.value for score in EnvironmentGrader().grade(attempts)] == [1.0, 1.0, 0.0, 0.0]


def test_no_request_of_a_judge_outlives_its_connections(tmp_path: Path, monkeypatch):
    """The key is refused while other requests wait."""
    under_way, left = [0], list[int]()

    class Refusing(Scripted):
        async def sample(self, requests, *, progress=None):
            under_way[0] += 1
            try:
                await asyncio.sleep(0 if "Who 0?" in requests[0].messages[0].content else 60)
                raise ConfigError("refuses the key")
            finally:
                under_way[0] -= 1

    async def opened(models, stack):
        stack.callback(lambda: left.append(under_way[0]))
        return [JudgeSampler(Refusing(lambda *_: ""), "message")]

    monkeypatch.setattr("data_builders.registry.open_judges", opened)
    environment = ENVIRONMENTS["equivalence"]()
    rows = [{"question": f"Who {k}?", "gold": "Darwin"} for k in range(3)]
    attempts = [Attempt(environment.prompt(row), completion_of("Wallace")) for row in rows]
    backend = {"kind": "chat", "url": "http://localhost:1/v1", "model": "judge"}
    grader = EnvironmentGrader(
        LabelJudgeConfig.model_validate({"backend": backend}), tmp_path / "judge.jsonl"
    )
    with pytest.raises(ConfigError, match="refuses the key"):
        grader.grade(attempts)
    assert left == [0]
