"""Graders by name: completions in, scores out; each refuses the prompts whose gold it can't use.

    GRADERS["math"]().grade([Attempt(prompt, completion)])
    → [Score(1.0, "56", "equal to the gold 56")]

A completion that a limit ended is wrong, 0.0; one that failed, one whose comparison failed or took
too long, and one in which no answer is found, unless it is empty or lacks the format that its
prompt asks for, is unscored. `metadata` of a prompt may hold `tolerance` (math, numeric),
`ignore_case` (exact), `options` and `output_regex` (multiple_choice), `outputs` (contains_all,
contains_any), `instruction_id_list` and `kwargs` (ifeval, ifbench).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from reward.graders.base import Grader
from reward.graders.choice import MultipleChoice, contains, exact
from reward.graders.constraints import PACKAGE, Constraints
from reward.graders.math import Math, Numeric

GRADERS: dict[str, Callable[[], Grader]] = {
    "math": Math,
    "multiple_choice": MultipleChoice,
    "exact": exact,
    "numeric": Numeric,
    "contains_all": functools.partial(contains, enough=False),
    "contains_any": functools.partial(contains, enough=True),
    "ifeval": functools.partial(Constraints, "ifeval"),
    "ifbench": functools.partial(Constraints, "ifbench"),
}
PACKAGE_OF = {"ifeval": PACKAGE, "ifbench": PACKAGE}  # what a grader needs beyond our own
