"""Pairing of a group's responses for comparison, and the base rewards that the verdicts give.

Pairs are of indices in the group, never of the order in which responses arrived.
Formulas: paper, section 3.3.2, equations 2 and 3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from reward.judge.verdict import MIDDLE_RANKING, Verdict

Pairs = list[tuple[int, int]]  # (index of answer 1, index of answer 2)


def circular_pairs(n: int) -> Pairs:
    """Pairs of each response with its successor, each once in each position; none if n < 2.

    Two responses give both orders of their one pair.
    """
    return [(i, (i + 1) % n) for i in range(n)] if n > 1 else []


def both_orders(n: int) -> Pairs:
    """The circular pairs, each in both orders: 2n pairs (2 of two responses, where they repeat)."""
    circle = circular_pairs(n)
    if n == 2:
        return circle
    pairs: Pairs = []
    for i, j in circle:
        pairs += [(i, j), (j, i)]
    return pairs


def all_pairs(n: int) -> Pairs:
    """Pairs of any two responses, the earlier as answer 1: n(n − 1)/2 pairs.

    The first response is always answer 1 and the last always answer 2: a judge that prefers a
    position is not balanced here, unlike on the circle.
    """
    return list(itertools.combinations(range(n), 2))


STRATEGIES: dict[str, Callable[[int], Pairs]] = {
    "circular": circular_pairs,
    "both_orders": both_orders,
    "all_pairs": all_pairs,
}


def match_scores(verdict: Verdict) -> tuple[float, float]:
    """Scores that one match gives to its two responses.

    Where the verdict's scores are equal, the ranking r decides: s_1 += 3.5 − r and s_2 += r − 3.5
    (equations 2 and 3).

    Raises:
        ValueError: a score or the ranking is not finite.
    """
    score_1 = verdict.score_1
    score_2 = verdict.score_2
    ranking = verdict.ranking
    if not all(map(math.isfinite, (score_1, score_2, ranking))):
        raise ValueError(f"a verdict's scores and ranking must be finite, got {verdict}")
    if score_1 == score_2:
        return score_1 + (MIDDLE_RANKING - ranking), score_2 + (ranking - MIDDLE_RANKING)
    return score_1, score_2


def base_rewards(
    n: int, judgements: Sequence[tuple[int, int, Verdict | None]]
) -> list[float | None]:
    """Mean score of each response over its matches; None for a response without a verdict.

    Args:
        n: responses of the group.
        judgements: (i, j, verdict): i was shown as answer 1, j as answer 2. A failed judgement
            (None) leaves out its own match and nothing else. A pair may be there several times.
            The order of the judgements changes no bit of the result.

    Raises:
        ValueError: an index outside the group, a response against itself, a verdict not finite.
    """
    scores_of: list[list[float]] = [[] for _ in range(n)]
    for i, j, verdict in judgements:
        if not (0 <= i < n and 0 <= j < n) or i == j:
            raise ValueError(f"({i}, {j}) is no pair of two different responses out of {n}")
        if verdict is not None:
            score_1, score_2 = match_scores(verdict)
            scores_of[i].append(score_1)
            scores_of[j].append(score_2)
    # fsum rounds once, whatever the order
    return [math.fsum(scores) / len(scores) if scores else None for scores in scores_of]
