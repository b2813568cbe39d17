"""The verdict of a generative reward model on two answers, and the reward of its training.

    parse_verdict('Both add up. {"score_1": 4, "score_2": 2.5, "ranking": 2}') → Verdict(4, 2.5, 2)
    training_reward(Verdict(4, 2, 2), Gold(5, 2, 1)) == -2.0

Scores are helpfulness, 1 to 5. The ranking runs from 1 (answer 1 much better) to 6 (answer 2 much
better); 3.5 is its middle, which prefers neither. A verdict that cannot be read is None: no number
is made up for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

from posttrain.jsontext import load_json

LOWEST_SCORE, HIGHEST_SCORE = 1.0, 5.0
LOWEST_RANKING, HIGHEST_RANKING = 1.0, 6.0
MIDDLE_RANKING = (LOWEST_RANKING + HIGHEST_RANKING) / 2
FORMAT_WEIGHT, RANKING_WEIGHT = 10.0, 1.0  # C1 and C2 of the paper's equation 1
_FENCE = re.compile(r"^[ \t]*```json[ \t]*$", re.MULTILINE | re.IGNORECASE)
# a brace, or a whole string; the group holds the closing quote, "" where the text ends before it
_TOKEN = re.compile(r'[{}]|"(?:[^"\\]++|\\.)*+("?)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says of answer 1 and answer 2: scores in [1, 5], ranking in [1, 6]."""

    score_1: float
    score_2: float
    ranking: float

    def swapped(self) -> Verdict:
        """The same opinion had the answers come in the other order."""
        return Verdict(self.score_2, self.score_1, 2 * MIDDLE_RANKING - self.ranking)


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
    around it: what the judge quotes or considers before that is not its verdict. An object that
    begins after it and never ends, a stray brace after it, an object within a list or another
    object: all are None. `score_1`, `score_2` and `ranking` must be there, as numbers (no booleans,
    no strings) in their ranges; other keys are not looked at; a key that appears twice, NaN and
    infinities make the object unreadable.

    Args:
        text: without the judge's reasoning; of any length (the work is linear in it).
    """
    fields = last_object(text)
    if fields is None:
        return None
    score_1 = _number(fields.get("score_1"), LOWEST_SCORE, HIGHEST_SCORE)
    score_2 = _number(fields.get("score_2"), LOWEST_SCORE, HIGHEST_SCORE)
    ranking = _number(fields.get("ranking"), LOWEST_RANKING, HIGHEST_RANKING)
    if score_1 is None or score_2 is None or ranking is None:
        return None
    return Verdict(score_1, score_2, ranking)


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
    """1 or 2, the response that is preferred by its score and, at equal scores, by the ranking.

    0 where neither is. A gold without scores goes by its ranking.
    """
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
    if predicted is None:
        known = [score for score in (gold.score_1, gold.score_2) if score is not None]
        scores = sum(_farthest(score, LOWEST_SCORE, HIGHEST_SCORE) for score in known)
        ranking = _farthest(gold.ranking, LOWEST_RANKING, HIGHEST_RANKING)
        return -FORMAT_WEIGHT - scores - RANKING_WEIGHT * ranking
    off = [
        abs(score - wanted)
        for score, wanted in ((predicted.score_1, gold.score_1), (predicted.score_2, gold.score_2))
        if wanted is not None
    ]
    return -sum(off) - RANKING_WEIGHT * abs(predicted.ranking - gold.ranking)


def _farthest(score: float, lowest: float, highest: float) -> float:
    return max(score - lowest, highest - score)
