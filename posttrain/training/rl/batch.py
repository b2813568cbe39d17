"""Scored groups → the rows that are trained on → micro-batches of tensors.

A row is a whole completion behind its prompt, right-padded. Labels are -100 where the policy did
not sample: prompt, tool results, forced closings, padding. Rows that are not in the loss are left
out here: they are often the longest.
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
# of `ParsedCompletion.problems`
CALL_PROBLEMS = frozenset({"half_call", "malformed_call"})
TAG_PROBLEMS = frozenset({"unclosed_think", "two_closings", "unexpected_think"})


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with its rewards and advantages: one a completion or one a token, None: unscored.

    Attributes:
        position: in its batch; `attempt` counts from 0 the groups that were rolled out for it.
        dropped: nothing differs in it, and dynamic sampling leaves it out of the loss.
    """

    position: int
    group: Group
    rewards: GroupRewards
    advantages: tuple[Credit, ...]
    attempt: int = 0
    dropped: bool = False

    @property
    def informative(self) -> bool:
        """Whether any of its rollouts has an advantage; decided on the whole group, whatever of it
        is in the loss."""
        return any(
            any(advantage) if isinstance(advantage, tuple) else advantage
            for advantage in self.advantages
        )

    def in_loss(self, overlong: Overlong) -> list[int]:
        """Indices of the rollouts that are trained on."""
        return [
            k
            for k, completion in enumerate(self.group.completions)
            if not self.dropped
            and self.advantages[k] is not None
            and completion.finish != "failed"
            and (overlong == "train" or not completion.truncated)
        ]


@dataclass(frozen=True, slots=True)
class TrainedRow:
    """One rollout in the loss.

    Attributes:
        place: position of its group, index in it.
        ids: prompt and, from `start` on, completion.
        sampled, logps, advantages: of each id from `start` on, whether the policy sampled it, its
            nats, and what the loss weighs it with; 0 where the policy did not sample.
    """

    place: tuple[int, int]
    ids: tuple[int, ...]
    start: int
    sampled: tuple[bool, ...]
    logps: tuple[float, ...]
    advantages: tuple[float, ...]

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
    """Advantages of every rollout of some groups.

    A completion's value is held against the others of its group (`leave_one_out_advantages`), in
    which a truncated completion takes part, and one that is unscored or has values for its tokens
    does not. A token's value is its advantage as it is: values of tokens have no common baseline.

    Raises:
        ValueError: values for more or fewer tokens than the policy wrote.
    """
    compared = leave_one_out_advantages(
        [
            [None if isinstance(credit, tuple) else credit for credit in group_rewards.rewards]
            for group_rewards in rewards
        ]
    )
    if loss.advantage_clip is not None:
        compared = np.clip(compared, -loss.advantage_clip, loss.advantage_clip)
    scored: list[ScoredGroup] = []
    for position, group, group_rewards, row in zip(
        positions, groups, rewards, compared, strict=True
    ):
        advantages: list[Credit] = []
        for credit, relative, completion in zip(
            group_rewards.rewards, row, group.completions, strict=True
        ):
            if credit is None:
                advantage = None
            elif isinstance(credit, tuple):
                advantage = _of_tokens(credit, completion, loss)
            else:
                advantage = float(relative)
            advantages.append(
                None if advantage is None else _penalised(advantage, completion, loss)
            )
        scored.append(ScoredGroup(position, group, group_rewards, tuple(advantages)))
    return scored


def _of_tokens(
    values: tuple[float, ...], completion: Completion, loss: GrpoLossConfig
) -> tuple[float, ...]:
    """Advantages of the tokens that the policy wrote, clipped as the recipe says."""
    written = 0 if completion.finish == "failed" else sum(completion.sampled()[1])
    if len(values) != written:
        raise ValueError(
            f"prompt {completion.prompt_id!r}, rollout {completion.index}: the reward has values "
            f"for {len(values)} tokens, and the policy wrote {written}; tool results, forced "
            "closings and the prompt have none"
        )
    limit = loss.advantage_clip
    return values if limit is None else tuple(min(max(value, -limit), limit) for value in values)


def _penalised(
    advantage: float | tuple[float, ...], completion: Completion, loss: GrpoLossConfig
) -> float | tuple[float, ...]:
    """The advantage, or what the recipe puts in the place of a malformed completion's."""
    if completion.truncated:
        return advantage
    problems = {problem for step in completion.steps for problem in step.parsed.problems}
    penalties = ((CALL_PROBLEMS, loss.malformed_call_advantage),
                 (TAG_PROBLEMS, loss.malformed_tag_advantage))  # fmt: skip
    due = [penalty for kinds, penalty in penalties if penalty is not None and kinds & problems]
    return min(due, default=advantage)


def trained_rows(scored: Sequence[ScoredGroup], *, overlong: Overlong) -> list[TrainedRow]:
    """The rows in the loss, longest first, so that micro-batches pad little."""
    rows = [row_of(one, index) for one in scored for index in one.in_loss(overlong)]
    return sorted(rows, key=lambda row: (-len(row.ids), row.place))


def row_of(scored: ScoredGroup, index: int) -> TrainedRow:
    """One rollout as a row; every one of its steps has ids and log-probabilities."""
    completion = scored.group.completions[index]
    assert completion.prompt_ids is not None, "the engine in process gives ids"
    ids, sampled = completion.sampled()
    logps: list[float] = []
    for step in completion.steps:
        assert step.logps is not None, "asked for"
        logps += [*step.logps, *[0.0] * len(step.results_ids)]
    advantage = scored.advantages[index] or 0.0
    if isinstance(advantage, tuple):
        values = iter(advantage)
        spread = tuple(next(values) if wrote else 0.0 for wrote in sampled)
    else:
        spread = tuple(advantage if wrote else 0.0 for wrote in sampled)
    return TrainedRow(
        place=(scored.position, index),
        ids=(*completion.prompt_ids, *ids),
        start=len(completion.prompt_ids),
        sampled=sampled,
        logps=tuple(logps),
        advantages=spread,
    )


def micro_batches(
    rows: Sequence[TrainedRow], scored: Sequence[ScoredGroup], *, count: int
) -> list[list[TrainedRow]]:
    """Exactly `count` micro-batches of neighbouring rows, as equal as can be. Where there are fewer
    rows, the shortest rollout of `scored` runs with an empty mask: all processes must run as many.

    Raises:
        TrainingError: nothing could be sampled.
    """
    each, more = divmod(len(rows), count)
    ends = [(k + 1) * each + min(k + 1, more) for k in range(count)]
    parts = [list(rows[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    if each:
        return parts
    sampled = [
        row_of(one, index)
        for one in scored
        for index, completion in enumerate(one.group.completions)
        if completion.finish != "failed"
    ]
    if not sampled:
        error = scored[0].group.completions[0].error
        raise TrainingError(f"no rollout of {len(scored)} prompts could be made: {error}")
    shortest = min(sampled, key=lambda row: (len(row.ids), row.place))
    columns = len(shortest.sampled)
    silent = replace(shortest, sampled=(False,) * columns, advantages=(0.0,) * columns)
    return [part or [silent] for part in parts]


def collate(rows: Sequence[TrainedRow], *, pad_id: int) -> Batch:
    """Tensors of a micro-batch, `[rows, columns]`: input_ids, attention_mask and labels int64;
    sampled, nats of each label's token under the sampler, and advantages float32; and places."""
    labels = (
        [IGNORED] * row.start
        + [i if s else IGNORED for i, s in zip(row.ids[row.start :], row.sampled, strict=True)]
        for row in rows
    )
    return padded([row.ids for row in rows], labels, pad_id) | {
        "sampled": _behind_prompts(rows, [row.logps for row in rows]),
        "advantages": _behind_prompts(rows, [row.advantages for row in rows]),
        "places": [row.place for row in rows],
    }


def _behind_prompts(
    rows: Sequence[TrainedRow], values: Sequence[tuple[float, ...]]
) -> torch.Tensor:
    """Values of the ids behind each row's prompt, float32 `[rows, columns]`; 0 elsewhere."""
    columns = [torch.tensor([*[0.0] * row.start, *v]) for row, v in zip(rows, values, strict=True)]
    return torch.nn.utils.rnn.pad_sequence(columns, batch_first=True)
