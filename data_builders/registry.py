"""Toolkits, verifiers and graders by the names that prompts carry.

A prompt whose grader is `environment` is verified by the RLVR environment that it names.
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
from posttrain.sampling.cancellation import gather_or_cancel
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
# settings of a judge that are stored beside its answers, since its requests depend on them
_STORED_SETTINGS = frozenset({"sampling", "retries", "thinking"})
AnyToolkit = Toolkit | RLVREnvironment


@functools.cache
def toolkit_of(name: str) -> AnyToolkit:
    """Find a toolkit: the tiny world's, an RLVR environment, or one of `posttrain/environments/`.

    Raises:
        ConfigError: there is none of that name, or this machine cannot run it.
    """
    if name == TINY_WORLD:
        return TinyWorldToolkit()
    return find_environment(name) or open_toolkit(name)


async def open_label_judge(
    config: LabelJudgeConfig | None, stack: contextlib.AsyncExitStack
) -> LabelJudge | None:
    """Open the judge of a recipe; None without one. Raises the errors of `open_judges`."""
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
        """Open the environment of one completion; None if nothing runs its calls."""
        name = prompt.environment
        return None if name is None else toolkit_of(name).open(prompt)

    def verifier(self, prompt: Prompt) -> Verifier:
        """Verifier that scores a prompt's completions.

        Raises:
            ConfigError: its grader or environment is unknown, or needs a judge and has none.
        """
        key = (prompt.grader, prompt.environment)
        if key not in self._verifiers:
            self._verifiers[key] = self._make_verifier(prompt)
        return self._verifiers[key]

    def _make_verifier(self, prompt: Prompt) -> Verifier:
        if prompt.grader == BY_ENVIRONMENT:
            name = prompt.environment
            environment = find_environment(str(name), self._judge)
            if isinstance(environment, JudgedEnvironment) and self._judge is None:
                raise ConfigError(f"environment {name!r} needs a judge model: set judge:")
            if environment is not None:
                return environment
        else:
            name = prompt.grader
            if name in self._graders:
                return GraderVerifier(str(name), self._graders[name])
        hint = nearest(str(name), (*ENVIRONMENTS, *self._graders))
        raise ConfigError(f"prompt {prompt.id!r}: there is no grader or environment {name!r}{hint}")


def _require_environment(name: str, judge: LabelJudge | None) -> RLVREnvironment:
    """Find an RLVR environment. Raises ConfigError if there is none of that name."""
    environment = find_environment(name, judge)
    if environment is None:
        raise ConfigError(f"there is no environment {name!r}{nearest(name, (*ENVIRONMENTS,))}")
    return environment


class EnvironmentGrader:
    """Grader that asks the RLVR environment of each prompt; not for use inside an event loop.

    Args:
        judge: model for environments that need one; None: its answers are read from `labels`.
        labels: journal of a judge's answers; None: there is no judge.
    """

    def __init__(self, judge: LabelJudgeConfig | None = None, labels: Path | None = None) -> None:
        self._judge = judge
        self._labels = labels

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """See `Grader.refuse`: the gold is replayed, and has to pass, unless a judge is needed."""

        async def refuse_one(prompt: Prompt) -> str | None:
            environment = _require_environment(str(prompt.environment), None)
            if isinstance(environment, JudgedEnvironment):
                return None
            return await unusable(environment, prompt)

        async def refuse_all() -> list[str | None]:
            return await asyncio.gather(*map(refuse_one, prompts))

        return asyncio.run(refuse_all())

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """See `Grader.grade`."""
        return asyncio.run(self._grade(attempts))

    async def _grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        names = dict.fromkeys(str(attempt.prompt.environment) for attempt in attempts)
        needs_judge = any(
            isinstance(_require_environment(name, None), JudgedEnvironment) for name in names
        )
        # the judge's connections belong to this event loop
        async with contextlib.AsyncExitStack() as stack:
            judge = None
            if needs_judge and self._labels:
                judge = await self._open_journaled_judge(self._labels, stack)
            environments = {name: _require_environment(name, judge) for name in names}
            scores: dict[int, Score] = {}

            async def verify(index: int, prompt: Prompt, completion: Completion) -> None:
                environment = environments[str(prompt.environment)]
                scores[index] = await environment.verify(prompt, completion)

            # no verification may outlive the judge's connections
            await gather_or_cancel(
                verify(index, attempt.prompt, attempt.completion)
                for index, attempt in enumerate(attempts)
            )
            return [scores[index] for index in range(len(attempts))]

    async def _open_journaled_judge(
        self, labels: Path, stack: contextlib.AsyncExitStack
    ) -> LabelJudge:
        """Open the judge and store its answers; without a model, replay the stored ones."""
        settings_path = labels.with_suffix(".json")
        if self._judge is None:
            settings = json.loads(settings_path.read_text("utf-8"))
            model = JudgeSampler(
                JournaledSampler(None, labels),
                "message",
                thinking=settings["thinking"],
                tokens=tuple(settings["tokens"]),
            )
            sampling = JudgeSampling(**settings["sampling"])
            return LabelJudge(model, sampling=sampling, retries=settings["retries"])
        [model] = await open_judges([self._judge.model()], stack)
        settings = self._judge.model_dump(mode="json", include=set(_STORED_SETTINGS))
        atomic_write_json(settings_path, settings | {"tokens": model.tokens})
        model = replace(model, sampler=JournaledSampler(model.sampler, labels))
        return LabelJudge(model, sampling=self._judge.sampling, retries=self._judge.retries)


def all_graders(
    judge: LabelJudgeConfig | None = None, labels: Path | None = None
) -> dict[str, Grader]:
    """Graders by name; one that needs worker processes starts them when it is first used.

    Args:
        judge, labels: see `EnvironmentGrader`.
    """
    text_graders: dict[str, Grader] = {name: make_grader() for name, make_grader in GRADERS.items()}
    text_graders[TINY_WORLD] = TINY_WORLD_GRADER
    graders: dict[str, Grader] = {BY_ENVIRONMENT: EnvironmentGrader(judge, labels)}
    for name, grader in text_graders.items():
        graders[name] = GuardedGrader(name, grader)
    return graders
