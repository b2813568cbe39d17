"""The verdict of a generative reward model on two answers, and what one in training earns for it.

    parse_verdict('Both add up. {"score_1": 4, "score_2": 2.5, "ranking": 2}') → Verdict(4, 2.5, 2)
    training_reward(Verdict(4, 2, 2), Gold(5, 2, 1)) == -2.0

Scores are helpfulness, 1 to 5. The ranking runs from 1 (answer 1 much better) to 6 (answer 2 much
better); 3.5 is its middle, which prefers neither. A verdict that cannot be read is None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, cast

from posttrain.errors import DataError
from posttrain.group_rewards import Failure, Group, GroupRewards
from posttrain.jsontext import load_json
from posttrain.rollouts import Completion, Prompt

LOWEST_SCORE, HIGHEST_SCORE = 1.0, 5.0
LOWEST_RANKING, HIGHEST_RANKING = 1.0, 6.0
MIDDLE_RANKING = (LOWEST_RANKING + HIGHEST_RANKING) / 2
_SCORES, _RANKINGS = (LOWEST_SCORE, HIGHEST_SCORE), (LOWEST_RANKING, HIGHEST_RANKING)
BOUNDS = {"score_1": _SCORES, "score_2": _SCORES, "ranking": _RANKINGS}
FORMAT_WEIGHT, RANKING_WEIGHT = 10.0, 1.0  # C1 and C2 of the paper's equation 1
_FENCE = re.compile(r"^[ \t]*```json[ \t]*$", re.MULTILINE | re.IGNORECASE)
# a brace, or a whole string; the group holds the closing quote, "" where the text ends before it
_TOKEN = re.compile(r'[{}]|"(?:[^"\\]++|\\.)*+("?)', re.DOTALL)


_FLAT_OBJECT = re.compile(r'\{(?:[^{}"]++|"(?:[^"\\]++|\\.)*+")*+\}', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says of answer 1 and answer 2: scores in [1, 5], ranking in [1, 6]."""

    score_1: float
    score_2: float
    ranking: float


@dataclass(frozen=True, slots=True)
class Gold:
    """The verdict that a judge should give. Pairs that are only ranked (safety) have no scores."""

    score_1: float | None
    score_2: float | None
    ranking: float

    def swapped(self) -> Gold:
        """The same opinion had the answers come in the other order."""
        return Gold(self.score_2, self.score_1, 2 * MIDDLE_RANKING - self.ranking)


def parse_verdict(text: str) -> Verdict | None:
    """The verdict of a judge's final answer; None where it does not say one exactly.

    Only the *last* top-level JSON object counts, bare or in a ```json fence, with or without prose
    around it. An object that begins after it and never ends, a stray brace after it, an object
    within a list or another object: all are None. `score_1`, `score_2` and `ranking` must be there,
    as numbers (no booleans, no strings) in their ranges; other keys are not looked at; a key that
    appears twice, NaN and infinities make the object unreadable. Where an earlier object is another
    verdict, nobody can tell the judge's own from one that it quotes from an answer: None as well.

    Args:
        text: without the judge's reasoning; of any length (the work is linear in it).
    """
    fields = last_object(text)
    verdict = None if fields is None else _verdict(fields)
    if verdict is None or text.count('"ranking"') < 2:
        return verdict
    return verdict if all(other == verdict for other in _verdicts(text)) else None


def _verdict(fields: Mapping[str, Any]) -> Verdict | None:
    numbers = [_number(fields.get(name), *bounds) for name, bounds in BOUNDS.items()]
    return None if None in numbers else Verdict(*cast(list[float], numbers))


def _verdicts(text: str) -> Iterator[Verdict]:
    """Every verdict that stands in a text as an object without objects inside."""
    for written in _FLAT_OBJECT.findall(text):
        try:
            verdict = _verdict(cast(dict[str, Any], load_json(written)))
        except ValueError:
            continue
        if verdict is not None:
            yield verdict


def last_object(text: str) -> dict[str, Any] | None:
    """The last top-level JSON object of a judge's final answer; None as for `parse_verdict`."""
    written = _last_object(text)
    try:
        return None if written is None else cast(dict[str, Any], load_json(written))
    except ValueError:
        return None


def _number(value: object, lowest: float, highest: float) -> float | None:
    # a bool is an int to Python; comparing before converting keeps huge integers harmless
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if lowest <= value <= highest else None


def _last_object(text: str) -> str | None:
    """The text of the last top-level {…}, None where what comes last is no whole object."""
    fences = list(_FENCE.finditer(text))
    # no JSON string holds a line break: a fence on its own line is never within an object, and
    # unbalanced braces in the prose before it need not be understood
    floor = at = fences[-1].end() if fences else 0
    start = end = None
    while (opening := text.find("{", at)) >= 0:
        closing = _closing(text, opening)
        if closing is None:
            return None
        start, end, at = opening, closing, closing
    if start is None or end is None or "}" in text[end:]:
        return None
    before, behind = text[floor:start].rstrip(), text[end:].lstrip()
    in_list = before.endswith("[") or behind.startswith("]")
    among = before.endswith(",") and behind.startswith(",")
    return None if in_list or among else text[start:end]


def _closing(text: str, opening: int) -> int | None:
    """Where the object that opens here is over; None: nowhere."""
    depth = 0
    for token in _TOKEN.finditer(text, opening):
        if token[1] == "":
            return None
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    return None


def preferred(verdict: Verdict | Gold) -> int:
    """1 or 2, the response that is preferred by its score and, at equal scores or without scores,
    by the ranking; 0 where neither is."""
    scores = verdict.score_1, verdict.score_2
    if scores[0] is not None and scores[1] is not None and scores[0] != scores[1]:
        return 1 if scores[0] > scores[1] else 2
    if verdict.ranking == MIDDLE_RANKING:
        return 0
    return 1 if verdict.ranking < MIDDLE_RANKING else 2


def training_reward(predicted: Verdict | None, gold: Gold | Verdict) -> float:
    """Equation 1 of the paper: -10 if malformed, minus the distances to the gold.

    A malformed verdict also pays the worst distances that are possible for this gold. The paper
    leaves open what it pays; without them -10 would beat a well-formed verdict that is 13 away.

    Args:
        predicted: None where the judge's answer could not be read.
        gold: a score of it that is None takes no part.
    """
    given = (None, None, None) if predicted is None else astuple(predicted)
    *scores, ranking = (
        max(abs(place - wanted) for place in (bounds if own is None else (own,)))
        for own, wanted, bounds in zip(given, astuple(gold), BOUNDS.values(), strict=True)
        if wanted is not None
    )
    if predicted is None:
        return -FORMAT_WEIGHT - sum(scores) - RANKING_WEIGHT * ranking
    return -sum(scores) - RANKING_WEIGHT * ranking


# -- the reward of training --------------------------------------------------------------------

GRADER = "genrm"
PARTS = ("format", "right_order", "score_error_1", "score_error_2", "ranking_error")


@dataclass(frozen=True, slots=True)
class VerdictScore:
    """One judgement held against its gold; `verdict` is None where malformed.

    `parts` has `PARTS`, logged beside the reward: errors are distances, None where there is nothing
    to compare; `right_order` is whether it prefers what the gold prefers (half where it prefers
    neither, 0.0 where malformed), None where the gold prefers neither.
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
    """The gold verdict of a judging prompt. Raises DataError: the prompt carries none that can be
    read."""
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
