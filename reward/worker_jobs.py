"""What workers are asked to do: comparisons and patterns that may never end.

JOBS["same"]("\\\\sqrt{8}", "2\\\\sqrt{2}", None) is True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reward import algebra, math_answers
from reward.patterns import last_match, pattern_problem


def same(gold: str, answer: str, tolerance: float | None) -> bool:
    """`math_answers.same`, with algebra."""
    return math_answers.same(gold, answer, algebra=algebra.equal, tolerance=tolerance)


JOBS: dict[str, Callable[..., Any]] = {
    "same": same,
    "last_match": last_match,
    "pattern_problem": pattern_problem,
}
