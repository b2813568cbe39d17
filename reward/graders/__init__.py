"""Graders by name: completions in, scores out; each refuses the prompts whose gold it can't use.

    GRADERS["math"]().grade([Attempt(prompt, completion)])
    → [Score(1.0, "56", "equal to the gold 56")]

docs/guides/graders.md says what counts as wrong, what stays unscored, and which metadata are read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from reward.graders.base import Grader
from reward.graders.choice import MultipleChoice, contains_grader, exact_grader
from reward.graders.constraints import PACKAGE, Constraints
from reward.graders.math import Math

GRADERS: dict[str, Callable[[], Grader]] = {
    "math": Math,
    "multiple_choice": MultipleChoice,
    "exact": exact_grader,
    "numeric": functools.partial(Math, numbers_only=True),
    "contains_all": functools.partial(contains_grader, one_is_enough=False),
    "contains_any": functools.partial(contains_grader, one_is_enough=True),
    "ifeval": functools.partial(Constraints, "ifeval"),
    "ifbench": functools.partial(Constraints, "ifbench"),
}
# package that a grader needs beyond our own dependencies
PACKAGE_OF = {"ifeval": PACKAGE, "ifbench": PACKAGE}
