"""Protocols of sampling: messages → completions (`Sampler`), token ids → token ids (`Engine`).

On-policy sampling, judging and evaluation reach a model through a `Sampler`;
`posttrain.sampling.render` makes one of any `Engine`. This module does not import torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from posttrain.records import Message
from posttrain.rollouts import Parameters, Step

Ids = Sequence[int]
# called with the number of new tokens
Progress = Callable[[int], None] | None


@dataclass(frozen=True, slots=True)
class Request:
    """Request of one model call.

    Attributes:
        messages: Conversation that the model answers.
        tools: JSON text of the declared tools.
        thinking: True for a prompt that switches reasoning on.
        reasoning_budget: Greatest number of reasoning tokens; None: no limit.
        continues: Previous generation of the same completion. `messages` then end with tool results
            or a user's reply, and the new prompt consists of the previous prompt ids, the sampled
            ids unchanged, and the ids of the messages since.
        conversation: Number that all calls of a completion share, so that one replica of a server
            answers them.
        schema: JSON schema of the answer, as JSON text; a chat endpoint alone takes one.
    """

    messages: tuple[Message, ...]
    tools: str | None
    thinking: bool
    parameters: Parameters
    seed: int
    reasoning_budget: int | None = None
    continues: Generation | None = None
    conversation: int | None = None
    schema: str | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """Result of one request.

    Attributes:
        step: Answer of the model; None where the backend gave up after its retries.
        prompt_ids: Token ids of the prompt; None where a server renders it.
        error: Reason why there is no step.
    """

    step: Step | None
    prompt_ids: tuple[int, ...] | None = None
    error: str | None = None


class Backend(Protocol):
    """A producer of tokens, in this process or behind a server."""

    @property
    def batched(self) -> bool:
        """True where a call should hold many requests (in process), False for one (servers)."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """Backend, model, digests of weights, template and tokenizer; compared by resumed runs."""
        ...


class Sampler(Backend, Protocol):
    """A model behind some backend."""

    async def sample(
        self, requests: Sequence[Request], *, progress: Progress = None
    ) -> list[Generation]:
        """Answer all requests; one generation for each, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on reasoning tokens, after which the reasoning is closed for the model.

    Attributes:
        tokens: number of reasoning tokens without tags, at least 1.
        close_id: id of `</think>`; a model that samples it in time is not interrupted.
        closing: reasoning ids → ids to insert after exactly `tokens` tokens.
        open_id: id of `<think>` where the model opens its reasoning, so that counting begins after
            it. None: the prompt has opened it.
    """

    tokens: int
    close_id: int
    closing: Callable[[Ids], Ids]
    open_id: int | None = None


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """Prompt of token ids to continue.

    Attributes:
        seed: Seed of the sample, which does not depend on the rest of its batch, up to floating
            point.
        stop_ids: Ids after any of which generation ends; the id is kept.
        budget: Limit on reasoning; None: no limit.
        conversation: As in `Request`.
    """

    ids: tuple[int, ...]
    parameters: Parameters
    seed: int
    stop_ids: tuple[int, ...]
    budget: Budget | None = None
    conversation: int | None = None


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """Generated ids of one request.

    Attributes:
        ids: New ids, the stop token and forced ids included.
        finish: "stop" (behind a stop id) or "length".
        logps: Log-probability of each id in nats, where requested and available: under the
            distribution sampled from (after temperature, top-k and top-p); for greedy, whose
            distribution says nothing, under the model's own at temperature 1; 0.0 for forced ids.
        forced: [start, end) of the `ids` that were inserted to close the reasoning.
        error: Reason why there are no ids, where a backend gave up.
    """

    ids: tuple[int, ...]
    finish: Literal["stop", "length"]
    logps: tuple[float, ...] | None = None
    forced: tuple[int, int] | None = None
    error: str | None = None


class Engine(Backend, Protocol):
    """A model that continues token ids."""

    async def generate(
        self, requests: Sequence[EngineRequest], *, progress: Progress = None
    ) -> list[EngineOutput]:
        """Continue all prompts; one output for each request, in order."""
        ...


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Token ids to score.

    Attributes:
        mask: True for each id whose log-probability is requested. The first id has none, because
            nothing precedes it.
    """

    ids: tuple[int, ...]
    mask: tuple[bool, ...]

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.mask), "a flag for each id"
        assert not self.mask[0], "the first id has no log-probability"


@dataclass(frozen=True, slots=True)
class ScoreOutput:
    """Scores of one request.

    Attributes:
        logps: Log-probabilities of the masked ids in nats, in order, at temperature 1.
        error: Reason why there are none, where a backend gave up.
    """

    logps: tuple[float, ...]
    error: str | None = None


class Scorer(Backend, Protocol):
    """A model that gives log-probabilities of token ids; engines have this beside `generate`."""

    async def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreOutput]:
        """Score all requests; one output for each, in order."""
        ...


# called with the number of a request and its result
OnGeneration = Callable[[int, Generation], None]
OnOutput = Callable[[int, EngineOutput], None]


@runtime_checkable
class IncrementalSampler(Protocol):
    """A sampler that hands a generation over when it ends, while the engine continues others."""

    async def sample_each(
        self, requests: Sequence[Request], *, on_done: OnGeneration, progress: Progress = None
    ) -> None:
        """Answer requests one by one; `on_done` is called once for each."""
        ...


@runtime_checkable
class FramingSampler(Protocol):
    """A sampler that renders its prompts, and so knows the tokens that frame messages."""

    def unframed(self, text: str) -> str:
        """Text of a tool or user with a backslash inside each token that would end it early."""
        ...


@runtime_checkable
class IncrementalEngine(Protocol):
    """An engine that hands an output over when it ends, while others go on."""

    async def generate_each(
        self, requests: Sequence[EngineRequest], *, on_done: OnOutput, progress: Progress = None
    ) -> None:
        """Generate for requests one by one; `on_done` is called once for each."""
        ...


def unframing(sampler: Sampler) -> Callable[[str], str]:
    """Function that breaks framing tokens for a sampler; for servers that render, no change."""
    return sampler.unframed if isinstance(sampler, FramingSampler) else str


def seed_of(seed: int, *parts: object) -> int:
    """Derive a 63-bit seed from a seed and the names of a part of the run."""
    name = "/".join(str(part) for part in parts)
    key = seed.to_bytes(8, "big", signed=True)
    digest = hashlib.blake2b(name.encode(), key=key, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
