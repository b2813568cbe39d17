"""What every grader is: attempts in, scores out, and a gold answer it must accept first.

    grader.grade([Attempt(prompt, completion)]) → [Score(1.0, "56", "equal to the gold 56")]

A grader that fails, times out, cannot read its gold, or finds no answer where no format was asked
for, leaves the attempt unscored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from posttrain.records import Score
from posttrain.rollouts import Completion, Prompt


@dataclass(frozen=True, slots=True)
class Attempt:
    """One completion of one prompt, to be graded."""

    prompt: Prompt
    completion: Completion


class Grader(Protocol):
    """A named way to grade. Thread-safe: any number of threads may call it at once."""

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """Per prompt: why its gold cannot be used (drop reason), or None. Gold must pass itself."""
        ...

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """One score an attempt, in order."""
        ...
