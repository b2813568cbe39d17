"""What a judge in training is rewarded for: its verdicts against gold, equation 1 of the paper.

    await VerdictReward().reward([Group(prompt, completions)], seed=0)
    → [GroupRewards(rewards=(-1.0, -21.0), parts={"format": (1.0, 0.0), "ranking_error": …, …})]

A judgement that ran into a limit, or that cannot be read, has no verdict: it is malformed. One that
the backend lost is unscored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from posttrain.errors import DataError
from posttrain.group_rewards import Failure, Group, GroupRewards
from posttrain.jsontext import load_json
from posttrain.rollouts import Completion, Prompt
from reward.judge.verdict import (
    FORMAT_WEIGHT,
    RANKING_WEIGHT,
    Gold,
    Verdict,
    parse_verdict,
    preferred,
    training_reward,
)

GRADER = "genrm"
PARTS = ("format", "right_order", "score_error_1", "score_error_2", "ranking_error")


@dataclass(frozen=True, slots=True)
class VerdictScore:
    """One judgement held against its gold.

    Attributes:
        verdict: None where malformed.
        reward: of equation 1; a malformed one pays the worst distances too.
        parts: `PARTS`, what is logged beside the reward. `right_order`: whether it prefers what the
            gold prefers (1.0 or 0.0; half where it prefers neither, 0.0 where malformed), None
            where the gold prefers neither. The errors are distances, None where malformed or where
            the gold has no such score.
    """

    verdict: Verdict | None
    reward: float
    parts: Mapping[str, float | None]

    @property
    def figures(self) -> dict[str, float | None]:
        """What an evaluation of judges measures of one judgement, but for its length."""
        verdict = self.verdict
        choice = None if verdict is None else preferred(verdict)
        right = self.parts["right_order"]
        errors = [e for k in (1, 2) if (e := self.parts[f"score_error_{k}"]) is not None]
        return {
            "pairwise_accuracy": right,
            "pairwise_accuracy_readable": None if verdict is None else right,
            "format": self.parts["format"],
            "prefers_first": float(choice == 1) if choice else None,
            "prefers_neither": None if choice is None else float(choice == 0),
            "same_scores": None if verdict is None else float(verdict.score_1 == verdict.score_2),
            "reward": self.reward,
            "score_error": sum(errors) / len(errors) if errors else None,
            "ranking_error": self.parts["ranking_error"],
        }


def outcome_of(completion: Completion, gold: Gold) -> VerdictScore | None:
    """A judgement against its gold; None where the backend gave none."""
    if completion.finish == "failed":
        return None
    verdict = None if completion.truncated else parse_verdict(completion.answer)
    wanted, errors = preferred(gold), (None, None, None)
    right = 0.0 if wanted else None
    if verdict is not None:
        choice = preferred(verdict)
        right = (0.5 if choice == 0 else float(choice == wanted)) if wanted else None
        errors = tuple(
            None if score is None else abs(given - score)
            for given, score in zip(astuple(verdict), astuple(gold), strict=True)
        )
    figures = (float(verdict is not None), right, *errors)
    parts: dict[str, float | None] = dict(zip(PARTS, figures, strict=True))
    return VerdictScore(verdict, training_reward(verdict, gold), parts)


def gold_from(prompt: Prompt) -> Gold:
    """The gold verdict of a judging prompt.

    Raises:
        DataError: the prompt carries none that can be read.
    """
    try:
        row: Any = load_json(prompt.gold or "")
        first, second = (None if row[n] is None else float(row[n]) for n in ("score_1", "score_2"))
        return Gold(first, second, float(row["ranking"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"prompt {prompt.id!r}: its gold {prompt.gold!r:.80} is no verdict ({error!r}); "
            "judging prompts are made by build_genrm"
        ) from error


class VerdictReward:
    """A `GroupReward`: groups of judgements of one pair, each rewarded by itself."""

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"reward": GRADER, "format": FORMAT_WEIGHT, "ranking": RANKING_WEIGHT}

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        return [_rewards(group) for group in groups]

    def settle(self, requests: int, failures: Sequence[Failure], *, domain: str = "") -> None:
        """No judge is called: nothing can fail."""


def _rewards(group: Group) -> GroupRewards:
    gold = gold_from(group.prompt)
    outcomes = [outcome_of(completion, gold) for completion in group.completions]
    parts = {name: tuple(None if o is None else o.parts[name] for o in outcomes) for name in PARTS}
    judged = [outcome for outcome in outcomes if outcome is not None]
    choices = [preferred(o.verdict) for o in judged if o.verdict is not None]
    return GroupRewards(
        rewards=tuple(None if o is None else o.reward for o in outcomes),
        parts=parts,
        counts={
            "judgements": len(judged),
            "malformed": len(judged) - len(choices),
            "prefers_1": choices.count(1),
            "prefers_2": choices.count(2),
            "prefers_neither": choices.count(0),
        },
    )
