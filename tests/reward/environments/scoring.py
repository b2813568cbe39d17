"""Verdicts on scripted completions."""

from __future__ import annotations

import asyncio

from posttrain.records import Score
from posttrain.rollouts import Prompt
from reward.environments.base import RLVREnvironment, Script, replay, says


def verify(environment: RLVREnvironment, prompt: Prompt, *scripts: Script | str) -> list[Score]:
    """One score a script; a text is a completion that is one answer."""

    async def one(script: Script | str) -> Score:
        script = says(script) if isinstance(script, str) else script
        return await environment.verify(prompt, await replay(environment, prompt, script))

    async def every() -> list[Score]:
        return await asyncio.gather(*map(one, scripts))

    return asyncio.run(every())
