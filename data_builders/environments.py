"""What runs a prompt's calls and what verifies its completions, by the names that prompts carry.

    environments = Environments()
    environments.open(prompt)       → the tools and state of one completion, or None
    environments.verifier(prompt)   → await verifier.verify(prompt, completion)

A prompt whose grader is `environment` is verified by the RLVR environment that it names; any other
by its grader.
"""

from __future__ import annotations

import contextlib

from data_builders.graders import all_graders
from data_builders.tiny_world.tools import TinyWorldToolkit
from posttrain.config.judge import LabelJudgeConfig
from posttrain.config.load import nearest
from posttrain.environments.base import Environment, Toolkit, open_toolkit
from posttrain.errors import ConfigError
from posttrain.rollouts import Prompt
from reward.environments import ENVIRONMENTS
from reward.environments.base import RLVREnvironment
from reward.environments.judged import JudgedEnvironment, LabelJudge
from reward.judge.judge import open_judges
from reward.rlvr import GraderVerifier, Verifier

TINY_WORLD = "tiny_world"
BY_ENVIRONMENT = "environment"  # the grader that a prompt of an RLVR environment names
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
    """The judge of a recipe; None without one.

    Raises:
        ConfigError, DataError: as `open_judges`.
    """
    if config is None:
        return None
    [model] = await open_judges([config.model()], stack)
    return LabelJudge(model, sampling=config.sampling, retries=config.retries)


class Environments:
    """Toolkits and verifiers, each made when a prompt first names it.

    Args:
        judge: of the environments that need one.
    """

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
