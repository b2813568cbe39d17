"""Environments from outside the project: `environment: my_pkg.module:Name`, the name of an entry
point of the group `posttrain.environments`, or `verifiers:ID` (`verifiers_tasks.py`).

    class Reversed(RLVREnvironment):          # my_pkg/module.py
        name = "reversed"

        def check(self, prompt: Prompt, completion: Completion) -> Score:
            right = completion.answer.strip() == (prompt.gold or "")[::-1]
            return Score(float(right), completion.answer, "")

Their rows are admitted as ours are: the gold must pass, and a wrong completion (theirs, or "I do
not know.") must fail. They verify in worker processes, which are killed at their limits. Their
tools run in this process; a tool that raises or hangs gives the model an error to read.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any, TypeVar, cast

from posttrain.environments.base import RESULT_CHARACTERS, Environment, ScriptedUser, clip
from posttrain.errors import ConfigError, DataError
from posttrain.jsontext import load_json, writable
from posttrain.records import Score, json_text
from posttrain.rollouts import Completion, Prompt, prompt_to_row
from posttrain.time_limits import STEP_SECONDS, limited
from reward.environments.base import RLVREnvironment, Row, Script, completion_row, says
from reward.environments.judged import JudgedEnvironment
from reward.environments.verifiers_tasks import PREFIX, TasksetEnvironment
from reward.graders.base import one_line
from reward.graders.workers import Workers

GROUP = "posttrain.environments"
CPU_SECONDS = 30.0  # limit of a verdict; the first verdict of a worker imports the package
UNKNOWING = "I do not know."
FAILURE = "posttrain_failure"  # key in the state of a completion whose tools failed
OUTSIDE_WORKERS = Workers(size=4, cpu_seconds=CPU_SECONDS)
Result = TypeVar("Result")


def reference_of(name: str) -> str | None:
    """`module:Class` for a name that is one already or is an entry point's; None for any other."""
    if ":" in name:
        return name
    return next((entry_point.value for entry_point in entry_points(group=GROUP, name=name)), None)


def load_class(reference: str) -> type[RLVREnvironment]:
    """Import the environment class that `module:Class` names.

    Raises ConfigError: it cannot be imported, or is no environment that can run here.
    """
    module, _, attributes = reference.partition(":")
    try:
        environment_class: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            environment_class = getattr(environment_class, attribute)
    except Exception as error:
        raise ConfigError(
            f"environment {reference!r}: {type(error).__name__}: {error}; its package must be "
            "installed, or its folder be on PYTHONPATH"
        ) from error
    if not isinstance(environment_class, type) or not issubclass(
        environment_class, RLVREnvironment
    ):
        raise ConfigError(f"environment {reference!r} is no subclass of RLVREnvironment")
    if issubclass(environment_class, JudgedEnvironment):
        raise ConfigError(f"environment {reference!r} asks a judge, which it is not given here")
    return environment_class


async def check_or_score(
    environment: RLVREnvironment, prompt: Prompt, completion: Completion
) -> Score:
    """Score a completion by the environment's `check` if it defines one, else by its `score`."""
    if type(environment).check is not RLVREnvironment.check:
        return environment.check(prompt, completion)
    return await environment.score(prompt, completion)


def make_inner(reference: str) -> RLVREnvironment:
    """Construct the environment of a reference. Raises ConfigError: it cannot be constructed."""
    if reference.startswith(PREFIX):
        return TasksetEnvironment(reference.removeprefix(PREFIX))
    environment_class = load_class(reference)
    try:
        return environment_class()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise ConfigError(f"environment {reference!r} cannot be made: {problem}") from error


class OutsideEnvironment(RLVREnvironment):
    """An environment from outside, under the name that the recipe gives it."""

    def __init__(self, name: str, reference: str) -> None:
        self.name = name
        self._reference = reference
        self._inner = make_inner(reference)

    @property
    def own_name(self) -> str:
        """Name of the class itself, which rows may use."""
        return self._inner.name

    def prompt(self, row: Row, *, source: str = "") -> Prompt:
        prompt = self._raising_data_error("prompt", lambda: self._inner.prompt(row, source=source))
        return replace(prompt, environment=self.name, grader="environment")

    def rows(self, *, seed: int, count: int) -> list[dict[str, Any]]:
        rows = self._raising_data_error("rows", lambda: self._inner.rows(seed=seed, count=count))
        return [row | {"environment": self.name} for row in rows]

    def gold(self, prompt: Prompt) -> Script | None:
        return self._inner.gold(prompt)

    def wrong(self, prompt: Prompt) -> list[Script]:
        return self._inner.wrong(prompt) or [says(UNKNOWING)]

    def schemas(self, prompt: Prompt) -> str:
        return self._inner.schemas(prompt)

    def open(self, prompt: Prompt) -> Environment | None:
        tools = self._raising_data_error("open", lambda: self._inner.open(prompt))
        if tools is None:
            return None
        return _ToolsAndUser(tools) if isinstance(tools, ScriptedUser) else _Tools(tools)

    async def score(self, prompt: Prompt, completion: Completion) -> Score:
        state: Any = load_json(completion.state or "{}")
        if isinstance(state, dict) and FAILURE in state:
            failure = str(cast(dict[str, Any], state)[FAILURE])
            return Score(None, None, one_line(failure), "verifier_error")
        job = [self._reference, prompt_to_row(prompt), completion_row(completion)]
        result = await OUTSIDE_WORKERS.run_one(("verify_outside", job))
        if result.problem is not None:
            return Score(None, None, one_line(f"{self.name}: {result.problem}"), result.failure)
        return Score(*result.value)

    def passes(self, score: Score) -> bool:
        return self._inner.passes(score)

    def _raising_data_error(self, method: str, call: Callable[[], Result]) -> Result:
        """Call a method of the environment from outside; any fault of it becomes a DataError."""
        try:
            return call()
        except (ConfigError, DataError):
            raise
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise DataError(f"environment {self.name!r}: {method}: {problem}") from error


class _Tools:
    """Tools from outside the project.

    An exception becomes an error that the model reads; a tool that hangs is stopped and leaves the
    completion unscored.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._failure: str | None = None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        text = await self._run_limited(f"tool {name}", lambda: self._inner.call(name, arguments))
        return writable(clip(str(text), RESULT_CHARACTERS))

    def snapshot(self) -> str:
        state = "{}"
        try:
            state = self._inner.snapshot()
            load_json(state)
        except Exception as error:  # noqa: BLE001 - for any fault: there is no state to judge
            self._failure = self._failure or f"snapshot: {type(error).__name__}: {error}"
        return state if self._failure is None else json_text({FAILURE: self._failure})

    async def close(self) -> None:
        await self._run_limited("close", self._inner.close)

    async def _run_limited(self, action: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Await a call within the time limit of a step; its result or the error to read."""
        try:
            return await limited(call, seconds=STEP_SECONDS)
        except ConfigError:
            raise
        except TimeoutError as error:
            self._failure = f"{action}: {error}"
            return f"error: {error}"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool's failure is its result
            return f"error: {clip(str(error), 200) or type(error).__name__}"


class _ToolsAndUser(_Tools):
    """Tools from outside with a scripted user who answers messages."""

    async def respond(self, answer: str) -> str | None:
        try:
            reply = await limited(lambda: self._inner.respond(answer), seconds=STEP_SECONDS)
            return None if reply is None else str(reply)
        except (ConfigError, asyncio.CancelledError):
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user who fails says nothing
            self._failure = f"the user: {type(error).__name__}: {error}"
            return None
