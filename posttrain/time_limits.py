"""Time limits for code that is not ours: tools, environments, verifiers and graders.

    text = await limited(lambda: environment.call(name, arguments), seconds=600)

Code that hangs between two awaits is ended by an alarm in the main thread: that reaches Python
code, patterns, large integers and sleeps. A C extension that never looks for signals is reached by
nothing but the death of its process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import signal
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from typing import Any, Literal, TypeVar

WAIT_SECONDS = 600.0  # of a call, whatever it waits for: a server's own limit is as long
STEP_SECONDS = 60.0  # of its code between two awaits
_REPEAT_SECONDS = 1.0  # after which the alarm comes again, if the code caught it and went on
Result = TypeVar("Result")


class _Hangs(BaseException):  # not caught by an `except Exception` of the code
    """Raised by the alarm inside code that has run for too long."""


async def limited(call: Callable[[], Any], *, seconds: float | None) -> Any:
    """Run a call and await its result, with a limit on all of it and on its code between awaits.

    A result that is not awaitable is returned as it is.

    Args:
        seconds: for the whole call; None where what it waits for has limits of its own. Its code
            between two awaits has `STEP_SECONDS` at most in any case.

    Raises:
        TimeoutError: the limit passed; whatever the call itself raises is raised as well.
    """
    step_seconds = STEP_SECONDS if seconds is None else min(seconds, STEP_SECONDS)

    async def run_call() -> Any:
        result = call()
        return await result if inspect.isawaitable(result) else result

    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await _Stepwise(run_call(), step_seconds)
    except _Hangs:
        _disarm()
        raise TimeoutError(f"hangs, stopped after {step_seconds:g} s") from None
    except TimeoutError:
        if deadline.expired():
            raise TimeoutError(f"no result within {seconds:g} s") from None
        raise


def limited_step(call: Callable[[], Result]) -> Result:
    """Run a plain call and return its result; raises TimeoutError after `STEP_SECONDS`."""
    try:
        with _alarm(STEP_SECONDS):
            return call()
    except _Hangs:
        _disarm()
        raise TimeoutError(f"hangs, stopped after {STEP_SECONDS:g} s") from None


class _Stepwise:
    """A coroutine whose every step, from one await to the next, is under the alarm."""

    def __init__(self, coroutine: Awaitable[Any], seconds: float) -> None:
        self._coroutine = coroutine
        self._seconds = seconds

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
    """Raise `_Hangs` in a block that runs for longer, if this code may use the process's alarm.

    Outside the main thread no alarm arrives, and a handler that is not ours keeps the signal: the
    block then has no limit.
    """
    global _state
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGALRM) not in (signal.SIG_DFL, _on_alarm):
        yield
        return
    signal.signal(signal.SIGALRM, _on_alarm)
    # a block may lie inside another one, whose timer goes on afterwards
    state_before = _state
    timer_before = signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_SECONDS)
    _state = "armed"
    try:
        yield
    finally:
        _state = "disarming"
        signal.setitimer(signal.ITIMER_REAL, *timer_before)
        _state = state_before


def _on_alarm(number: int, _: Any) -> None:
    """Signal handler: raises `_Hangs` in a block under the alarm, hands on alarms of other code."""
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


# -- threads --------------------------------------------------------------------------------------


def in_thread(call: Callable[[], Any]) -> Future[Any]:
    """Run a call in a thread that the end of the process does not wait for.

    A call that hangs is left behind.
    """
    future: Future[Any] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            future.set_exception(error)

    threading.Thread(target=run, name="limited", daemon=True).start()
    return future
