"""The reward of RLHF: final answers are judged in pairs, and what their length adds comes on top.
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

PRINCIPLE = "principle"  # of a prompt's metadata
Values = tuple[float | None, ...]
Paired = tuple[int, int, Comparison]  # the indices of the rollouts that are compared


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
        self._judge, self._config = judge, config
        self._pairing, self._length = pairing, length
        self._graders = graders or {}

    @property
    def identity(self) -> Mapping[str, Any]:
        return {
            "judge": dict(self._judge.identity),
            "pairing": self._pairing.model_dump(mode="json"),
            "length": self._length.model_dump(mode="json"),
        }

    def begin_group(self, group: Group, *, seed: int) -> None:
        self._judge.begin([comparison for _, _, comparison in self._pairs(group)], seed=seed)

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        paired = [list(self._pairs(group)) for group in groups]
        comparisons = [comparison for pairs in paired for _, _, comparison in pairs]
        watching = asyncio.create_task(asyncio.to_thread(self._accuracies, groups))
        try:
            judgements = await self._judge.judge(comparisons, seed=seed)
        finally:
            accuracies = await watching
        results = iter(judgements)
        return [
            self._rewarded(group, pairs, [next(results) for _ in pairs], accuracy)
            for group, pairs, accuracy in zip(groups, paired, accuracies, strict=True)
        ]

    def settle(self, requests: int, failures: Sequence[Failure], *, domain: str = "") -> None:
        refuse_failures(requests, failures, max_failure_rate=self._config.max_failure_rate)
        self._judge.keep_failures()

    def _pairs(self, group: Group) -> Iterator[Paired]:
        """The comparisons of a group, by the rollouts' indices and nothing else."""
        present = [k for k, c in enumerate(group.completions) if c.finish != "failed"]
        answers = {k: shown_answer(group.completions[k]) for k in present}
        principle = principle_of(group.prompt)
        for i, j in STRATEGIES[self._pairing.strategy](len(present)):
            first, second = present[i], present[j]
            shown = answers[first], answers[second]
            yield first, second, Comparison(group.prompt.messages, *shown, principle)

    def _rewarded(
        self,
        group: Group,
        pairs: Sequence[Paired],
        judgements: Sequence[Judgement],
        accuracy: Values | None,
    ) -> GroupRewards:
        judged = [(i, j, found) for (i, j, _), found in zip(pairs, judgements, strict=True)]
        verdicts = [(i, j, found.verdict) for i, j, found in judged]
        base = base_rewards(len(group.completions), verdicts)
        rewards, parts = with_lengths(base, group.completions, self._length)
        if accuracy is not None:
            parts["accuracy"] = accuracy
        return GroupRewards(
            rewards,
            parts,
            tuple(_row(*one) for one in judged),
            _counts(judgements),
            requests=len(judgements),
            failures=failures_of(judgements),
        )

    def _accuracies(self, groups: Sequence[Group]) -> list[Values | None]:
        """Per group the grader's score of each rollout; None without a grader."""
        values: list[Values | None] = [None] * len(groups)
        for name, grader in self._graders.items():  # at once: a slow answer then holds up no group
            prompts = [(k, group.prompt, group.completions) for k, group in enumerate(groups)]
            own = [one for one in prompts if one[1].grader == name and one[1].gold is not None]
            attempts = [Attempt(prompt, c) for _, prompt, completions in own for c in completions]
            scores = iter(grader.grade(attempts) if attempts else ())
            for k, _, completions in own:
                values[k] = tuple(next(scores).value for _ in completions)
        return values


def principle_of(prompt: Prompt) -> str | None:
    """What a prompt's metadata says its answers are to be judged by, None without a text there."""
    given = metadata_of(prompt).get(PRINCIPLE)
    return given if isinstance(given, str) and given.strip() else None


def _row(first: int, second: int, judgement: Judgement) -> dict[str, Any]:
    verdict = judgement.verdict
    row: dict[str, Any] = {
        "first": first,
        "second": second,
        **_fields(verdict),
        "failed": verdict is None,
        "reason": judgement.reason,
        "cached": all(vote.cached for vote in judgement.votes),
        "text": judgement.votes[0].text,
    }
    if len(judgement.votes) > 1:
        row["votes"] = [
            {**_fields(vote.verdict), "reason": vote.reason, "text": vote.text}
            for vote in judgement.votes
        ]
    return row


def _fields(verdict: Verdict | None) -> dict[str, float | None]:
    names = ("score_1", "score_2", "ranking")
    return {name: None if verdict is None else getattr(verdict, name) for name in names}


def _counts(judgements: Sequence[Judgement]) -> dict[str, float]:
    costs = JudgeCosts()
    costs.add(judgements, seconds=0.0)
    verdicts = [judgement.verdict for judgement in judgements if judgement.verdict is not None]
    scores = [match_scores(verdict) for verdict in verdicts]  # the ranking has decided ties
    names = ("failed", "calls", "retries", "cached", "prompt_tokens", "completion_tokens")
    return {
        "matches": costs.matches,
        **{f"judge_{name}": getattr(costs, name) for name in names},
        "ties": sum(verdict.score_1 == verdict.score_2 for verdict in verdicts),
        "position_1_wins": sum(first > second for first, second in scores),
        "position_2_wins": sum(second > first for first, second in scores),
    }
