"""The reward of RLHF: rollouts are judged in pairs, and what their length adds comes on top.

    reward = JudgedReward(judge, config=recipe.judge, pairing=recipe.pairing, length=recipe.length)
    await reward.reward([Group(prompt, completions)], seed=7)
    → [GroupRewards(rewards=(4.2, None, …), parts={"base": (3.5, None, …), …}, …)]

Only final answers are judged. A truncated rollout is judged with the answer that is there, or as
one without; a rollout that its backend gave up is in no match, and unscored.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.config.judge import JudgeConfig, LengthConfig, PairingConfig
from posttrain.group_rewards import Failure, Group, GroupRewards
from posttrain.rollouts import Prompt, metadata_of
from reward.graders.base import Attempt, Grader
from reward.judge.judge import GenRmJudge
from reward.judge.prompt import shown_answer
from reward.judge.votes import Judgement, Match, failures_of, refuse_failures
from reward.length import with_lengths
from reward.pairing import STRATEGIES, base_rewards, match_scores

PRINCIPLE = "principle"  # of a prompt's metadata
Values = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class _Paired:
    """A match and where it belongs: the rollouts' indices."""

    first: int
    second: int
    match: Match


class JudgedReward:
    """A `GroupReward`.

    Args:
        judge: who judges.
        config: `max_failure_rate` of it is held against all matches of a step.
        pairing, length: who meets whom; what length adds.
        graders: by name; a prompt that names one and has a gold answer is graded, to be watched
            beside the reward: no part of it.
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
        """As `GroupReward.identity`."""
        return {
            "judge": dict(self._judge.identity),
            "pairing": self._pairing.model_dump(mode="json"),
            "length": self._length.model_dump(mode="json"),
        }

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        """As `GroupReward.reward`."""
        paired = [list(self._pairs(group)) for group in groups]
        matches = [pair.match for pairs in paired for pair in pairs]
        watching = asyncio.create_task(asyncio.to_thread(self._accuracies, groups))
        try:
            judgements = await self._judge.judge(matches, seed=seed)
        finally:
            accuracies = await watching
        said = iter(judgements)
        return [
            self._rewarded(group, pairs, [next(said) for _ in pairs], accuracy)
            for group, pairs, accuracy in zip(groups, paired, accuracies, strict=True)
        ]

    def settle(self, asked: int, failures: Sequence[Failure]) -> None:
        """As `GroupReward.settle`. Raises JudgeError beyond `config.max_failure_rate`."""
        refuse_failures(asked, failures, max_failure_rate=self._config.max_failure_rate)
        self._judge.keep_failures()

    def _pairs(self, group: Group) -> Iterator[_Paired]:
        """The matches of a group, by the rollouts' indices and nothing else."""
        present = [k for k, c in enumerate(group.completions) if c.finish != "failed"]
        answers = {k: shown_answer(group.completions[k]) for k in present}
        principle = principle_of(group.prompt)
        for i, j in STRATEGIES[self._pairing.strategy](len(present)):
            first, second = present[i], present[j]
            match = Match(group.prompt.messages, answers[first], answers[second], principle)
            yield _Paired(first, second, match)

    def _rewarded(
        self,
        group: Group,
        pairs: Sequence[_Paired],
        judgements: Sequence[Judgement],
        accuracy: Values | None,
    ) -> GroupRewards:
        verdicts = [(p.first, p.second, j.verdict) for p, j in zip(pairs, judgements, strict=True)]
        base = base_rewards(len(group.completions), verdicts)
        rewards, parts = with_lengths(base, group.completions, self._length)
        if accuracy is not None:
            parts["accuracy"] = accuracy
        rows = [_row(p, j) for p, j in zip(pairs, judgements, strict=True)]
        return GroupRewards(
            rewards,
            parts,
            tuple(rows),
            _counts(judgements),
            asked=len(judgements),
            failures=failures_of(judgements),
        )

    def _accuracies(self, groups: Sequence[Group]) -> list[Values | None]:
        """Per group what its grader says of each rollout; None without a grader."""
        found: list[Values | None] = [None] * len(groups)
        for name, grader in self._graders.items():
            own = [
                k
                for k, group in enumerate(groups)
                if group.prompt.grader == name and group.prompt.gold is not None
            ]
            attempts = [Attempt(groups[k].prompt, c) for k in own for c in groups[k].completions]
            scores = iter(grader.grade(attempts) if attempts else ())
            for k in own:
                found[k] = tuple(next(scores).value for _ in groups[k].completions)
        return found


def principle_of(prompt: Prompt) -> str | None:
    """What a prompt's metadata says its answers are to be judged by, None without a text there."""
    given = metadata_of(prompt).get(PRINCIPLE)
    return given if isinstance(given, str) and given.strip() else None


def _row(paired: _Paired, judgement: Judgement) -> dict[str, Any]:
    """A judgement as it is written beside the rollouts."""
    verdict = judgement.verdict
    row: dict[str, Any] = {
        "first": paired.first,
        "second": paired.second,
        "score_1": None if verdict is None else verdict.score_1,
        "score_2": None if verdict is None else verdict.score_2,
        "ranking": None if verdict is None else verdict.ranking,
        "failed": verdict is None,
        "reason": judgement.reason,
        "cached": all(vote.cached for vote in judgement.votes),
        "text": judgement.votes[0].text,
    }
    if len(judgement.votes) > 1:
        row["votes"] = [
            {
                "score_1": None if vote.verdict is None else vote.verdict.score_1,
                "score_2": None if vote.verdict is None else vote.verdict.score_2,
                "ranking": None if vote.verdict is None else vote.verdict.ranking,
                "reason": vote.reason,
                "text": vote.text,
            }
            for vote in judgement.votes
        ]
    return row


def _counts(judgements: Sequence[Judgement]) -> dict[str, float]:
    """Additive stats of a group's judgements."""
    counts: Counter[str] = Counter(
        matches=len(judgements),
        judge_failed=0,
        judge_calls=0,
        judge_retries=0,
        judge_cached=0,
        judge_prompt_tokens=0,
        judge_completion_tokens=0,
        ties=0,
        position_1_wins=0,
        position_2_wins=0,
    )
    for judgement in judgements:
        for vote in judgement.votes:
            counts["judge_calls"] += vote.calls
            counts["judge_retries"] += vote.retries
            counts["judge_cached"] += vote.cached
            counts["judge_prompt_tokens"] += vote.prompt_tokens
            counts["judge_completion_tokens"] += vote.completion_tokens
        verdict = judgement.verdict
        if verdict is None:
            counts["judge_failed"] += 1
            continue
        counts["ties"] += verdict.score_1 == verdict.score_2
        first, second = match_scores(verdict)  # the ranking has parted ties
        counts["position_1_wins"] += first > second
        counts["position_2_wins"] += second > first
    return dict(counts)
