"""The one protocol through which models are asked: on-policy sampling, judging and evaluation.

    generations = await sampler.sample([Request(messages, None, True, parameters, seed=7)])
    → [Generation(step=Step("7*8 is 56.</think>56<|im_end|>", …), prompt_ids=(1, 9, …))]

A request is one model call. Loops over tools, several samples a prompt, resuming and grading are
built on top and know no backend.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from posttrain.records import Message
from posttrain.rollouts import Step


@dataclass(frozen=True, slots=True)
class Parameters:
    """How to sample one step.

    `temperature` 0 is greedy; `top_k` 0 keeps all. `max_tokens` bounds a step's new tokens, forced
    ids included. `logps` asks for the log-probability of each sampled token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 1024
    logps: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One model call.

    `continues` is the generation before it in the same completion: `messages` then end with tool
    results, and the new prompt is its prompt ids, its sampled ids as they are, and the ids of what
    came since.
    """

    messages: tuple[Message, ...]
    tools: str | None
    thinking: bool
    parameters: Parameters
    seed: int
    reasoning_budget: int | None = None
    continues: Generation | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """What came of one request. `prompt_ids` is None where a server renders the prompt.

    `error` is set where the backend gave up on this request after its retries; `step` then holds
    nothing. A failure is never an empty answer.
    """

    step: Step | None
    prompt_ids: tuple[int, ...] | None = None
    error: str | None = None


class Sampler(Protocol):
    """A model behind some backend."""

    @property
    def batched(self) -> bool:
        """True: feed it many requests a call (in process). False: one task a request (servers)."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """Backend, model and weights digest, template and tokenizer digests: what a lock binds."""
        ...

    async def sample(
        self, requests: Sequence[Request], *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        """One generation a request, in order. `progress` is told new tokens as they come."""
        ...

    async def score(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
    ) -> list[tuple[float, ...]]:
        """Log-probability (nats, temperature 1) of each completion id given all ids before it.

        Raises:
            ConfigError: this backend cannot score.
        """
        ...


def seed_of(seed: int, *parts: object) -> int:
    """A 63-bit seed for one step of one sample, the same whatever else is sampled beside it."""
    name = "/".join(str(part) for part in parts)
    key = seed.to_bytes(8, "big", signed=True)
    digest = hashlib.blake2b(name.encode(), key=key, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
