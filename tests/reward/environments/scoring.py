"""Scores and runs of scripted completions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from posttrain.records import Score
from posttrain.rollouts import Completion, Parameters, Prompt, RolloutLimits
from posttrain.sampling.rollout import Task, roll_out
from reward.environments.agentic.policies import ENVIRONMENT_OF, PolicySampler
from reward.environments.base import RLVREnvironment, Script, replay, says


def verify(environment: RLVREnvironment, prompt: Prompt, *scripts: Script | str) -> list[Score]:
    """One score a script; a text is a completion that is one answer."""
    return verify_each(environment, [(prompt, script) for script in scripts])


def verify_each(
    environment: RLVREnvironment, tasks: Sequence[tuple[Prompt, Script | str]]
) -> list[Score]:
    """One score a task, in one event loop: to start and end one takes longer than most scores."""

    async def verified(prompt: Prompt, script: Script | str) -> Score:
        script = says(script) if isinstance(script, str) else script
        return await environment.verify(prompt, await replay(environment, prompt, script))

    async def gather() -> list[Score]:
        return await asyncio.gather(*(verified(prompt, script) for prompt, script in tasks))

    return asyncio.run(gather())


LIMITS = RolloutLimits(Parameters(max_tokens=8192), max_turns=15)


async def run_policy(prompts: Sequence[Prompt], name: str) -> list[Completion]:
    """Completions of a scripted policy, through the tool loop of any checkpoint."""
    return await roll_out(
        [Task(prompt, 0, 0) for prompt in prompts],
        PolicySampler(prompts, name),
        open_environment=lambda p: ENVIRONMENT_OF[str(p.environment)]().open(p),
        limits=LIMITS,
    )
