"""Rollouts of the live policy: prompts → groups of completions, with ids and log-probabilities.

    policy = LiveEngine(model, batch_size=256, autocast=nullcontext)
    groups = await make_groups([Drawn(position=3, prompt=prompt)], sampler, …)

A rollout depends on the run's seed, the batch, the position, the prompt and its index, not on what
is made beside it: any layout of processes gives the same, up to floating point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from posttrain.errors import ConfigError
from posttrain.group_rewards import Group
from posttrain.rollouts import Prompt
from posttrain.sampling.engines.decode import decode
from posttrain.sampling.rollout import OpenEnvironment, RolloutLimits, Task, roll_out
from posttrain.sampling.sampler import EngineOutput, EngineRequest, Ids, Sampler, seed_of


@dataclass(frozen=True, slots=True)
class Drawn:
    """A prompt of a batch of rollouts; `position` numbers the batch's groups from 0."""

    position: int
    prompt: Prompt


class LiveEngine:
    """The policy while it is trained, as an engine: in this thread, under the trainer's autocast.

    Args:
        model: the policy without wrappers, so that processes decode without waiting for each other.
        autocast: the context in which the trainer runs the model.
    """

    batched = True

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        batch_size: int,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.model = model
        self.batch_size = batch_size
        self._autocast = autocast

    @property
    def identity(self) -> Mapping[str, Any]:
        """A policy in training has no fixed weights."""
        return {"backend": "live", "dtype": str(self.model.dtype).removeprefix("torch.")}

    async def generate(
        self, requests: Sequence[EngineRequest], *, progress: Callable[[int], None] | None = None
    ) -> list[EngineOutput]:
        """As `Engine.generate`. The model is in eval mode meanwhile.

        Raises:
            DataError: the model's logits are not finite.
        """
        training = self.model.training
        self.model.eval()
        try:
            with self._autocast():
                return decode(self.model, requests, batch_size=self.batch_size, progress=progress)
        finally:
            self.model.train(training)

    async def score(
        self, prompts: Sequence[Ids], completions: Sequence[Ids]
    ) -> list[tuple[float, ...]]:
        """Not needed: the trainer scores.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("a policy in training is scored by its trainer")


async def make_groups(
    drawn: Sequence[Drawn],
    sampler: Sampler,
    *,
    num_generations: int,
    seed: int,
    batch: int,
    limits: RolloutLimits,
    open_environment: OpenEnvironment,
) -> list[Group]:
    """All rollouts of some prompts, in one go.

    Args:
        seed: the run's.
        batch: which batch of rollouts of the run.
    """
    tasks = [
        Task(one.prompt, index, seed_of(seed, "rollout", batch, one.position))
        for one in drawn
        for index in range(num_generations)
    ]
    made = await roll_out(tasks, sampler, open_environment=open_environment, limits=limits)
    return [
        Group(one.prompt, tuple(made[k * num_generations : (k + 1) * num_generations]))
        for k, one in enumerate(drawn)
    ]
