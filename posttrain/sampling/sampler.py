"""The protocols of sampling: messages → completions, and token ids → token ids. A `Sampler` is how
on-policy sampling, judging and evaluation reach a model; `posttrain.sampling.render` makes one of
any `Engine`. No torch here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from posttrain.records import Message
from posttrain.rollouts import Parameters, Step

Ids = Sequence[int]
Progress = Callable[[int], None] | None  # gets the number of new tokens


@dataclass(frozen=True, slots=True)
class Request:
    """One model call.

    `continues` is the generation before it in the same completion: `messages` then end with tool
    results or a user's reply, and the new prompt is its prompt ids, its sampled ids as they are,
    and the ids of what came since.
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
    """What came of one request. `prompt_ids` is None where a server renders the prompt; `error` is
    set, and `step` None, where the backend gave up after its retries."""

    step: Step | None
    prompt_ids: tuple[int, ...] | None = None
    error: str | None = None


class Backend(Protocol):
    """Whatever makes tokens."""

    @property
    def batched(self) -> bool:
        """True: feed it many requests a call (in process). False: one task a request (servers)."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """Backend, model and weights digest, template and tokenizer digests: what a lock binds."""
        ...


class Sampler(Backend, Protocol):
    """A model behind some backend."""

    async def sample(
        self, requests: Sequence[Request], *, progress: Progress = None
    ) -> list[Generation]:
        """One generation a request, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on reasoning tokens, after which the reasoning is closed for the model.

    Attributes:
        tokens: how many the model may write, tags not counted; at least 1.
        close_id: the token `</think>`; a model that writes it in time goes on alone.
        closing: the reasoning so far → the ids put in behind exactly `tokens` tokens otherwise.
        open_id: the token `<think>` where the model itself opens its reasoning: counting begins
            behind it. None: the prompt has opened it.
    """

    tokens: int
    close_id: int
    closing: Callable[[Ids], Ids]
    open_id: int | None = None


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One prompt as token ids. Generation ends behind any of `stop_ids`, which is kept. `seed`
    alone decides the sample, whatever else is in its batch, up to floating point."""

    ids: tuple[int, ...]
    parameters: Parameters
    seed: int
    stop_ids: tuple[int, ...]
    budget: Budget | None = None


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """Generated ids of one request. `error` says why there are none, where a backend gave up.

    Attributes:
        ids: new ids, the stop token and forced ids included.
        finish: "stop" (behind a stop id) or "length".
        logps: nats, one an id, where requested and available: under the distribution sampled from
            (after temperature, top-k and top-p); for greedy, whose distribution says nothing, under
            the model's own at temperature 1; 0.0 for forced ids.
        forced: [start, end) of `ids` that were put in.
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
        """One output a request, in order."""
        ...


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Token ids to score. `mask` has a flag for each id: whether its log-probability is wanted.
    The first id has none, since nothing stands before it."""

    ids: tuple[int, ...]
    mask: tuple[bool, ...]

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.mask), "a flag for each id"
        assert not self.mask[0], "the first id has no log-probability"


@dataclass(frozen=True, slots=True)
class ScoreOutput:
    """Log-probabilities in nats of the masked ids, in order, at temperature 1. `error` says why
    there are none, where a backend gave up."""

    logps: tuple[float, ...]
    error: str | None = None


class Scorer(Protocol):
    """A model that gives log-probabilities of token ids; engines have this beside `generate`."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Backend and weights digest."""
        ...

    async def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreOutput]:
        """One output a request, in order."""
        ...


# get the request's number, and what came of it
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
        """A tool's or user's text with a backslash inside each token that would end it early."""
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
    """`unframed` of a sampler that has it; a server that renders prompts gets texts as they are."""
    return sampler.unframed if isinstance(sampler, FramingSampler) else str


def seed_of(seed: int, *parts: object) -> int:
    """A 63-bit seed for one step of one sample, the same whatever else is sampled beside it."""
    name = "/".join(str(part) for part in parts)
    key = seed.to_bytes(8, "big", signed=True)
    digest = hashlib.blake2b(name.encode(), key=key, digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
