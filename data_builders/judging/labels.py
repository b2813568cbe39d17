"""What rows say of two responses → a gold ranking from 1 to 6 and, where there are any, scores.

The mappings to a ranking are ours, but for rows that carry one: the paper gives none. A row without
a preference is dropped under a name, never given one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from data_builders.dialects import RowProblem
from data_builders.dialects.reading import Row
from posttrain.config.build_genrm import PreferenceSource
from reward.judge.verdict import (
    HIGHEST_RANKING,
    HIGHEST_SCORE,
    LOWEST_RANKING,
    LOWEST_SCORE,
    MIDDLE_RANKING,
    Gold,
)

Outcome = Literal["1", "2", "tie", "both_bad"]
# HelpSteer3 has six strengths and a tie, the ranking six values and no middle
_STRENGTHS = {-3: 1.0, -2: 2.0, -1: 3.0, 1: 4.0, 2: 5.0, 3: 6.0}
_WINNERS: dict[str, Outcome] = {
    "model_a": "1", "a": "1", "1": "1", "model_1": "1", "response_1": "1", "response1": "1",
    "response_a": "1",
    "model_b": "2", "b": "2", "2": "2", "model_2": "2", "response_2": "2", "response2": "2",
    "response_b": "2",
    "tie": "tie", "0": "tie", "both_good": "tie",
    "both_bad": "both_bad", "tie (bothbad)": "both_bad", "bothbad": "both_bad",
}  # fmt: skip


def number(value: Any, field: str) -> float:
    """A finite number, also as text. Raises RowProblem `malformed_label`."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise RowProblem("malformed_label", field, f"a number is needed, found {value!r:.80}")
    return found


def strength(value: Any, field: str, source: PreferenceSource) -> float:
    """A preference from −3 (response 1 much better) to 3 (response 2), as HelpSteer3 gives it."""
    found = number(value, field)
    if found == 0:
        return tied("tie", field, source)
    if found not in _STRENGTHS:
        raise RowProblem("malformed_label", field, f"{found:g} is none of -3 … 3")
    return _STRENGTHS[int(found)]


def ranked(value: Any, field: str, source: PreferenceSource) -> float:
    """A ranking from 1 (response 1 much better) to 6 (response 2), as it stands."""
    found = number(value, field)
    if not LOWEST_RANKING <= found <= HIGHEST_RANKING:
        raise RowProblem("malformed_label", field, f"{found:g} is not within 1 … 6")
    return tied("tie", field, source) if found == MIDDLE_RANKING else found


def outcome_of(value: Any, field: str) -> Outcome:
    """Who won. Raises RowProblem `malformed_label`."""
    name = str(value).strip().lower()
    if isinstance(value, bool) or name not in _WINNERS:
        known = "model_a, model_b, tie, both_bad"
        raise RowProblem("malformed_label", field, f"{value!r:.80} is none of {known}")
    return _WINNERS[name]


def won(outcome: Outcome, field: str, source: PreferenceSource) -> float:
    """The ranking of a pair of which only the winner is known."""
    if outcome == "1":
        return source.win
    if outcome == "2":
        return LOWEST_RANKING + HIGHEST_RANKING - source.win
    return tied(outcome, field, source)


def tied(outcome: Literal["tie", "both_bad"], field: str, source: PreferenceSource) -> float:
    """The ranking of a pair of which neither is better, if the recipe takes such pairs."""
    if source.ties == "drop":
        raise RowProblem(outcome, field, "neither response is preferred")
    return MIDDLE_RANKING


def majority(votes: Sequence[Any], field: str, source: PreferenceSource) -> Outcome:
    """What enough annotators agree on. Raises RowProblem `disagreement`."""
    counts: Counter[Outcome] = Counter(outcome_of(vote, field) for vote in votes)
    if not counts:
        raise RowProblem("no_preference", field, "nobody annotated this pair")
    outcome, count = counts.most_common(1)[0]
    if count < source.agreement * len(votes):
        votes_by_outcome = ", ".join(f"{name} {n}" for name, n in sorted(counts.items()))
        raise RowProblem("disagreement", field, f"annotators say {votes_by_outcome}")
    return outcome


def gold_of(ranking: float, row: Row, source: PreferenceSource) -> Gold:
    """The ranking with the row's own scores, if any, on the scale of 1 to 5. Raises RowProblem."""
    names = ("score_1", "score_2")
    values = [row.get(name) for name in names]
    if values == [None, None]:
        return Gold(None, None, ranking)
    scale = source.scores
    low, high = (LOWEST_SCORE, HIGHEST_SCORE) if scale is None else (scale.low, scale.high)

    def score(name: str, value: Any) -> float:
        if value is None:
            raise RowProblem("malformed_label", name, "one of two scores is missing")
        found = number(value, name)
        if not low <= found <= high:
            raise RowProblem("malformed_label", name, f"{found:g} is not within {low:g} … {high:g}")
        return LOWEST_SCORE + (found - low) / (high - low) * (HIGHEST_SCORE - LOWEST_SCORE)

    first, second = map(score, names, values)
    return Gold(first, second, ranking)
