"""The reward of RLHF: final answers are judged in pairs, and length control is added on top.

A truncated rollout is judged with the answer that is there, or as one without; one that its backend
gave up is in no comparison, and unscored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from posttrain.config.judge import JudgeConfig, LengthConfig, PairingConfig
from posttrain.group_rewards import Failure, Group, GroupRewards
from posttrain.rollouts import Prompt, metadata_of
from reward.graders.base import Attempt, Grader
from reward.judge.judge import GenRmJudge
from reward.judge.prompt import shown_answer
from reward.judge.verdict import Verdict
from reward.judge.votes import Comparison, JudgeCosts, Judgement, failures_of, refuse_failures
from reward.length import with_lengths
from reward.pairing import STRATEGIES, base_rewards, match_scores

PRINCIPLE = "principle"  # key of a prompt's metadata
Values = tuple[float | None, ...]
Pair = tuple[int, int, Comparison]  # indices of the two rollouts, their comparison


class JudgedReward:
    """A `GroupReward`: groups of answers, compared in pairs.

    `max_failure_rate` of `config` is held against all comparisons of a step. A prompt that names
    one of `graders` and has a gold answer is graded: to be watched, no part of the reward.
    """

    def __init__(
        self,
        judge: GenRmJudge,
        *,
        config: JudgeConfig,
        pairing: PairingConfig,
        length: LengthConfig,
        graders: Mapping[str, Grader] | None = None,
    ) -> None:
        self._judge = judge
        self._config = config
        self._pairing = pairing
        self._length = length
        self._graders = graders or {}

    @property
    def identity(self) -> Mapping[str, Any]:
        return {
            "judge": dict(self._judge.identity),
            "pairing": self._pairing.model_dump(mode="json"),
            "length": self._length.model_dump(mode="json"),
        }

    def begin_group(self, group: Group, *, seed: int) -> Sequence[asyncio.Task[None]]:
        comparisons = [comparison for _, _, comparison in self._group_pairs(group)]
        return self._judge.begin(comparisons, seed=seed)

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        pairs_by_group = [list(self._group_pairs(group)) for group in groups]
        comparisons: list[Comparison] = []
        for pairs in pairs_by_group:
            comparisons += [comparison for _, _, comparison in pairs]
        # graders run while the judge answers
        grading = asyncio.create_task(asyncio.to_thread(self._grade, groups))
        try:
            judgements = await self._judge.judge(comparisons, seed=seed)
        finally:
            # also where the judge fails: no thread outlives this call
            accuracies = await grading
        remaining_judgements = iter(judgements)
        rewards: list[GroupRewards] = []
        for group, pairs, accuracy in zip(groups, pairs_by_group, accuracies, strict=True):
            group_judgements = [next(remaining_judgements) for _ in pairs]
            rewards.append(self._group_rewards(group, pairs, group_judgements, accuracy))
        return rewards

    def settle(self, requests: int, failures: Sequence[Failure], *, domain: str = "") -> None:
        refuse_failures(requests, failures, max_failure_rate=self._config.max_failure_rate)
        self._judge.keep_failures()

    def _group_pairs(self, group: Group) -> Iterator[Pair]:
        """Comparisons of a group's rollouts; they depend on the rollouts' indices alone."""
        # a rollout that its backend gave up is in no comparison
        present = [k for k, c in enumerate(group.completions) if c.finish != "failed"]
        answers = {k: shown_answer(group.completions[k]) for k in present}
        principle = principle_of(group.prompt)
        for i, j in STRATEGIES[self._pairing.strategy](len(present)):
            index_1 = present[i]
            index_2 = present[j]
            comparison = Comparison(
                group.prompt.messages, answers[index_1], answers[index_2], principle
            )
            yield index_1, index_2, comparison

    def _group_rewards(
        self,
        group: Group,
        pairs: Sequence[Pair],
        judgements: Sequence[Judgement],
        accuracy: Values | None,
    ) -> GroupRewards:
        verdicts: list[tuple[int, int, Verdict | None]] = []
        rows: list[dict[str, Any]] = []
        for (index_1, index_2, _), judgement in zip(pairs, judgements, strict=True):
            verdicts.append((index_1, index_2, judgement.verdict))
            rows.append(_judgement_row(index_1, index_2, judgement))
        base = base_rewards(len(group.completions), verdicts)
        rewards, parts = with_lengths(base, group.completions, self._length)
        if accuracy is not None:
            parts["accuracy"] = accuracy
        return GroupRewards(
            rewards,
            parts,
            tuple(rows),
            _group_counts(judgements),
            requests=len(judgements),
            failures=failures_of(judgements),
        )

    def _grade(self, groups: Sequence[Group]) -> list[Values | None]:
        """Score that its grader gives each rollout, by group; None for a group without a grader."""
        accuracies: list[Values | None] = [None] * len(groups)
        # all groups of a grader in one call: an answer that takes long then holds up no other
        for name, grader in self._graders.items():
            graded_groups: list[int] = []
            attempts: list[Attempt] = []
            for position, group in enumerate(groups):
                if group.prompt.grader == name and group.prompt.gold is not None:
                    graded_groups.append(position)
                    attempts += [Attempt(group.prompt, c) for c in group.completions]
            scores = iter(grader.grade(attempts)) if attempts else iter(())
            for position in graded_groups:
                completions = groups[position].completions
                accuracies[position] = tuple(next(scores).value for _ in completions)
        return accuracies


def principle_of(prompt: Prompt) -> str | None:
    """Principle by which a prompt's answers are judged, from its metadata; None without a text."""
    principle = metadata_of(prompt).get(PRINCIPLE)
    return principle if isinstance(principle, str) and principle.strip() else None


def _judgement_row(index_1: int, index_2: int, judgement: Judgement) -> dict[str, Any]:
    """A judgement as a row to be written beside the rollouts."""
    verdict = judgement.verdict
    row: dict[str, Any] = {
        "first": index_1,
        "second": index_2,
        **_verdict_fields(verdict),
        "failed": verdict is None,
        "reason": judgement.reason,
        "cached": all(vote.cached for vote in judgement.votes),
        "text": judgement.votes[0].text,
    }
    if len(judgement.votes) > 1:
        row["votes"] = [
            {**_verdict_fields(vote.verdict), "reason": vote.reason, "text": vote.text}
            for vote in judgement.votes
        ]
    return row


def _verdict_fields(verdict: Verdict | None) -> dict[str, float | None]:
    names = ("score_1", "score_2", "ranking")
    return {name: None if verdict is None else getattr(verdict, name) for name in names}


def _group_counts(judgements: Sequence[Judgement]) -> dict[str, float]:
    """Figures of a group that are summed over a step."""
    costs = JudgeCosts()
    costs.add(judgements, seconds=0.0)
    verdicts = [judgement.verdict for judgement in judgements if judgement.verdict is not None]
    # after the ranking has decided ties
    scores = [match_scores(verdict) for verdict in verdicts]
    names = ("failed", "calls", "retries", "cached", "prompt_tokens", "completion_tokens")
    return {
        "matches": costs.matches,
        **{f"judge_{name}": getattr(costs, name) for name in names},
        "ties": sum(verdict.score_1 == verdict.score_2 for verdict in verdicts),
        "position_1_wins": sum(score_1 > score_2 for score_1, score_2 in scores),
        "position_2_wins": sum(score_2 > score_1 for score_1, score_2 in scores),
    }
