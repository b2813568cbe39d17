"""Environments from outside the project: `environment: my_pkg.module:Name`, the name of an entry
point of the group `posttrain.environments`, or `verifiers:ID` (`verifiers_tasks.py`).

    class Reversed(RLVREnvironment):          # my_pkg/module.py
        name = "reversed"

        def check(self, prompt: Prompt, completion: Completion) -> Score:
            right = completion.answer.strip() == (prompt.gold or "")[::-1]
            return Score(float(right), completion.answer, "")

Their rows are admitted as ours are: the gold passes, and a wrong completion (theirs, or "I do not
know.") fails. Their verdicts are made in worker processes, which are killed at their limits; their
tools run here, and one that raises or hangs is an error for the model to read.
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
CPU_SECONDS = 30.0  # of a verdict; the first one of a worker imports the package
UNKNOWING = "I do not know."
FAILURE = "posttrain_failure"  # key of a state whose tools failed
OUTSIDE_WORKERS = Workers(size=4, cpu_seconds=CPU_SECONDS)
Result = TypeVar("Result")


def reference_of(name: str) -> str | None:
    """`module:Class` of an environment from outside, by itself or by an entry point's name."""
    if ":" in name:
        return name
    return next((one.value for one in entry_points(group=GROUP, name=name)), None)


def load_class(reference: str) -> type[RLVREnvironment]:
    """The class that `module:Class` names. Raises ConfigError: there is none, or no environment."""
    module, _, path = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except Exception as error:
        raise ConfigError(
            f"environment {reference!r}: {type(error).__name__}: {error}; its package must be "
            "installed, or its folder be on PYTHONPATH"
        ) from error
    if not isinstance(found, type) or not issubclass(found, RLVREnvironment):
        raise ConfigError(f"environment {reference!r} is no subclass of RLVREnvironment")
    if issubclass(found, JudgedEnvironment):
        raise ConfigError(f"environment {reference!r} asks a judge, which it is not given here")
    return found


async def verdict(environment: RLVREnvironment, prompt: Prompt, completion: Completion) -> Score:
    """The score by what an environment defines: `check`, or else `score`."""
    if type(environment).check is not RLVREnvironment.check:
        return environment.check(prompt, completion)
    return await environment.score(prompt, completion)


def make_inner(reference: str) -> RLVREnvironment:
    """The environment of a reference. Raises ConfigError: it cannot be made."""
    if reference.startswith(PREFIX):
        return TasksetEnvironment(reference.removeprefix(PREFIX))
    kind = load_class(reference)
    try:
        return kind()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"environment {reference!r} cannot be made: {why}") from error


class OutsideEnvironment(RLVREnvironment):
    """An environment from outside, under the name that the recipe gives it."""

    def __init__(self, name: str, reference: str) -> None:
        self.name, self._reference = name, reference
        self._inner = make_inner(reference)

    @property
    def own_name(self) -> str:
        """What the class calls itself, which rows may say."""
        return self._inner.name

    def prompt(self, row: Row, *, source: str = "") -> Prompt:
        prompt = self._tried("prompt", lambda: self._inner.prompt(row, source=source))
        return replace(prompt, environment=self.name, grader="environment")

    def rows(self, *, seed: int, count: int) -> list[dict[str, Any]]:
        made = self._tried("rows", lambda: self._inner.rows(seed=seed, count=count))
        return [row | {"environment": self.name} for row in made]

    def gold(self, prompt: Prompt) -> Script | None:
        return self._inner.gold(prompt)

    def wrong(self, prompt: Prompt) -> list[Script]:
        return self._inner.wrong(prompt) or [says(UNKNOWING)]

    def schemas(self, prompt: Prompt) -> str:
        return self._inner.schemas(prompt)

    def open(self, prompt: Prompt) -> Environment | None:
        tools = self._tried("open", lambda: self._inner.open(prompt))
        if tools is None:
            return None
        return _ToolsAndUser(tools) if isinstance(tools, ScriptedUser) else _Tools(tools)

    async def score(self, prompt: Prompt, completion: Completion) -> Score:
        state: Any = load_json(completion.state or "{}")
        fields = cast(dict[str, Any], state if isinstance(state, dict) else {})
        if FAILURE in fields:
            return Score(None, None, one_line(str(fields[FAILURE])), "verifier_error")
        job = [self._reference, prompt_to_row(prompt), completion_row(completion)]
        result = await OUTSIDE_WORKERS.run_one(("verify_outside", job))
        if result.problem is not None:
            return Score(None, None, one_line(f"{self.name}: {result.problem}"), result.failure)
        return Score(*result.value)

    def passes(self, score: Score) -> bool:
        return self._inner.passes(score)

    def _tried(self, what: str, call: Callable[[], Result]) -> Result:
        """What a method gives. Raises DataError where it raises anything of its own."""
        try:
            return call()
        except (ConfigError, DataError):
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise DataError(f"environment {self.name!r}: {what}: {why}") from error


class _Tools:
    """Tools from outside: what they raise is an error to read, what hangs is stopped and makes the
    completion unscored."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._failure: str | None = None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        text = await self._limited(f"tool {name}", lambda: self._inner.call(name, arguments))
        return writable(clip(str(text), RESULT_CHARACTERS))

    def snapshot(self) -> str:
        state = "{}"
        try:
            state = self._inner.snapshot()
            load_json(state)
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no state to judge
            self._failure = self._failure or f"snapshot: {type(error).__name__}: {error}"
        return state if self._failure is None else json_text({FAILURE: self._failure})

    async def close(self) -> None:
        await self._limited("close", self._inner.close)

    async def _limited(self, what: str, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await limited(call, seconds=STEP_SECONDS)
        except ConfigError:
            raise
        except TimeoutError as error:
            self._failure = f"{what}: {error}"
            return f"error: {error}"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool's failure is its result
            return f"error: {clip(str(error), 200) or type(error).__name__}"


class _ToolsAndUser(_Tools):
    """The same with a user who goes on."""

    async def respond(self, answer: str) -> str | None:
        try:
            reply = await limited(lambda: self._inner.respond(answer), seconds=STEP_SECONDS)
            return None if reply is None else str(reply)
        except (ConfigError, asyncio.CancelledError):
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user who fails says nothing
            self._failure = f"the user: {type(error).__name__}: {error}"
            return None
