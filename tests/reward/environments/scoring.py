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

    async def one(script: Script | str) -> Score:
        script = says(script) if isinstance(script, str) else script
        return await environment.verify(prompt, await replay(environment, prompt, script))

    async def every() -> list[Score]:
        return await asyncio.gather(*map(one, scripts))

    return asyncio.run(every())


LIMITS = RolloutLimits(Parameters(max_tokens=8192), max_turns=15)


async def run_policy(prompts: Sequence[Prompt], name: str) -> list[Completion]:
    """Completions of a scripted policy, through the tool loop of any checkpoint."""
    return await roll_out(
        [Task(prompt, 0, 0) for prompt in prompts],
        PolicySampler(prompts, name),
        open_environment=lambda p: ENVIRONMENT_OF[str(p.environment)]().open(p),
        limits=LIMITS,
    )
