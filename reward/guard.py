"""What stands around every verifier and grader: its own fault is never a number, nor the run's end.

    await guarded("math", lambda: environment.verify(prompt, completion))
    → Score(None, None, "math: TypeError: …", "verifier_error")

One that raises, returns what is no score, or takes too long leaves its completion unscored, with
the verifier's name. What may hang where no time limit of this process reaches it
(`posttrain.time_limits`) belongs into a worker process (`reward.graders.workers`), where every
environment with a `check` and every environment from outside the project runs.
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
        return _failed(name, f"returned {type(result).__name__} {result!r:.80}, not a score")
    value: Any = result.value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and math.isfinite(value) and 0 <= value <= 1):
        return _failed(name, f"a value of {value!r:.80}, which is no number from 0 to 1")
    texts: tuple[Any, ...] = (result.explanation, result.answer or "", result.failure or "")
    if not all(isinstance(text, str) for text in texts):
        return _failed(name, "a score whose answer, explanation or failure is no text")
    return result


def _failed(name: str, problem: str) -> Score:
    return Score(None, None, one_line(f"{name}: {problem}"), "verifier_error")


def _raised(name: str, error: BaseException) -> Score:
    if isinstance(error, JudgeError):
        return Score(None, None, one_line(f"{name}: {error}"), "service")
    return _failed(name, f"{type(error).__name__}: {error}")


async def guarded(
    name: str, verify: Callable[[], Any], *, seconds: float | None = WAIT_SECONDS
) -> Score:
    """What `verify` returns or is awaited to, checked.

    Args:
        seconds: of all of it; None: what it waits for has limits of its own.

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
            raise
        return _raised(name, error)  # the verifier's own
    except TimeoutError as error:
        return Score(None, None, one_line(f"{name}: {error or 'TimeoutError'}"), "timeout")
    except BaseException as error:  # noqa: BLE001 - also SystemExit: a verifier ends no run
        return _raised(name, error)


# -- graders ---------------------------------------------------------------------------------------


class GuardedGrader:
    """A grader whose own faults leave an attempt unscored, as `guarded` says.

    Attempts are graded in one call. Where that raises, does not give a score an attempt, or takes
    longer than `seconds` and one more an attempt, they are graded one by one.
    """

    def __init__(self, name: str, grader: Grader, *, seconds: float = STEP_SECONDS) -> None:
        self._name, self._grader, self._seconds = name, grader, seconds

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        """As `Grader.refuse`."""
        return self._grader.refuse(prompts)

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """As `Grader.grade`. Raises ConfigError: this machine cannot grade at all."""
        grading = in_thread(lambda: list(self._grader.grade(attempts)))
        waited = wait([grading], self._seconds + len(attempts) - 1)
        error = grading.exception() if waited.done else TimeoutError()
        if isinstance(error, ConfigError):
            raise error
        if error is None and len(grading.result()) == len(attempts):
            return [checked_score(self._name, score) for score in grading.result()]
        if len(attempts) > 1:
            return [score for attempt in attempts for score in self.grade([attempt])]
        if not waited.done:
            why = f"{self._name}: no verdict within {self._seconds:g} s"
            return [Score(None, None, one_line(why), "timeout")]
        error = error or ValueError(f"{len(grading.result())} scores for one attempt")
        return [_raised(self._name, error)]
