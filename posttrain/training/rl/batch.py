"""Scored groups → the rows that are trained on → micro-batches of tensors.

A row is a whole completion behind its prompt, right-padded. Labels are -100 where the policy did
not sample: prompt, tool results, forced closings, padding. Rollouts outside the loss never become
rows: they are often the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from posttrain.config.grpo import GrpoLossConfig, Overlong
from posttrain.errors import TrainingError
from posttrain.group_rewards import Credit, Group, GroupRewards
from posttrain.rollouts import Completion
from posttrain.tokens.encode import IGNORED
from posttrain.training.document_masking import padded
from posttrain.training.rl.advantages import leave_one_out_advantages

Batch = dict[str, Any]
RolloutKey = tuple[int, int]  # position of the group in its step, index in the group


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with its rewards and advantages.

    Attributes:
        position: Number of the group in its step, from 0, over all processes.
        advantages: Advantage of each completion or of each of its tokens; None where unscored.
        attempt: Number of groups that were rolled out for this position before it.
        dropped: True where dynamic sampling leaves the group out of the loss, as its rewards are
            all equal.
    """

    position: int
    group: Group
    rewards: GroupRewards
    advantages: tuple[Credit, ...]
    attempt: int = 0
    dropped: bool = False

    @property
    def informative(self) -> bool:
        """True if any rollout has an advantage other than 0, in the loss or not."""
        return any(
            any(advantage) if isinstance(advantage, tuple) else advantage
            for advantage in self.advantages
        )

    def in_loss(self, overlong: Overlong) -> list[int]:
        """Indices of the rollouts that are trained on."""
        if self.dropped:
            return []
        indices: list[int] = []
        for index, completion in enumerate(self.group.completions):
            if self.advantages[index] is None or completion.finish == "failed":
                continue
            if overlong == "train" or not completion.truncated:
                indices.append(index)
        return indices


@dataclass(frozen=True, slots=True)
class TrainedRow:
    """One rollout in the loss.

    Attributes:
        key: Position of its group and index in the group.
        ids: Token ids of the prompt and, from `start` on, of the completion.
        sampled: True for each id from `start` on that the policy sampled.
        logps: Log-probability of each id from `start` on under the sampler; 0 where not sampled.
        advantages: Advantage of each id from `start` on; 0 where not sampled.
    """

    key: RolloutKey
    ids: tuple[int, ...]
    start: int
    sampled: tuple[bool, ...]
    logps: tuple[float, ...]
    advantages: tuple[float, ...]

    @property
    def tokens(self) -> int:
        """Number of tokens in the loss."""
        return sum(self.sampled)


def with_advantages(
    positions: Sequence[int],
    groups: Sequence[Group],
    rewards: Sequence[GroupRewards],
    loss: GrpoLossConfig,
) -> list[ScoredGroup]:
    """Compute the advantages of every rollout of these groups.

    A completion's value is compared with the others of its group (`leave_one_out_advantages`). A
    truncated completion takes part in the comparison; one that is unscored or has values for its
    tokens does not. A token's value is its advantage as it is, since values of tokens have no
    common baseline.

    Raises:
        ValueError: a reward has values for more or fewer tokens than the policy wrote.
    """
    completion_rewards: list[list[float | None]] = []
    for group_rewards in rewards:
        values: list[float | None] = [
            None if isinstance(credit, tuple) else credit for credit in group_rewards.rewards
        ]
        completion_rewards.append(values)
    relative = leave_one_out_advantages(completion_rewards)
    # behind the division by the deviation, which is what makes an advantage large
    if loss.advantage_clip is not None:
        relative = np.clip(relative, -loss.advantage_clip, loss.advantage_clip)
    scored: list[ScoredGroup] = []
    for position, group, group_rewards, relative_row in zip(
        positions, groups, rewards, relative, strict=True
    ):
        advantages: list[Credit] = []
        for credit, relative_advantage, completion in zip(
            group_rewards.rewards, relative_row, group.completions, strict=True
        ):
            if credit is None:
                advantages.append(None)
                continue
            if isinstance(credit, tuple):
                advantages.append(_token_advantages(credit, completion, loss))
            else:
                advantages.append(float(relative_advantage))
        scored.append(ScoredGroup(position, group, group_rewards, tuple(advantages)))
    return scored


def _token_advantages(
    values: tuple[float, ...], completion: Completion, loss: GrpoLossConfig
) -> tuple[float, ...]:
    """Clip the values of a completion's tokens to the recipe's `advantage_clip`."""
    written = 0 if completion.finish == "failed" else sum(completion.sampled()[1])
    if len(values) != written:
        raise ValueError(
            f"prompt {completion.prompt_id!r}, rollout {completion.index}: the reward has values "
            f"for {len(values)} tokens, and the policy wrote {written}; tool results, forced "
            "closings and the prompt have none"
        )
    limit = loss.advantage_clip
    return values if limit is None else tuple(min(max(value, -limit), limit) for value in values)


def trained_rows(scored: Sequence[ScoredGroup], *, overlong: Overlong) -> list[TrainedRow]:
    """Rows of the rollouts in the loss, longest first, so that micro-batches pad little."""
    rows: list[TrainedRow] = []
    for group in scored:
        rows += [row_of(group, index) for index in group.in_loss(overlong)]
    return sorted(rows, key=_longest_first)


def _longest_first(row: TrainedRow) -> tuple[int, RolloutKey]:
    # the key breaks ties, so that the order does not depend on the layout of processes
    return -len(row.ids), row.key


def row_of(scored: ScoredGroup, index: int) -> TrainedRow:
    """Convert a rollout, all of whose steps have ids and log-probabilities, to a row."""
    completion = scored.group.completions[index]
    assert completion.prompt_ids is not None, "engines of training return ids"
    ids, sampled = completion.sampled()
    logps: list[float] = []
    for step in completion.steps:
        assert step.logps is not None, "rollouts request log-probabilities"
        logps += step.logps
        # no ratio is taken of tool results; the columns have to stay those of the ids
        logps += [0.0] * len(step.results_ids)
    # an unscored rollout becomes a row only to fill an empty micro-batch, with nothing in the loss
    advantage = scored.advantages[index] or 0.0
    if isinstance(advantage, tuple):
        values = iter(advantage)
        advantages = tuple(next(values) if from_policy else 0.0 for from_policy in sampled)
    else:
        advantages = tuple(advantage if from_policy else 0.0 for from_policy in sampled)
    return TrainedRow(
        key=(scored.position, index),
        ids=(*completion.prompt_ids, *ids),
        start=len(completion.prompt_ids),
        sampled=sampled,
        logps=tuple(logps),
        advantages=advantages,
    )


def micro_batches(
    rows: Sequence[TrainedRow], scored: Sequence[ScoredGroup], *, count: int
) -> list[list[TrainedRow]]:
    """Split rows into exactly `count` micro-batches of neighbours, as equal as possible.

    All processes must run equally many. Where there are fewer rows than `count`, the shortest
    rollout of `scored` fills the empty ones, with nothing of it in the loss.

    Raises:
        TrainingError: nothing could be sampled.
    """
    smaller_size, larger_batches = divmod(len(rows), count)
    batches: list[list[TrainedRow]] = []
    start = 0
    for number in range(count):
        end = start + smaller_size + (number < larger_batches)
        batches.append(list(rows[start:end]))
        start = end
    if smaller_size:
        return batches
    # with no row at all this process would leave the others waiting for its gradients
    sampled: list[TrainedRow] = []
    for group in scored:
        for index, completion in enumerate(group.group.completions):
            if completion.finish != "failed":
                sampled.append(row_of(group, index))
    if not sampled:
        error = scored[0].group.completions[0].error
        raise TrainingError(f"no rollout of {len(scored)} prompts could be made: {error}")
    shortest = min(sampled, key=lambda row: (len(row.ids), row.key))
    columns = len(shortest.sampled)
    # its forward pass runs, and its mask is empty
    masked = replace(shortest, sampled=(False,) * columns, advantages=(0.0,) * columns)
    return [batch or [masked] for batch in batches]


def collate(rows: Sequence[TrainedRow], *, pad_id: int) -> Batch:
    """Tensors of a micro-batch, each `[rows, columns]`, beside the `keys` of its rows.

    `input_ids`, `attention_mask` and `labels` are int64, `sampled` (log-probability of each label's
    token under the sampler) and `advantages` float32.
    """
    labels: list[list[int]] = []
    for row in rows:
        completion_ids = row.ids[row.start :]
        completion_labels = [
            token if from_policy else IGNORED
            for token, from_policy in zip(completion_ids, row.sampled, strict=True)
        ]
        labels.append([IGNORED] * row.start + completion_labels)
    batch = padded([row.ids for row in rows], labels, pad_id)
    return batch | {
        "sampled": _completion_columns(rows, [row.logps for row in rows]),
        "advantages": _completion_columns(rows, [row.advantages for row in rows]),
        "keys": [row.key for row in rows],
    }


def _completion_columns(
    rows: Sequence[TrainedRow], values: Sequence[tuple[float, ...]]
) -> torch.Tensor:
    """Tensor of the values of completions, float32 `[rows, columns]`; 0 for prompt and padding."""
    tensors = [
        torch.tensor([*[0.0] * row.start, *row_values])
        for row, row_values in zip(rows, values, strict=True)
    ]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
