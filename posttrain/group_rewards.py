"""What stands between rollouts and a group-relative trainer: groups in, rewards in parts out.

A reward that could not be had is None: such a rollout is *unscored*, takes no part in its group's
mean and deviation, and is not trained on. Nothing invents a number in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from posttrain.rollouts import Completion, Prompt

LARGEST = 1e6  # ours: the rewards of all stages are below 20


@dataclass(frozen=True, slots=True)
class Group:
    """All rollouts of one prompt in one step, in the order of their index."""

    prompt: Prompt
    completions: tuple[Completion, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """A comparison or verification that came to nothing: why, and what there is to read of it."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class GroupRewards:
    """The rewards of one group.

    Attributes:
        rewards: one a rollout, finite, None where unscored.
        parts: what the rewards are made of, or what is watched beside them (`accuracy`, …): one
            value a rollout, None where there is none.
        judgements: JSON-able rows of a judge's verdicts, to be written beside the rollouts.
        counts: stats of the group that are summed over a step (`judge_calls`, …).
        requests: comparisons or verifications; `failures`: those that came to nothing.
        domain: whose figures the group counts to; "": the run has no domains.
        seconds: of each verification, in any order.
    """

    rewards: tuple[float | None, ...]
    parts: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict[str, Any])
    judgements: tuple[Mapping[str, Any], ...] = ()
    counts: Mapping[str, float] = field(default_factory=dict[str, float])
    requests: int = 0
    failures: tuple[Failure, ...] = ()
    domain: str = ""
    seconds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for index, reward in enumerate(self.rewards):
            # beyond it, squares and gradients overflow and the weights are what looks at fault
            if reward is not None and not abs(reward) <= LARGEST:  # nan is not either
                raise ValueError(
                    f"the reward {reward!r} of rollout {index} is no number from {-LARGEST:g} to "
                    f"{LARGEST:g}: leave the rollout unscored (None)"
                )
        for name, values in self.parts.items():
            assert len(values) == len(self.rewards), f"part {name} has another length"


class GroupReward(Protocol):
    """Rewards whole groups. Every group of a step that a process holds comes in one call."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What decides the rewards (judge, prompts, coefficients): bound by a run's config."""
        ...

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        """One `GroupRewards` a group, in order; `seed` is of this step, the same after a resume."""
        ...

    def settle(self, requests: int, failures: Sequence[Failure], *, domain: str = "") -> None:
        """Whether the step may go on, from all requests of all processes in it, domain by domain.
        Raises JudgeError, TrainingError: too large a share of the requests failed."""
        ...


@runtime_checkable
class EarlyReward(Protocol):
    """A reward that can begin with one completion while others of its group are still sampled."""

    def begin(self, prompt: Prompt, completion: Completion) -> None:
        """Start the work on a completion, the same object that `reward` is given later. Called in
        the event loop; must not wait."""
        ...
