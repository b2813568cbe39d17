"""Toolkits, verifiers and graders by the names that prompts carry. A prompt whose grader is
`environment` is verified by the RLVR environment that it names.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
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
from posttrain.rollouts import Completion, Prompt
from posttrain.runs import atomic_write_json
from posttrain.sampling.rollout import gather_or_cancel
from reward.environments import ENVIRONMENTS, find_environment
from reward.environments.base import RLVREnvironment, unusable
from reward.environments.judged import JudgedEnvironment, LabelJudge
from reward.graders import GRADERS
from reward.graders.base import Attempt, Grader
from reward.guard import GuardedGrader
from reward.judge.judge import JudgeSampler, open_judges
from reward.rlvr import GraderVerifier, Verifier

TINY_WORLD = "tiny_world"
BY_ENVIRONMENT = "environment"  # the grader that a prompt of an RLVR environment names
_KEPT = ("sampling", "retries", "thinking")  # of a judge, beside its answers
AnyToolkit = Toolkit | RLVREnvironment


@functools.cache
def toolkit_of(name: str) -> AnyToolkit:
    """A toolkit: of `posttrain/environments/`, of an RLVR environment, or the tiny world's own.
    Raises ConfigError: there is none of that name, or this machine cannot run it."""
    if name == TINY_WORLD:
        return TinyWorldToolkit()
    return find_environment(name) or open_toolkit(name)


async def open_label_judge(
    config: LabelJudgeConfig | None, stack: contextlib.AsyncExitStack
) -> LabelJudge | None:
    """The judge of a recipe; None without one. Raises as `open_judges`."""
    if config is None:
        return None
    [model] = await open_judges([config.model()], stack)
    return LabelJudge(model, sampling=config.sampling, retries=config.retries)


class Environments:
    """Toolkits and verifiers of prompts, each made when a prompt first names it."""

    def __init__(self, judge: LabelJudge | None = None) -> None:
        self._judge = judge
        self._verifiers: dict[tuple[str | None, str | None], Verifier] = {}
        self._graders = all_graders()

    def open(self, prompt: Prompt) -> Environment | None:
        """The environment of one completion; None: nothing runs its calls."""
        name = prompt.environment
        return None if name is None else toolkit_of(name).open(prompt)

    def verifier(self, prompt: Prompt) -> Verifier:
        """What scores a prompt's completions. Raises ConfigError: it names nothing that there is,
        or needs a judge and there is none."""
        key = (prompt.grader, prompt.environment)
        if key not in self._verifiers:
            self._verifiers[key] = self._make(prompt)
        return self._verifiers[key]

    def _make(self, prompt: Prompt) -> Verifier:
        grader, name = prompt.grader, prompt.environment
        if grader != BY_ENVIRONMENT:
            name = grader
            if grader in self._graders:
                return GraderVerifier(str(grader), self._graders[grader])
        elif (environment := find_environment(str(name), self._judge)) is not None:
            if isinstance(environment, JudgedEnvironment) and self._judge is None:
                raise ConfigError(f"environment {name!r} needs a judge model: set judge:")
            return environment
        known = nearest(str(name), (*ENVIRONMENTS, *self._graders))
        raise ConfigError(
            f"prompt {prompt.id!r}: there is no grader or environment {name!r}{known}"
        )


def _environment(name: str, judge: LabelJudge | None) -> RLVREnvironment:
    environment = find_environment(name, judge)
    if environment is None:
        raise ConfigError(f"there is no environment {name!r}{nearest(name, (*ENVIRONMENTS,))}")
    return environment


class EnvironmentGrader:
    """Grades by the RLVR environment that each prompt names. Not from inside an event loop.

    Args:
        judge: the model of environments that need one; None: the answers in `labels` are given.
        labels: the journal of a judge's answers; None: there is no judge.
    """

    def __init__(self, judge: LabelJudgeConfig | None = None, labels: Path | None = None) -> None:
        self._judge, self._labels = judge, labels

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """As `Grader.refuse`: the gold is replayed, and has to pass, where no judge is needed."""

        async def refusal(prompt: Prompt) -> str | None:
            environment = _environment(str(prompt.environment), None)
            judged = isinstance(environment, JudgedEnvironment)
            return None if judged else await unusable(environment, prompt)

        async def every() -> list[str | None]:
            return await asyncio.gather(*map(refusal, prompts))

        return asyncio.run(every())

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """As `Grader.grade`."""
        return asyncio.run(self._grade(attempts))

    async def _grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        names = dict.fromkeys(str(attempt.prompt.environment) for attempt in attempts)
        judged = any(isinstance(_environment(name, None), JudgedEnvironment) for name in names)
        async with contextlib.AsyncExitStack() as stack:  # the judge's connections: of this loop
            judge = await self._journaled(self._labels, stack) if judged and self._labels else None
            made = {name: _environment(name, judge) for name in names}
            scores: dict[int, Score] = {}

            async def verify(place: int, prompt: Prompt, completion: Completion) -> None:
                scores[place] = await made[str(prompt.environment)].verify(prompt, completion)

            # none outlives the judge's connections
            await gather_or_cancel(
                verify(k, a.prompt, a.completion) for k, a in enumerate(attempts)
            )
            return [scores[k] for k in range(len(attempts))]

    async def _journaled(self, labels: Path, stack: contextlib.AsyncExitStack) -> LabelJudge:
        """The judge, whose answers are kept; without a model, the answers that were."""
        settings = labels.with_suffix(".json")  # all else that its requests depend on
        if self._judge is None:
            kept = json.loads(settings.read_text("utf-8"))
            sampler, sampling = JournaledSampler(None, labels), JudgeSampling(**kept["sampling"])
            tokens = tuple(kept["tokens"])
            model = JudgeSampler(sampler, "message", thinking=kept["thinking"], tokens=tokens)
            return LabelJudge(model, sampling=sampling, retries=kept["retries"])
        [model] = await open_judges([self._judge.model()], stack)
        kept = self._judge.model_dump(mode="json", include={*_KEPT})
        atomic_write_json(settings, kept | {"tokens": model.tokens})
        model = replace(model, sampler=JournaledSampler(model.sampler, labels))
        return LabelJudge(model, sampling=self._judge.sampling, retries=self._judge.retries)


def all_graders(
    judge: LabelJudgeConfig | None = None, labels: Path | None = None
) -> dict[str, Grader]:
    """Grader by name; one that needs worker processes starts them when it is first used."""
    made: dict[str, Grader] = {name: make() for name, make in GRADERS.items()}
    made[TINY_WORLD] = TINY_WORLD_GRADER
    graders: dict[str, Grader] = {BY_ENVIRONMENT: EnvironmentGrader(judge, labels)}
    for name, grader in made.items():
        graders[name] = GuardedGrader(name, grader)
    return graders
