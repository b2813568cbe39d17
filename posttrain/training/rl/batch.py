"""Scored groups → the rows that are trained on → micro-batches of tensors.

    rows = trained_rows(scored, overlong="mask")
    collate(rows[:8], pad_id=0)   → {"input_ids": [8, T], "labels": [8, T], "sampled": [8, T], …}

A row is a whole completion behind its prompt, right-padded. Labels are -100 where the policy did
not sample: prompt, tool results, forced closings, padding. Rows that are not in the loss are left
out here: they are often the longest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from posttrain.config.grpo import GrpoLossConfig, Overlong
from posttrain.errors import TrainingError
from posttrain.group_rewards import Group, GroupRewards
from posttrain.rollouts import Completion
from posttrain.tokens.encode import IGNORED
from posttrain.training.rl.advantages import leave_one_out_advantages

Batch = dict[str, Any]
# of `ParsedCompletion.problems`
CALL_PROBLEMS = frozenset({"half_call", "malformed_call"})
TAG_PROBLEMS = frozenset({"unclosed_think", "two_closings", "unexpected_think"})


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with its rewards and advantages (None: unscored).

    Attributes:
        position: in its batch; `attempt` counts from 0 the groups that were rolled out for it.
        dropped: nothing differs in it, and dynamic sampling leaves it out of the loss.
    """

    position: int
    group: Group
    rewards: GroupRewards
    advantages: tuple[float | None, ...]
    attempt: int = 0
    dropped: bool = False

    @property
    def informative(self) -> bool:
        """Whether any of its rollouts has an advantage; decided on the whole group, whatever of it
        is in the loss."""
        return any(self.advantages)


@dataclass(frozen=True, slots=True)
class TrainedRow:
    """One rollout in the loss.

    Attributes:
        place: position of its group, index in it.
        ids: prompt and completion.
        start: where the completion begins.
        sampled: of each id from `start` on, whether the policy sampled it.
        logps: nats of each id from `start` on, under the policy that sampled it.
    """

    place: tuple[int, int]
    ids: tuple[int, ...]
    start: int
    sampled: tuple[bool, ...]
    logps: tuple[float, ...]
    advantage: float

    @property
    def tokens(self) -> int:
        """In the loss."""
        return sum(self.sampled)


def with_advantages(
    positions: Sequence[int],
    groups: Sequence[Group],
    rewards: Sequence[GroupRewards],
    loss: GrpoLossConfig,
) -> list[ScoredGroup]:
    """Leave-one-out advantages; a truncated completion takes part, an unscored one does not."""
    assert len(positions) == len(groups) == len(rewards), "one GroupRewards a group"
    for group, given in zip(groups, rewards, strict=True):
        assert len(given.rewards) == len(group.completions), "one reward a rollout"
    table = np.array(
        [[math.nan if r is None else r for r in given.rewards] for given in rewards], float
    )
    advantages = leave_one_out_advantages(table)
    if loss.advantage_clip is not None:
        advantages = np.clip(advantages, -loss.advantage_clip, loss.advantage_clip)
    return [
        ScoredGroup(
            position,
            group,
            given,
            tuple(
                None if r is None else _penalised(float(a), completion, loss)
                for r, a, completion in zip(given.rewards, row, group.completions, strict=True)
            ),
        )
        for position, group, given, row in zip(positions, groups, rewards, advantages, strict=True)
    ]


def _penalised(advantage: float, completion: Completion, loss: GrpoLossConfig) -> float:
    """The advantage, or what the recipe puts in the place of a malformed completion's."""
    if completion.truncated:
        return advantage
    problems = {problem for step in completion.steps for problem in step.parsed.problems}
    penalties = ((CALL_PROBLEMS, loss.malformed_call_advantage),
                 (TAG_PROBLEMS, loss.malformed_tag_advantage))  # fmt: skip
    due = [penalty for kinds, penalty in penalties if penalty is not None and kinds & problems]
    return min(due, default=advantage)


def in_loss(completion: Completion, advantage: float | None, *, overlong: Overlong) -> bool:
    """Whether a rollout is trained on."""
    if advantage is None or completion.finish == "failed":
        return False
    return overlong == "train" or not completion.truncated


def trained_rows(scored: Sequence[ScoredGroup], *, overlong: Overlong) -> list[TrainedRow]:
    """The rows in the loss, longest first, so that micro-batches pad little."""
    rows = [
        row_of(one, index, advantage)
        for one in scored
        if not one.dropped
        for index, advantage in enumerate(one.advantages)
        if advantage is not None
        and in_loss(one.group.completions[index], advantage, overlong=overlong)
    ]
    return sorted(rows, key=lambda row: (-len(row.ids), row.place))


def row_of(scored: ScoredGroup, index: int, advantage: float) -> TrainedRow:
    """One rollout as a row; every one of its steps has ids and log-probabilities."""
    completion = scored.group.completions[index]
    assert completion.prompt_ids is not None, "the engine in process gives ids"
    ids, sampled = completion.sampled()
    logps: list[float] = []
    for step in completion.steps:
        assert step.logps is not None, "asked for"
        logps += [*step.logps, *[0.0] * len(step.results_ids)]
    return TrainedRow(
        place=(scored.position, index),
        ids=(*completion.prompt_ids, *ids),
        start=len(completion.prompt_ids),
        sampled=sampled,
        logps=tuple(logps),
        advantage=advantage,
    )


def micro_batches(
    rows: Sequence[TrainedRow], scored: Sequence[ScoredGroup], *, count: int
) -> list[list[TrainedRow]]:
    """Exactly `count` micro-batches of neighbouring rows, as equal as can be.

    Every process must run as many as the others: one without a row in the loss runs the shortest of
    its rollouts with an empty mask.

    Args:
        scored: the groups that the rows are of.
    """
    each, more = divmod(len(rows), count)
    ends = [(k + 1) * each + min(k + 1, more) for k in range(count)]
    parts = [list(rows[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    if each:
        return parts
    shortest = _shortest(scored)
    silent = replace(shortest, sampled=(False,) * len(shortest.sampled))
    return [part or [silent] for part in parts]


def _shortest(scored: Sequence[ScoredGroup]) -> TrainedRow:
    rows = [
        row_of(one, index, 0.0)
        for one in scored
        for index, completion in enumerate(one.group.completions)
        if completion.finish != "failed"
    ]
    if not rows:
        error = scored[0].group.completions[0].error
        raise TrainingError(f"no rollout of {len(scored)} prompts could be made: {error}")
    return min(rows, key=lambda row: (len(row.ids), row.place))


def collate(rows: Sequence[TrainedRow], *, pad_id: int) -> Batch:
    """Tensors of a micro-batch.

    Returns:
        input_ids, attention_mask, labels: int64 `[rows, columns]`; sampled: float32 nats of each
        label's token under the sampler, 0 elsewhere; advantages: float32 `[rows]`; places: list.
    """
    width = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), width), pad_id)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    labels = torch.full((len(rows), width), IGNORED)
    nats = torch.zeros((len(rows), width))
    for k, row in enumerate(rows):
        end = len(row.ids)
        ids[k, :end] = torch.tensor(row.ids)
        mask[k, :end] = 1
        sampled = torch.tensor(row.sampled, dtype=torch.bool)
        completion = ids[k, row.start : end]
        labels[k, row.start : end] = completion.masked_fill(~sampled, IGNORED)
        nats[k, row.start : end] = torch.tensor(row.logps)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": labels,
        "sampled": nats,
        "advantages": torch.tensor([row.advantage for row in rows]),
        "places": [row.place for row in rows],
    }
