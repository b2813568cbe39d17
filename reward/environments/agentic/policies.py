"""Scripted policies as a sampler, so that they go through the same tool loop as any checkpoint.

Nothing is rendered: a step is the script's next message, and four characters count as a token.
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
    """The scripted policies of an agentic task, by name."""
    return ENVIRONMENT_OF[str(prompt.environment)]().policies(prompt)


def policy_of(prompt: Prompt, name: str) -> Policy:
    """A policy by its name; for a family without this policy, the one that does nothing."""
    policies = policies_of(prompt)
    return policies.get(name, policies["no_op"])


class PolicySampler:
    """`Sampler` that writes the messages of a scripted policy.

    Raises ConfigError: a prompt is of no agentic family, or no family has such a policy.
    """

    batched = True

    def __init__(self, prompts: Sequence[Prompt], policy: str) -> None:
        for prompt in prompts:
            if prompt.environment not in ENVIRONMENT_OF:
                raise ConfigError(f"scripted policies run agentic tasks alone, not {prompt.source}")
        # a dictionary, since the nearest name must not depend on the order of a set
        policy_names: dict[str, None] = {}
        for prompt in prompts:
            policy_names |= dict.fromkeys(policies_of(prompt))
        if policy not in policy_names:
            suggestion = nearest(policy, [*policy_names])
            raise ConfigError(f"no family has a policy {policy!r}{suggestion}")
        self._scripts = {p.messages: policy_of(p, policy).script for p in prompts}
        self.identity: Mapping[str, Any] = {"backend": "scripted", "policy": policy}

    async def sample(
        self, requests: Sequence[Request], *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        return [self._next_message(request) for request in requests]

    def _next_message(self, request: Request) -> Generation:
        roles = [message.role for message in request.messages]
        prompt_length = roles.index("user") + 1
        script = self._scripts[request.messages[:prompt_length]]
        turn = roles[prompt_length:].count("assistant")
        # a conversation that goes on after the script gets its last message again
        message = script[min(turn, len(script) - 1)]
        parsed = ParsedCompletion(
            message.reasoning, message.content, message.tool_calls, (), finished=True
        )
        written_text = message.content
        for call in message.tool_calls:
            written_text += f"{call.name}{call.arguments}"
        prompt_characters = 0
        for prompt_message in request.messages:
            prompt_characters += len(prompt_message.content)
            prompt_characters += sum(len(call.arguments) for call in prompt_message.tool_calls)
        completion_tokens = len(written_text) // 4 + 1
        prompt_tokens = prompt_characters // 4
        return Generation(
            Step(message.content, parsed, "stop", 0, completion_tokens, prompt_tokens)
        )
