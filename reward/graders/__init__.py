"""Graders by name: completions in, scores out; each refuses the prompts whose gold it can't use.

    GRADERS["math"]().grade([Attempt(prompt, completion)])
    → [Score(1.0, "56", "equal to the gold 56")]

What is wrong and what is unscored, and the metadata that prompts may hold: docs/guides/graders.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from reward.graders.base import Grader
from reward.graders.choice import MultipleChoice, contains, exact
from reward.graders.constraints import PACKAGE, Constraints
from reward.graders.math import Math

GRADERS: dict[str, Callable[[], Grader]] = {
    "math": Math,
    "multiple_choice": MultipleChoice,
    "exact": exact,
    "numeric": functools.partial(Math, numbers_only=True),
    "contains_all": functools.partial(contains, enough=False),
    "contains_any": functools.partial(contains, enough=True),
    "ifeval": functools.partial(Constraints, "ifeval"),
    "ifbench": functools.partial(Constraints, "ifbench"),
}
PACKAGE_OF = {"ifeval": PACKAGE, "ifbench": PACKAGE}  # what a grader needs beyond our own
