"""Who is compared with whom in a group of responses, and what the verdicts make of each response.

Pairs are of the responses' places in their group, never of the order in which they arrived.
Formulas: paper, section 3.3.2, equations 2 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from reward.judge.verdict import MIDDLE_RANKING, Verdict

Pairs = list[tuple[int, int]]


def circular_pairs(n: int) -> Pairs:
    """Each response with its successor: n pairs, each response once in each position.

    Two responses give both orders of their one pair; one response, or none, gives no pair.
    """
    return [(i, (i + 1) % n) for i in range(n)] if n > 1 else []


def both_orders(n: int) -> Pairs:
    """The circular pairs, each in both orders: 2n pairs (2 of two responses, where they repeat)."""
    ring = circular_pairs(n)
    return ring if n == 2 else [pair for i, j in ring for pair in ((i, j), (j, i))]


def all_pairs(n: int) -> Pairs:
    """Every two responses once, the earlier as answer 1: n(n − 1)/2 pairs.

    The first response is always answer 1 and the last always answer 2: a judge that prefers a
    position is not balanced here, unlike on the circle.
    """
    return [(i, j) for i in range(n) for j in range(i + 1, n)]


STRATEGIES: dict[str, Callable[[int], Pairs]] = {
    "circular": circular_pairs,
    "both_orders": both_orders,
    "all_pairs": all_pairs,
}


def match_scores(verdict: Verdict) -> tuple[float, float]:
    """What one match gives its two responses: the scores, equal ones parted by the ranking.

    Only where both scores are equal: s_1 += 3.5 − r and s_2 += r − 3.5 (equations 2 and 3).

    Raises:
        ValueError: a score or the ranking is not finite.
    """
    first, second, ranking = verdict.score_1, verdict.score_2, verdict.ranking
    if not all(map(math.isfinite, (first, second, ranking))):
        raise ValueError(f"a verdict's scores and ranking must be finite, got {verdict}")
    if first == second:
        return first + (MIDDLE_RANKING - ranking), second + (ranking - MIDDLE_RANKING)
    return first, second


def base_rewards(
    n: int, judgements: Sequence[tuple[int, int, Verdict | None]]
) -> list[float | None]:
    """The mean over each response's matches; None for a response that no verdict speaks of.

    Args:
        n: responses of the group.
        judgements: (i, j, verdict): i was shown as answer 1, j as answer 2. A failed judgement
            (None) leaves out its own match and nothing else. A pair may be there several times.
            The order of the judgements changes no bit of the result.

    Raises:
        ValueError: an index outside the group, a response against itself, a verdict not finite.
    """
    scores: list[list[float]] = [[] for _ in range(n)]
    for i, j, verdict in judgements:
        if not (0 <= i < n and 0 <= j < n) or i == j:
            raise ValueError(f"({i}, {j}) is no pair of two different responses out of {n}")
        if verdict is not None:
            first, second = match_scores(verdict)
            scores[i].append(first)
            scores[j].append(second)
    # fsum rounds once, whatever the order
    return [math.fsum(found) / len(found) if found else None for found in scores]
