"""What runs a prompt's calls and what scores its completions, by the names that prompts carry. One
whose grader is `environment` is verified by the RLVR environment that it names.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from data_builders.tiny_world.grading import TINY_WORLD_GRADER
from data_builders.tiny_world.tools import TinyWorldToolkit
from posttrain.config.judge import JudgeSampling, LabelJudgeConfig
from posttrain.config.load import nearest
from posttrain.environments.base import Environment, Toolkit, open_toolkit
from posttrain.errors import ConfigError
from posttrain.evaluation.journal import JournaledSampler
from posttrain.records import Score
from posttrain.rollouts import Prompt
from posttrain.runs import atomic_write_json
from reward.environments import ENVIRONMENTS
from reward.environments.base import RLVREnvironment
from reward.environments.judged import JudgedEnvironment, LabelJudge
from reward.graders import GRADERS
from reward.graders.base import Attempt, Grader
from reward.judge.judge import JudgeSampler, open_judges
from reward.rlvr import GraderVerifier, Verifier

TINY_WORLD = "tiny_world"
BY_ENVIRONMENT = "environment"  # the grader that a prompt of an RLVR environment names
_KEPT = ("sampling", "retries", "thinking")  # of a judge, beside its answers
AnyToolkit = Toolkit | RLVREnvironment


def toolkit_of(name: str) -> AnyToolkit:
    """A toolkit: of `posttrain/environments/`, of an RLVR environment, or the tiny world's own.

    Raises:
        ConfigError: there is none of that name, or this machine cannot run it.
    """
    if name == TINY_WORLD:
        return TinyWorldToolkit()
    return ENVIRONMENTS[name]() if name in ENVIRONMENTS else open_toolkit(name)


async def open_label_judge(
    config: LabelJudgeConfig | None, stack: contextlib.AsyncExitStack
) -> LabelJudge | None:
    """The judge of a recipe; None without one. Raises as `open_judges`."""
    if config is None:
        return None
    [model] = await open_judges([config.model()], stack)
    return LabelJudge(model, sampling=config.sampling, retries=config.retries)


class Environments:
    """Toolkits and verifiers, each made when a prompt first names it."""

    def __init__(self, judge: LabelJudge | None = None) -> None:
        self._judge = judge
        self._toolkits: dict[str, AnyToolkit] = {}
        self._verifiers: dict[tuple[str | None, str | None], Verifier] = {}
        self._graders = all_graders()

    def open(self, prompt: Prompt) -> Environment | None:
        """The environment of one completion; None: nothing runs its calls."""
        name = prompt.environment
        if name is None:
            return None
        if name not in self._toolkits:
            self._toolkits[name] = toolkit_of(name)
        return self._toolkits[name].open(prompt)

    def verifier(self, prompt: Prompt) -> Verifier:
        """What scores a prompt's completions.

        Raises:
            ConfigError: it names nothing that there is, or needs a judge and there is none.
        """
        key = (prompt.grader, prompt.environment)
        if key not in self._verifiers:
            self._verifiers[key] = self._make(prompt)
        return self._verifiers[key]

    def _make(self, prompt: Prompt) -> Verifier:
        grader, environment = prompt.grader, prompt.environment
        if grader == BY_ENVIRONMENT and environment in ENVIRONMENTS:
            kind = ENVIRONMENTS[environment]
            if not issubclass(kind, JudgedEnvironment):
                return kind()
            if self._judge is None:
                raise ConfigError(f"environment {environment!r} needs a judge model: set judge:")
            return kind(self._judge)
        if grader != BY_ENVIRONMENT and grader in self._graders:
            return GraderVerifier(self._graders[grader])
        name = environment if grader == BY_ENVIRONMENT else grader
        known = nearest(str(name), (*ENVIRONMENTS, *self._graders))
        raise ConfigError(
            f"prompt {prompt.id!r}: there is no grader or environment {name!r}{known}"
        )


class EnvironmentGrader:
    """Grades by the RLVR environment that each prompt names.

    Args:
        judge: the model of environments that need one; None: the answers in `labels` are given.
        labels: the journal of a judge's answers; None: there is no judge.
    """

    def __init__(self, judge: LabelJudgeConfig | None = None, labels: Path | None = None) -> None:
        self._judge, self._labels = judge, labels

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """As `Grader.refuse`: the gold is replayed, and has to pass, where no judge is needed."""
        kinds = [ENVIRONMENTS[str(prompt.environment)] for prompt in prompts]
        judged = {k for k, kind in enumerate(kinds) if issubclass(kind, JudgedEnvironment)}
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
            kind, chosen = ENVIRONMENTS[name], [items[k] for k in places]
            if method == "grade" and issubclass(kind, JudgedEnvironment) and self._labels:
                own = asyncio.run(self._judged(kind, chosen, self._labels))
            else:
                own = getattr(kind(), method)(chosen)
            for k, result in zip(places, own, strict=True):
                results[k] = result
        return results

    async def _judged(
        self, kind: type[JudgedEnvironment], attempts: Sequence[Attempt], labels: Path
    ) -> list[Score]:
        """The scores; the judge's connections belong to this event loop."""
        settings = labels.with_suffix(".json")  # all else that its requests depend on
        async with contextlib.AsyncExitStack() as stack:
            if self._judge is None:
                kept = json.loads(settings.read_text("utf-8"))
                config = JudgeSampling(**kept["sampling"])
                model = JudgeSampler(
                    JournaledSampler(None, labels),
                    "message",
                    thinking=kept["thinking"],
                    tokens=tuple(kept["tokens"]),
                )
                judge = LabelJudge(model, sampling=config, retries=kept["retries"])
            else:
                [model] = await open_judges([self._judge.model()], stack)
                kept = self._judge.model_dump(mode="json", include={*_KEPT})
                atomic_write_json(settings, kept | {"tokens": model.tokens})
                model = replace(model, sampler=JournaledSampler(model.sampler, labels))
                sampling, retries = self._judge.sampling, self._judge.retries
                judge = LabelJudge(model, sampling=sampling, retries=retries)
            environment = kind(judge)
            scores = (environment.verify(a.prompt, a.completion) for a in attempts)
            return list(await asyncio.gather(*scores))


def all_graders(
    judge: LabelJudgeConfig | None = None, labels: Path | None = None
) -> dict[str, Grader]:
    """Grader by name; one that needs worker processes starts them when it is first used."""
    made = {name: make() for name, make in GRADERS.items()}
    return made | {"environment": EnvironmentGrader(judge, labels), "tiny_world": TINY_WORLD_GRADER}
