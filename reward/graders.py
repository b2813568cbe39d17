"""Graders by name: completions in, scores out; each refuses the prompts whose gold it can't use.

    GRADERS["math"]().grade([Attempt(prompt, completion)])
    → [Score(1.0, "56", "equal to the gold 56")]

A completion that a limit ended is wrong, 0.0; one that failed, and one whose comparison failed or
took too long, is unscored. `metadata` of a prompt may hold `tolerance` (maths, numeric),
`ignore_case` (exact), `options` and `output_regex` (multiple_choice).
"""

from __future__ import annotations

from collections.abc import Callable

from reward.choice_grader import MultipleChoice
from reward.grader import Grader
from reward.math_grader import Math
from reward.text_graders import Exact, Numeric

GRADERS: dict[str, Callable[[], Grader]] = {
    "math": Math,
    "multiple_choice": MultipleChoice,
    "exact": Exact,
    "numeric": Numeric,
}
