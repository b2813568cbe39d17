"""The verdict of a generative reward model on two answers, and the reward of one in training.

    parse_verdict('Both add up. {"score_1": 4, "score_2": 2.5, "ranking": 2}') → Verdict(4, 2.5, 2)
    training_reward(Verdict(4, 2, 2), Gold(5, 2, 1)) == -2.0

Scores are helpfulness, 1 to 5. The ranking runs from 1 (answer 1 much better) to 6 (answer 2 much
better); 3.5 is its middle, which prefers neither. A verdict that cannot be read is None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from posttrain.errors import DataError
from posttrain.group_rewards import Failure, Group, GroupRewards
from posttrain.jsontext import load_json
from posttrain.rollouts import Completion, Prompt

LOWEST_SCORE = 1.0
HIGHEST_SCORE = 5.0
LOWEST_RANKING = 1.0
HIGHEST_RANKING = 6.0
MIDDLE_RANKING = (LOWEST_RANKING + HIGHEST_RANKING) / 2
BOUNDS = {
    "score_1": (LOWEST_SCORE, HIGHEST_SCORE),
    "score_2": (LOWEST_SCORE, HIGHEST_SCORE),
    "ranking": (LOWEST_RANKING, HIGHEST_RANKING),
}
FORMAT_WEIGHT = 10.0  # C1 of the paper's equation 1
RANKING_WEIGHT = 1.0  # C2
_FENCE = re.compile(r"^[ \t]*```json[ \t]*$", re.MULTILINE | re.IGNORECASE)
# a brace, or a whole string; the group holds the closing quote, "" where the text ends before it
_TOKEN = re.compile(r'[{}]|"(?:[^"\\]++|\\.)*+("?)', re.DOTALL)
_FLAT_OBJECT = re.compile(r'\{(?:[^{}"]++|"(?:[^"\\]++|\\.)*+")*+\}', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's scores of answer 1 and answer 2, in [1, 5], and its ranking, in [1, 6]."""

    score_1: float
    score_2: float
    ranking: float


@dataclass(frozen=True, slots=True)
class Gold:
    """The right verdict on a pair. Pairs that are only ranked (safety) have no scores."""

    score_1: float | None
    score_2: float | None
    ranking: float

    def swapped(self) -> Gold:
        """The right verdict for the two answers in the other order."""
        return Gold(self.score_2, self.score_1, 2 * MIDDLE_RANKING - self.ranking)


def parse_verdict(text: str) -> Verdict | None:
    """Parse the verdict of a judge's final answer; None where it does not state exactly one.

    Only the *last* top-level JSON object counts, bare or in a ```json fence, with or without prose
    around it. An object that begins after it and never ends, a stray brace after it, and an object
    inside a list or another object give None. `score_1`, `score_2` and `ranking` must be numbers
    (no booleans, no strings) in their ranges; other keys are ignored; a repeated key, NaN and
    infinities make the object unreadable. If an earlier object is another verdict, the judge's own
    cannot be told from one that it quotes from an answer: None as well.

    Args:
        text: answer without the judge's reasoning, of any length (the work is linear in it).
    """
    fields = last_object(text)
    verdict = None if fields is None else _read_verdict(fields)
    if verdict is None or text.count("{") < 2:
        return verdict
    all_equal = all(stated == verdict for stated in _all_verdicts(text))
    return verdict if all_equal else None


def _read_verdict(fields: Mapping[str, Any]) -> Verdict | None:
    numbers = [_number_in_bounds(fields.get(name), *bounds) for name, bounds in BOUNDS.items()]
    return None if None in numbers else Verdict(*cast(list[float], numbers))


def _all_verdicts(text: str) -> Iterator[Verdict]:
    """All verdicts in a text that are objects without objects inside."""
    for object_text in _FLAT_OBJECT.findall(text):
        try:
            verdict = _read_verdict(cast(dict[str, Any], load_json(object_text)))
        except ValueError:
            continue
        if verdict is not None:
            yield verdict


def last_object(text: str) -> dict[str, Any] | None:
    """The last top-level JSON object of a judge's final answer.

    None where the last one is not whole.
    """
    object_text = _last_object_text(text)
    if object_text is None:
        return None
    try:
        return cast(dict[str, Any], load_json(object_text))
    except ValueError:
        return None


def _number_in_bounds(value: object, lowest: float, highest: float) -> float | None:
    # a bool is an int to Python; comparing before converting keeps huge integers harmless
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if lowest <= value <= highest else None


def _last_object_text(text: str) -> str | None:
    """Text of the last top-level {…}; None where the text ends in anything but a whole object."""
    fences = list(_FENCE.finditer(text))
    # no JSON string holds a line break: a fence on its own line is never within an object, and
    # unbalanced braces in the prose before it need not be understood
    search_start = fences[-1].end() if fences else 0
    start: int | None = None
    end = search_start
    while (opening := text.find("{", end)) >= 0:
        closing = _end_of_object(text, opening)
        if closing is None:
            return None
        start = opening
        end = closing
    if start is None or "}" in text[end:]:
        return None
    before = text[search_start:start].rstrip()
    behind = text[end:].lstrip()
    first_or_last_in_list = before.endswith("[") or behind.startswith("]")
    inside_list = before.endswith(",") and behind.startswith(",")
    return None if first_or_last_in_list or inside_list else text[start:end]


def _end_of_object(text: str, opening: int) -> int | None:
    """Position behind the object that opens here; None where it does not close."""
    depth = 0
    for token in _TOKEN.finditer(text, opening):
        if token[1] == "":  # a string that does not end
            return None
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    return None


def preferred(verdict: Verdict | Gold) -> int:
    """Number of the preferred response, 1 or 2; 0 where neither is preferred.

    The scores decide; at equal scores, or without scores, the ranking does.
    """
    score_1 = verdict.score_1
    score_2 = verdict.score_2
    if score_1 is not None and score_2 is not None and score_1 != score_2:
        return 1 if score_1 > score_2 else 2
    if verdict.ranking == MIDDLE_RANKING:
        return 0
    return 1 if verdict.ranking < MIDDLE_RANKING else 2


def training_reward(predicted: Verdict | None, gold: Gold | Verdict) -> float:
    """Equation 1 of the paper: -10 if malformed, minus the distances to the gold.

    A malformed verdict also pays the worst distances that are possible for this gold. The paper
    leaves open what it pays; without them -10 would beat a well-formed verdict that is 13 away.

    Args:
        predicted: None where the judge's answer could not be read.
        gold: right verdict; a score of it that is None is left out.
    """
    distances: dict[str, float] = {}
    for name, bounds in BOUNDS.items():
        right_value = getattr(gold, name)
        if right_value is None:
            continue
        if predicted is None:
            distances[name] = max(abs(bound - right_value) for bound in bounds)
        else:
            distances[name] = abs(getattr(predicted, name) - right_value)
    ranking_distance = distances.pop("ranking")
    score_distance = sum(distances.values())
    if predicted is None:
        return -FORMAT_WEIGHT - score_distance - RANKING_WEIGHT * ranking_distance
    return -score_distance - RANKING_WEIGHT * ranking_distance


# -- the reward of training --------------------------------------------------------------------

GRADER = "genrm"
PARTS = ("format", "right_order", "score_error_1", "score_error_2", "ranking_error")
_ERROR_PART = {
    "score_1": "score_error_1",
    "score_2": "score_error_2",
    "ranking": "ranking_error",
}


@dataclass(frozen=True, slots=True)
class VerdictScore:
    """A judgement compared with its gold.

    Attributes:
        verdict: None where malformed.
        parts: the `PARTS`, logged beside the reward. Errors are distances, None where there is
            nothing to compare. `right_order` is 1.0 if it prefers what the gold prefers, 0.5 if it
            prefers neither, 0.0 otherwise or if malformed; None where the gold prefers neither.
    """

    verdict: Verdict | None
    reward: float
    parts: Mapping[str, float | None]

    @property
    def figures(self) -> dict[str, float | None]:
        """Metrics of one judgement in an evaluation of judges, but for its length."""
        verdict = self.verdict
        choice = None if verdict is None else preferred(verdict)
        right_order = self.parts["right_order"]
        errors = [self.parts["score_error_1"], self.parts["score_error_2"]]
        score_errors = [error for error in errors if error is not None]
        return {
            "pairwise_accuracy": right_order,
            "pairwise_accuracy_readable": None if verdict is None else right_order,
            "format": self.parts["format"],
            "prefers_first": float(choice == 1) if choice else None,
            "prefers_neither": None if choice is None else float(choice == 0),
            "same_scores": None if verdict is None else float(verdict.score_1 == verdict.score_2),
            "reward": self.reward,
            "score_error": sum(score_errors) / len(score_errors) if score_errors else None,
            "ranking_error": self.parts["ranking_error"],
        }


def outcome_of(completion: Completion, gold: Gold) -> VerdictScore | None:
    """Compare a judgement with its gold; None where the backend failed."""
    if completion.finish == "failed":
        return None
    verdict = None if completion.truncated else parse_verdict(completion.answer)
    parts: dict[str, float | None] = dict.fromkeys(PARTS)
    parts["format"] = float(verdict is not None)
    gold_choice = preferred(gold)
    if gold_choice:
        parts["right_order"] = 0.0 if verdict is None else _agreement(verdict, gold_choice)
    if verdict is not None:
        for name in BOUNDS:
            right_value = getattr(gold, name)
            if right_value is not None:
                parts[_ERROR_PART[name]] = abs(getattr(verdict, name) - right_value)
    return VerdictScore(verdict, training_reward(verdict, gold), parts)


def _agreement(verdict: Verdict, gold_choice: int) -> float:
    """1.0 if a verdict prefers the gold's choice, 0.5 if it prefers neither answer, else 0.0."""
    choice = preferred(verdict)
    return 0.5 if choice == 0 else float(choice == gold_choice)


def gold_from(prompt: Prompt) -> Gold:
    """Read the gold verdict of a judging prompt. Raises DataError where it has no readable one."""
    try:
        row: Any = load_json(prompt.gold or "")
        score_1 = None if row["score_1"] is None else float(row["score_1"])
        score_2 = None if row["score_2"] is None else float(row["score_2"])
        return Gold(score_1, score_2, float(row["ranking"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"prompt {prompt.id!r}: its gold {prompt.gold!r:.80} is no verdict ({error!r}); "
            "judging prompts are made by build_genrm"
        ) from error


class VerdictReward:
    """`GroupReward` that rewards each judgement of a pair against the pair's gold."""

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"reward": GRADER, "format": FORMAT_WEIGHT, "ranking": RANKING_WEIGHT}

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        return [_group_rewards(group) for group in groups]

    def settle(self, requests: int, failures: Sequence[Failure], *, domain: str = "") -> None:
        """No judge is called: nothing can fail."""


def _group_rewards(group: Group) -> GroupRewards:
    gold = gold_from(group.prompt)
    scores = [outcome_of(completion, gold) for completion in group.completions]
    parts: dict[str, tuple[float | None, ...]] = {}
    for name in PARTS:
        parts[name] = tuple(None if score is None else score.parts[name] for score in scores)
    verdicts = [score.verdict for score in scores if score is not None]
    choices = [preferred(verdict) for verdict in verdicts if verdict is not None]
    return GroupRewards(
        rewards=tuple(None if score is None else score.reward for score in scores),
        parts=parts,
        counts={
            "judgements": len(verdicts),
            "malformed": len(verdicts) - len(choices),
            "prefers_1": choices.count(1),
            "prefers_2": choices.count(2),
            "prefers_neither": choices.count(0),
        },
    )
