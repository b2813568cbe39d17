"""Tools, toolkits, and the environment that runs the calls of one completion.

What a model writes never raises: an unknown tool, wrong arguments and a tool's own failure are
results, as text that begins with "error:", and so is a tool that hangs (`TOOL_SECONDS`). A fault of
an environment itself fails its completion (`attempt`).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from posttrain.errors import ConfigError
from posttrain.jsontext import encode_json, first_error, load_json, writable
from posttrain.records import json_text
from posttrain.rollouts import ENVIRONMENT_SECONDS, Prompt
from posttrain.time_limits import in_thread, limited, limited_step

RESULT_CHARACTERS = 8192
TOOL_SECONDS = 300.0  # limit of one call; the sandbox and servers have shorter limits
_MESSAGE_CHARACTERS = 200


class Environment(Protocol):
    """The tools of one completion and the state they change; one instance a completion."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run one call. Never raises on what a model wrote."""
        ...

    def snapshot(self) -> str:
        """JSON text of an object: the final state, for graders."""
        return "{}"

    async def close(self) -> None:
        """Release what the completion held (a scratch directory, a process)."""


@runtime_checkable
class ScriptedUser(Protocol):
    """An environment whose user goes on after an assistant turn without calls."""

    async def respond(self, answer: str) -> str | None:
        """The user's next turn, None once the conversation is over."""
        ...


class Toolkit(Protocol):
    """A named set of tools a recipe can declare (`environment: calculator`)."""

    def schemas(self, prompt: Prompt) -> str:
        """JSON text of the tools this prompt declares."""
        ...

    def open(self, prompt: Prompt) -> Environment:
        """An environment for one completion."""
        ...


# a check takes longer than most calls, and every completion opens its environment's tools anew
@functools.lru_cache(maxsize=1024)
def _schema_problem(text: str) -> str | None:
    """Message about a text that is the JSON of no JSON schema."""
    # imported here: sampling's recipes load this module, and most declare no tools
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(json.loads(text))
    except SchemaError as error:
        return str(error.message)
    return None


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool.

    Attributes:
        parameters: the JSON schema of an object; anything else raises ConfigError.
        run: takes the object's properties by name and returns text; may be a coroutine function.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    run: Callable[..., str | Awaitable[str]]

    def __post_init__(self) -> None:
        try:
            problem = _schema_problem(encode_json(self.parameters))
        except ValueError as error:  # what no prompt could declare
            problem = str(error)
        if problem is not None:
            raise ConfigError(f"tool {self.name}: parameters: {problem}")
        if self.parameters.get("type") != "object":
            raise ConfigError(f"tool {self.name}: parameters must be a schema of type object")

    def schema(self) -> dict[str, Any]:
        """The tool's declaration, as chat templates take it."""
        function = {"name": self.name, "description": self.description}
        return {"type": "function", "function": function | {"parameters": dict(self.parameters)}}

    def violation(self, arguments: Mapping[str, Any]) -> str | None:
        """Message about how arguments break the schema, None if they keep it."""
        from jsonschema import Draft202012Validator

        validator: Any = Draft202012Validator(self.parameters)
        error = first_error(validator.iter_errors(dict(arguments)))
        if error is None:
            return None
        path = "/".join(str(part) for part in error.absolute_path)
        message = clip(str(error.message), _MESSAGE_CHARACTERS)
        return f"{path}: {message}" if path else message

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """Run the tool; the result is its text, or an error for the model to read."""
        violation = self.violation(arguments)
        if violation is not None:
            return f"error: {violation}"
        try:
            text = await limited(lambda: self._start(arguments), seconds=TOOL_SECONDS)
        except ConfigError:
            raise  # this machine cannot run the tool at all: no model should have to read that
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool's failure is its result
            return f"error: {clip(str(error), _MESSAGE_CHARACTERS) or type(error).__name__}"
        if not isinstance(text, str):
            return f"error: {self.name} returned {type(text).__name__}, not text"
        return text

    def _start(self, arguments: Mapping[str, Any]) -> Awaitable[Any]:
        if inspect.iscoroutinefunction(self.run):
            return self.run(**arguments)
        # in a thread that the end of the process does not wait for
        return asyncio.wrap_future(in_thread(lambda: self.run(**arguments)))


class Toolbox(Environment):
    """A toolkit of independent tools: the same for every prompt, without a state between calls.

    Results longer than `RESULT_CHARACTERS` lose their middle.

    Raises:
        ConfigError: two tools have the same name.
    """

    def __init__(self, tools: Sequence[Tool]):
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise ConfigError(f"two tools are called {tool.name}")
            self._tools[tool.name] = tool

    def schemas(self, prompt: Prompt) -> str:
        return json_text([tool.schema() for tool in self._tools.values()])

    def open(self, prompt: Prompt) -> Toolbox:
        return self

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        tool = self._tools.get(name)
        if tool is None:
            return writable(f"error: no tool {clip(name, 80)}; there is {', '.join(self._tools)}")
        return writable(clip(await tool.call(arguments), RESULT_CHARACTERS))


def open_toolkit(names: str | Sequence[str]) -> Toolbox:
    """Make the tools that a recipe names, `calculator+python`.

    Args:
        names: one name, several joined by "+", or a list.

    Raises:
        ConfigError: no such tool, with the nearest; or this machine cannot run it.
    """
    # imported here: these modules import this one
    from posttrain.config.load import nearest
    from posttrain.environments.calculator import calculator
    from posttrain.environments.python import python_tool

    makers: dict[str, Callable[[], Tool]] = {"calculator": calculator, "python": python_tool}
    tools: list[Tool] = []
    listed_names = names.split("+") if isinstance(names, str) else names
    for name in map(str.strip, listed_names):
        if name not in makers:
            raise ConfigError(f"no tool is called {name!r}{nearest(name, tuple(makers))}")
        tools.append(makers[name]())
    return Toolbox(tools)


class EnvironmentFault(Exception):
    """Fault of an environment, not of a model: it raised, hung or returned a wrong type."""


async def attempt(
    part: str,
    call: Callable[[], Any],
    *,
    seconds: float | None = ENVIRONMENT_SECONDS,
    kind: Any = object,
) -> Any:
    """Run a part of an environment and return its result, awaited if need be.

    Args:
        part: name of the part, for the message of a fault.
        seconds: time limit; None for a part that waits for a person.
        kind: type that the result must have: str, if not any.

    Raises:
        EnvironmentFault: it raised, took too long or returned another type; says which.
        ConfigError: this machine cannot run it at all.
    """
    try:
        if seconds is None:
            result = await call()
        else:
            result = await limited(call, seconds=seconds)
    except (ConfigError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # also SystemExit: an environment ends no run
        task = asyncio.current_task()
        # a cancellation of this task is passed on; one of the environment's own tasks is its fault
        if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
            raise
        raise EnvironmentFault(_fault_text(part, error)) from error
    if not isinstance(result, kind):
        raise EnvironmentFault(f"{part}: returned {type(result).__name__}, not text")
    return result


def state_of(environment: Environment) -> str:
    """Final state of an environment, JSON text of an object.

    Raises:
        EnvironmentFault: the snapshot fails, or is no such text.
    """
    try:
        state = limited_step(environment.snapshot)
        fields: Any = load_json(state)
    except (Exception, SystemExit) as error:
        raise EnvironmentFault(_fault_text("the final state", error)) from error
    if not isinstance(fields, dict):
        raise EnvironmentFault("the final state: no object in JSON")
    return state


def _fault_text(part: str, error: BaseException) -> str:
    return f"{part}: {type(error).__name__}: {clip(str(error), _MESSAGE_CHARACTERS)}"


def clip(text: str, characters: int) -> str:
    """Shorten a text to its beginning and end, with a mark for the characters left out between."""
    if len(text) <= characters:
        return text
    omitted = len(text) - characters
    half = characters // 2
    return f"{text[: characters - half]}\n[… {omitted} characters left out …]\n{text[-half:]}"
