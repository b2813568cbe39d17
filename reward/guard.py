"""Guard around every verifier and grader: their faults never become a reward or end the run.

    await guarded("math", lambda: environment.verify(prompt, completion))
    → Score(None, None, "math: TypeError: …", "verifier_error")

A verifier that raises, returns something other than a score, or takes too long leaves its
completion unscored, with the verifier's name. Code that may hang where no time limit of this
process reaches it (`posttrain.time_limits`) belongs in a worker process (`reward.graders.workers`);
every environment with a `check` and every environment from outside the project runs there.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from typing import Any

from posttrain.errors import ConfigError, JudgeError
from posttrain.records import Score
from posttrain.rollouts import Prompt
from posttrain.time_limits import STEP_SECONDS, WAIT_SECONDS, in_thread, limited
from reward.graders.base import Attempt, Grader, one_line


def checked_score(name: str, result: Any) -> Score:
    """The score that a verifier returned, or an unscored one that says what it returned instead."""
    if not isinstance(result, Score):
        return _faulty_verifier_score(
            name, f"returned {type(result).__name__} {result!r:.80}, not a score"
        )
    value: Any = result.value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and math.isfinite(value) and 0 <= value <= 1):
        return _faulty_verifier_score(
            name, f"a value of {value!r:.80}, which is no number from 0 to 1"
        )
    texts: tuple[Any, ...] = (result.explanation, result.answer or "", result.failure or "")
    if not all(isinstance(text, str) for text in texts):
        return _faulty_verifier_score(
            name, "a score whose answer, explanation or failure is no text"
        )
    return result


def _faulty_verifier_score(name: str, problem: str) -> Score:
    return Score(None, None, one_line(f"{name}: {problem}"), "verifier_error")


def _score_of_error(name: str, error: BaseException) -> Score:
    if isinstance(error, JudgeError):  # the judge's service failed, not the verifier's code
        return Score(None, None, one_line(f"{name}: {error}"), "service")
    return _faulty_verifier_score(name, f"{type(error).__name__}: {error}")


async def guarded(
    name: str, verify: Callable[[], Any], *, seconds: float | None = WAIT_SECONDS
) -> Score:
    """Run a verifier (a function or a coroutine function) and return its score, checked.

    Args:
        seconds: time limit; None where everything that it awaits has a limit already.

    Raises:
        ConfigError: from the verifier; this machine cannot verify at all.
    """
    try:
        return checked_score(name, await limited(verify, seconds=seconds))
    except (ConfigError, KeyboardInterrupt, GeneratorExit):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # the run cancels this task
        return _score_of_error(name, error)  # the verifier cancelled something of its own
    except TimeoutError as error:
        return Score(None, None, one_line(f"{name}: {error or 'TimeoutError'}"), "timeout")
    except BaseException as error:  # noqa: BLE001 - also SystemExit: a verifier ends no run
        return _score_of_error(name, error)


# -- graders ---------------------------------------------------------------------------------------


class GuardedGrader:
    """Grader around another one, whose faults leave an attempt unscored (see `guarded`).

    Attempts are graded in one call. If that call raises, returns a wrong number of scores, or takes
    longer than `seconds` plus one second for each further attempt, they are graded one by one.
    """

    def __init__(self, name: str, grader: Grader, *, seconds: float = STEP_SECONDS) -> None:
        self._name = name
        self._grader = grader
        self._seconds = seconds

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """Drop reason of each prompt, or None (see `Grader.refuse`)."""
        return self._grader.refuse(prompts)

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """Score of each attempt, in order. Raises ConfigError: this machine cannot grade at all."""
        grading = in_thread(lambda: list(self._grader.grade(attempts)))
        waited = wait([grading], self._seconds + len(attempts) - 1)
        error = grading.exception() if waited.done else TimeoutError()
        if isinstance(error, ConfigError):
            raise error
        if error is None and len(grading.result()) == len(attempts):
            return [checked_score(self._name, score) for score in grading.result()]
        if len(attempts) > 1:  # one by one: the fault of one attempt is not that of the others
            scores: list[Score] = []
            for attempt in attempts:
                scores += self.grade([attempt])
            return scores
        if not waited.done:
            explanation = f"{self._name}: no verdict within {self._seconds:g} s"
            return [Score(None, None, one_line(explanation), "timeout")]
        error = error or ValueError(f"{len(grading.result())} scores for one attempt")
        return [_score_of_error(self._name, error)]
