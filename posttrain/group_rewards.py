"""What stands between rollouts and a group-relative trainer: groups in, rewards in parts out.

A reward gives each rollout one of three things, and all three may stand in one group:

    3.5              a value of the whole completion, which is compared with its group's
    (0.1, −0.4, …)   a value for each token that the policy wrote, which is that token's advantage
    None             unscored: in nobody's mean and deviation, and not trained on

Nothing invents a number where there is none. A run's report chooses what to show of a reward by the
parts that it logs (`posttrain/pages/rl.py`), so that no page knows a method by its name.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from posttrain.rollouts import Completion, Prompt

LARGEST = 1e6  # ours: the rewards of all stages are below 20

# of a completion, of each token that the policy wrote, or unscored
Credit = float | tuple[float, ...] | None


def total_credit(credit: Credit) -> float | None:
    """Value of the whole completion: the sum of its tokens' values where each has its own."""
    return math.fsum(credit) if isinstance(credit, tuple) else credit


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
        rewards: one `Credit` a rollout, every value finite.
        parts: what the rewards are made of, or what is watched beside them (`accuracy`, …): one
            value a rollout, None where there is none.
        judgements: JSON-able rows of a judge's verdicts, to be written beside the rollouts.
        counts: stats of the group that are summed over a step (`judge_calls`, …).
        requests: comparisons or verifications; `failures`: those that came to nothing.
        domain: whose figures the group counts to; "": the run has no domains.
        seconds: of each verification, in any order.
    """

    rewards: tuple[Credit, ...]
    parts: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict[str, Any])
    judgements: tuple[Mapping[str, Any], ...] = ()
    counts: Mapping[str, float] = field(default_factory=dict[str, float])
    requests: int = 0
    failures: tuple[Failure, ...] = ()
    domain: str = ""
    seconds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for index, value in self._values():
            # beyond it, squares and gradients overflow and the weights are what looks at fault
            if not abs(value) <= LARGEST:  # nan is not either
                raise ValueError(
                    f"the reward {value!r} of rollout {index} is no number from {-LARGEST:g} to "
                    f"{LARGEST:g}: leave the rollout unscored (None)"
                )
        for name, values in self.parts.items():
            assert len(values) == len(self.rewards), f"part {name} has another length"

    def _values(self) -> Iterator[tuple[int, float]]:
        for index, credit in enumerate(self.rewards):
            if isinstance(credit, tuple):
                yield from ((index, value) for value in credit)
            elif credit is not None:
                yield index, credit

    @property
    def totals(self) -> list[float | None]:
        """Value of each completion, None where unscored."""
        return [total_credit(credit) for credit in self.rewards]


def group_rewards_from_row(row: Mapping[str, Any]) -> GroupRewards:
    """Inverse of `dataclasses.asdict` and JSON, for rewards without failures."""
    assert not row["failures"], "rewards with failures are asked for again"
    rewards = [tuple(value) if isinstance(value, list) else value for value in row["rewards"]]
    return GroupRewards(
        rewards=tuple(rewards),
        parts={name: tuple(values) for name, values in row["parts"].items()},
        judgements=tuple(row["judgements"]),
        counts=row["counts"],
        requests=row["requests"],
        domain=row["domain"],
        seconds=tuple(row["seconds"]),
    )


class GroupReward(Protocol):
    """Rewards whole groups. Every group of a step that a process holds comes in one call."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Inputs that decide the rewards (judge, prompts, coefficients); a run is bound to them."""
        ...

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        """One `GroupRewards` a group, in order; `seed` is of this step, the same after a resume."""
        ...

    def settle(self, requests: int, failures: Sequence[Failure], *, domain: str = "") -> None:
        """Stop the run if too large a share of a step's requests failed, domain by domain.

        Args:
            requests, failures: of all processes in the step.

        Raises:
            JudgeError, TrainingError: the share is above the recipe's limit.
        """
        ...


@runtime_checkable
class EarlyReward(Protocol):
    """A reward that can begin with one completion while others of its group are still sampled."""

    def begin(self, prompt: Prompt, completion: Completion) -> Sequence[asyncio.Task[Any]]:
        """Start the work on a completion, the same object that `reward` is given later.

        Called in the event loop; must not wait.

        Returns:
            The tasks of this work, which the caller cancels where a rollout ends the run.
        """
        ...


@runtime_checkable
class EarlyGroupReward(Protocol):
    """A reward that can begin with one group while other groups are still sampled."""

    def begin_group(self, group: Group, *, seed: int) -> Sequence[asyncio.Task[Any]]:
        """Start the work on a group whose last rollout has ended.

        `reward` is given the same completions and seed later. Called in the event loop; must not
        wait.

        Returns:
            The tasks of this work, as for `EarlyReward.begin`.
        """
        ...


@runtime_checkable
class CheckpointedReward(Protocol):
    """A reward that keeps what servers have answered on disk, for a resumed run."""

    def on_checkpoint(self) -> None:
        """Drop what no checkpoint needs. Called in every process while one is written."""
        ...
