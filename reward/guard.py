"""What stands around every verifier and grader: its own fault is never a number, nor the run's end.

    await guarded("math", lambda: environment.verify(prompt, completion))
    → Score(None, None, "math: TypeError: …", "verifier_error")

One that raises, returns what is no score, or takes too long leaves its completion unscored, with
the verifier's name. Code that hangs between two awaits is ended by an alarm in the main thread:
that reaches Python code, patterns, large integers and sleeps. A C extension that never looks for
signals is reached by nothing but the death of its process: what may hang there belongs into a
worker process (`reward.graders.workers`), where every environment with a `check` and every
environment from outside the project runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import math
import signal
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future, wait
from typing import Any, Literal

from posttrain.errors import ConfigError, JudgeError
from posttrain.records import Score
from posttrain.rollouts import Prompt
from reward.graders.base import Attempt, Grader, one_line
from reward.graders.workers import WALL_SECONDS

VERIFIER_SECONDS = (
    600.0  # of a verification, whatever it waits for: a server's own limit is as long
)
STEP_SECONDS = WALL_SECONDS  # of its code between two awaits: as long as a worker process has
_AGAIN = 1.0  # seconds after which the alarm comes again, if the code went on


class _Hangs(BaseException):  # not caught by a verifier's `except Exception`
    """Raised by the alarm inside code that has run for too long."""


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
    name: str, verify: Callable[[], Any], *, seconds: float | None = VERIFIER_SECONDS
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


async def limited(call: Callable[[], Any], *, seconds: float | None) -> Any:
    """What `call` returns or is awaited to. Raises TimeoutError, beside what it raises itself."""
    step_seconds = STEP_SECONDS if seconds is None else min(seconds, STEP_SECONDS)

    async def begun() -> Any:
        result = call()
        return await result if inspect.isawaitable(result) else result

    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await _Stepwise(begun(), step_seconds)
    except _Hangs:
        _disarm()
        raise TimeoutError(f"hangs, stopped after {step_seconds:g} s") from None
    except TimeoutError:
        if deadline.expired():
            raise TimeoutError(f"no verdict within {seconds:g} s") from None
        raise


class _Stepwise:
    """A coroutine whose every step, from one await to the next, is under the alarm."""

    def __init__(self, coroutine: Awaitable[Any], seconds: float) -> None:
        self._coroutine, self._seconds = coroutine, seconds

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine.__await__()
        resume = functools.partial(steps.send, None)
        while True:
            try:
                with _alarm(self._seconds):
                    awaited = resume()
            except StopIteration as end:
                return end.value
            try:
                sent = yield awaited
            except BaseException as error:  # noqa: BLE001 - handed on to the coroutine
                resume = functools.partial(steps.throw, error)
            else:
                resume = functools.partial(steps.send, sent)


# -- the alarm: of the main thread, which is where event loops run ---------------------------------

_state: Literal["idle", "armed", "disarming"] = "idle"


@contextlib.contextmanager
def _alarm(seconds: float) -> Generator[None]:
    """Raise `_Hangs` in what runs for longer; does nothing outside the main thread, where no alarm
    arrives, and where a handler of somebody else's has the signal."""
    global _state
    usable = threading.current_thread() is threading.main_thread()
    if not usable or signal.getsignal(signal.SIGALRM) not in (signal.SIG_DFL, _ring):
        yield
        return
    signal.signal(signal.SIGALRM, _ring)
    state_before = _state
    timer_before = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    _state = "armed"
    try:
        yield
    finally:
        _state = "disarming"
        signal.setitimer(signal.ITIMER_REAL, *timer_before)
        _state = state_before


def _ring(number: int, _: Any) -> None:
    if _state == "armed":
        raise _Hangs
    if _state == "idle":  # somebody else's alarm: it means what it meant without us
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def _disarm() -> None:
    """Silence an alarm that rang while it was being taken off."""
    global _state
    if _state == "armed":
        _state = "disarming"
        signal.setitimer(signal.ITIMER_REAL, 0)
        _state = "idle"


# -- graders ---------------------------------------------------------------------------------------


def in_thread(call: Callable[[], Any]) -> Future[Any]:
    """What a call returns, in a thread that the end of the process does not wait for: one that
    hangs is left behind."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            future.set_exception(error)

    threading.Thread(target=run, name="grader", daemon=True).start()
    return future


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
