"""Scripted policies as a model: they go through the same tool loop as any checkpoint.

Nothing is rendered: a step is the script's next message, and a token is four characters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from posttrain.config.load import nearest
from posttrain.errors import ConfigError
from posttrain.rollouts import ParsedCompletion, Prompt, Step
from posttrain.sampling.sampler import Generation, Request
from reward.environments.agentic import FAMILIES
from reward.environments.agentic.base import Policy

ENVIRONMENT_OF = {kind.name: kind for kind in FAMILIES}


def policies_of(prompt: Prompt) -> dict[str, Policy]:
    return ENVIRONMENT_OF[str(prompt.environment)]().policies(prompt)


def policy_of(prompt: Prompt, name: str) -> Policy:
    """A policy by its name; families that have none of it do nothing."""
    policies = policies_of(prompt)
    return policies.get(name, policies["no_op"])


class PolicySampler:
    """A `Sampler` that writes what the policy of a name writes for each prompt. Raises ConfigError:
    no family of the prompts has such a policy, or one is of no family."""

    batched = True

    def __init__(self, prompts: Sequence[Prompt], policy: str) -> None:
        for prompt in prompts:
            if prompt.environment not in ENVIRONMENT_OF:
                raise ConfigError(f"scripted policies run agentic tasks alone, not {prompt.source}")
        known = dict.fromkeys(name for prompt in prompts for name in policies_of(prompt))
        if policy not in known:
            raise ConfigError(f"no family has a policy {policy!r}{nearest(policy, [*known])}")
        self._scripts = {p.messages: policy_of(p, policy).script for p in prompts}
        self.identity: Mapping[str, Any] = {"backend": "scripted", "policy": policy}

    async def sample(
        self, requests: Sequence[Request], *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        return [self._next(request) for request in requests]

    def _next(self, request: Request) -> Generation:
        at = next(n for n, message in enumerate(request.messages) if message.role == "user") + 1
        script = self._scripts[request.messages[:at]]
        turn = sum(message.role == "assistant" for message in request.messages[at:])
        message = script[min(turn, len(script) - 1)]
        written = message.content + "".join(f"{c.name}{c.arguments}" for c in message.tool_calls)
        parsed = ParsedCompletion(
            message.reasoning, message.content, message.tool_calls, (), finished=True
        )
        calls = (call for message in request.messages for call in message.tool_calls)
        given = [*(m.content for m in request.messages), *(call.arguments for call in calls)]
        tokens = len(written) // 4 + 1, sum(map(len, given)) // 4
        own = Step(message.content, parsed, "stop", 0, *tokens)
        return Generation(own)
