"""One tool: what it says of itself, what it takes, and what it does.

    Tool("double", "Twice a number.", {"type": "object", "properties": {"x": {"type": "number"}},
         "required": ["x"], "additionalProperties": False}, run=lambda x: str(2 * x))

`run` gets the arguments by name and returns text; it may be a coroutine function. Whatever goes
wrong is a result that begins with "error:" and that the model reads, never an exception.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from posttrain.errors import ConfigError

Run = Callable[..., str | Awaitable[str]]
_MESSAGE_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. `parameters` is the JSON schema of an object whose properties `run` takes by name.

    Raises:
        ConfigError: `parameters` is no such schema.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    run: Run

    def __post_init__(self) -> None:
        try:
            Draft202012Validator.check_schema(self.parameters)
        except SchemaError as error:
            raise ConfigError(f"tool {self.name}: parameters: {error.message}") from error
        if self.parameters.get("type") != "object":
            raise ConfigError(f"tool {self.name}: parameters must be a schema of type object")

    def schema(self) -> dict[str, Any]:
        """The tool as an OpenAI function schema."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}

    def violation(self, arguments: Mapping[str, Any]) -> str | None:
        """In which way arguments break the schema, None if they keep it."""
        checker: Any = Draft202012Validator(self.parameters)
        for error in checker.iter_errors(dict(arguments)):
            place = "/".join(str(part) for part in error.absolute_path)
            message = clip(str(error.message), _MESSAGE_CHARACTERS)
            return f"{place}: {message}" if place else message
        return None

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """The result of a call, or an error as text. A plain function runs in a thread."""
        if (broken := self.violation(arguments)) is not None:
            return f"error: {broken}"
        try:
            if inspect.iscoroutinefunction(self.run):
                return await self.run(**arguments)
            return cast(str, await asyncio.to_thread(self.run, **arguments))
        except ConfigError:
            raise  # this machine cannot run the tool at all: no model should have to read that
        except Exception as error:  # noqa: BLE001 - a tool's failure is its result
            said = clip(str(error), _MESSAGE_CHARACTERS)
            return f"error: {said}" if said else f"error: {type(error).__name__}"


def clip(text: str, characters: int) -> str:
    """The text, or its beginning and end with a mark between them that says how much is gone."""
    if len(text) <= characters:
        return text
    gone = len(text) - characters
    half = characters // 2
    return f"{text[: characters - half]}\n[… {gone} characters left out …]\n{text[-half:]}"


def writable(text: str) -> str:
    """Text that UTF-8 can hold: JSON arguments may bring half a surrogate pair with them."""
    return text.encode("utf-8", "backslashreplace").decode()
