"""Token ids in, token ids out: what a backend must do when we render and parse ourselves.

    await engine.generate([EngineRequest(ids=(1, 9, 4), parameters=…, seed=7, stop_ids=(2,))])
    → [EngineOutput(ids=(17, 5, 2), finish="stop")]

`posttrain.sampling.rendered` makes a `Sampler` of any engine. Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from posttrain.sampling.protocol import Generation, Parameters

Ids = Sequence[int]


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

    def __post_init__(self) -> None:
        assert self.tokens >= 1, "a reasoning budget is at least one token"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One prompt as token ids. Generation ends behind any of `stop_ids`, which is kept.

    `seed` alone decides the sample, whatever else is in its batch, up to floating point.
    """

    ids: tuple[int, ...]
    parameters: Parameters
    seed: int
    stop_ids: tuple[int, ...]
    budget: Budget | None = None


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """What was generated. `error` says why there is nothing, where a backend gave up.

    Attributes:
        ids: new ids, the stop token and forced ids included.
        finish: "stop" (behind a stop id) or "length".
        logps: nats, one an id, where they were asked for and can be had: under the distribution
            sampled from (after temperature, top-k and top-p); for greedy, whose distribution says
            nothing, under the model's own at temperature 1; 0.0 for forced ids.
        forced: [start, end) of `ids` that were put in.
    """

    ids: tuple[int, ...]
    finish: Literal["stop", "length"]
    logps: tuple[float, ...] | None = None
    forced: tuple[int, int] | None = None
    error: str | None = None


class Engine(Protocol):
    """A model that continues token ids."""

    @property
    def batched(self) -> bool:
        """True: feed it many requests a call. False: one task a request."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """Backend, weights digest, dtype: what changes the samples beyond rounding."""
        ...

    async def generate(
        self, requests: Sequence[EngineRequest], *, progress: Callable[[int], None] | None = None
    ) -> list[EngineOutput]:
        """One output a request, in order. `progress` is told new tokens as they come."""
        ...

    async def score(
        self, prompts: Sequence[Ids], completions: Sequence[Ids]
    ) -> list[tuple[float, ...]]:
        """Log-probability (nats, temperature 1) of each completion id given all ids before it.

        Raises:
            ConfigError: this engine cannot score.
        """
        ...


def results_ids(before: Generation, after: Generation) -> tuple[int, ...]:
    """The ids that were put between a step and the one that continues it.

    Tool results, the template's text around them and the next generation prompt; () where a server
    renders the prompts.
    """
    if before.prompt_ids is None or after.prompt_ids is None or before.step is None:
        return ()
    if before.step.ids is None:
        return ()
    kept = (*before.prompt_ids, *before.step.ids)
    assert after.prompt_ids[: len(kept)] == kept, "a continued prompt begins with what came before"
    return after.prompt_ids[len(kept) :]
