"""Every grader a recipe can name: of `reward/`, of RLVR environments, of the tiny world."""

from __future__ import annotations

from collections.abc import Sequence

from data_builders.tiny_world.grading import TinyWorldGrader
from posttrain.records import Score
from posttrain.rollouts import Prompt
from reward.environments import ENVIRONMENTS
from reward.environments.judged import JudgedEnvironment
from reward.graders import GRADERS
from reward.graders.base import Attempt, Grader


class EnvironmentGrader:
    """Grades by the RLVR environment that each prompt names."""

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """As `Grader.refuse`: the gold is replayed, and has to pass, where no judge is needed."""
        judged = {k for k, prompt in enumerate(prompts) if _needs_judge(prompt)}
        others = [p for k, p in enumerate(prompts) if k not in judged]
        results = iter(self._routed(others, others, "refuse"))
        return [None if k in judged else next(results) for k in range(len(prompts))]

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """As `Grader.grade`."""
        return self._routed(attempts, [attempt.prompt for attempt in attempts], "grade")

    def _routed(self, items: Sequence, prompts: Sequence[Prompt], method: str) -> list:
        results: list = [None] * len(items)
        for name in sorted({str(prompt.environment) for prompt in prompts}):
            places = [k for k, prompt in enumerate(prompts) if prompt.environment == name]
            own = getattr(ENVIRONMENTS[name](), method)([items[k] for k in places])
            for k, result in zip(places, own, strict=True):
                results[k] = result
        return results


def _needs_judge(prompt: Prompt) -> bool:
    return issubclass(ENVIRONMENTS[str(prompt.environment)], JudgedEnvironment)


def all_graders() -> dict[str, Grader]:
    """Grader by name; one that needs worker processes starts them when it is first used."""
    made = {name: make() for name, make in GRADERS.items()}
    return made | {"environment": EnvironmentGrader(), "tiny_world": TinyWorldGrader()}
