"""A small database and the actions on it: the state that one completion changes.

    world = World({"tasks": {"task-1": {"status": "open"}}}, ACTIONS)
    world.run("update_task", {"task": "task-1", "status": "done"}) == "ok"
    same_state(initial, expected, world.tables) → True

A refused action changes nothing, and its result begins with "error:". States are compared as a
whole, so that whatever else was changed on the way counts: rows that were there by their id, new
rows by their content, text without regard to case and white space.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.jsontext import writable
from posttrain.records import json_text
from posttrain.rollouts import Completion

Record = dict[str, Any]
Tables = dict[str, dict[str, Record]]  # table → id → columns
Call = tuple[str, Mapping[str, Any]]


class Refused(Exception):
    """An action that cannot be carried out; the message is its result."""


@dataclass(frozen=True, slots=True)
class Action:
    """A tool on the tables.

    Attributes:
        parameters: name → JSON schema, of type string or integer and with an optional `enum`.
        run: takes the tables and the arguments by name, returns text. Raises Refused before it
            has changed anything.
        required: names of parameters; the others may be left out.
    """

    name: str
    description: str
    parameters: Mapping[str, Mapping[str, Any]]
    run: Callable[..., str]
    required: tuple[str, ...]

    def schema(self) -> dict[str, Any]:
        """The action as an OpenAI function schema."""
        parameters = {
            "type": "object",
            "properties": {name: dict(schema) for name, schema in self.parameters.items()},
            "required": list(self.required),
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise Refused where the arguments break the schema."""
        for name in self.required:
            if name not in arguments:
                raise Refused(f"{self.name} needs {', '.join(self.required)}")
        for name, value in arguments.items():
            if name not in self.parameters:
                raise Refused(f"{self.name} takes {', '.join(self.parameters)}")
            schema = self.parameters[name]
            kind = int if schema["type"] == "integer" else str
            if type(value) is not kind:  # to Python a boolean is an integer
                raise Refused(f"{name} is of type {schema['type']}")
            if "enum" in schema and value not in schema["enum"]:
                raise Refused(f"{name} is one of {', '.join(schema['enum'])}")


class World:
    """An `Environment`: tables of its own, and the actions that read and change them."""

    def __init__(self, tables: Tables, actions: Sequence[Action]) -> None:
        self.tables: Tables = copy.deepcopy(tables)
        self._actions = {action.name: action for action in actions}

    def run(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The result of one call."""
        action = self._actions.get(name)
        try:
            if action is None:
                raise Refused(f"no tool {name[:80]}; there is {', '.join(self._actions)}")
            action.check(arguments)
            return writable(action.run(self.tables, **arguments))
        except Refused as refused:
            return writable(f"error: {refused}")
        except (KeyError, TypeError, AttributeError) as error:  # a row's tables lack something
            return writable(f"error: {type(error).__name__}: {error}")

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """As `run`."""
        return self.run(name, arguments)

    def snapshot(self) -> str:
        """JSON text of the tables."""
        # ASCII, since a model may have written half a surrogate pair
        return json.dumps({"tables": self.tables}, separators=(",", ":"))

    async def close(self) -> None:
        """There is nothing to release."""


def row_of(tables: Tables, table: str, key: str) -> Record:
    """A row by its id. Raises Refused where there is none."""
    if key not in tables[table]:
        raise Refused(f"no {key[:80]} in {table}")
    return tables[table][key]


def add_row(tables: Tables, table: str, row: Record) -> str:
    """The id of a new row, none that a row had at first."""
    number = 1
    while (key := f"{table}-new-{number}") in tables[table]:
        number += 1
    tables[table][key] = row
    return key


def gold_calls(metadata: Record) -> list[Call]:
    """`calls` of a prompt's metadata."""
    return [(name, arguments) for name, arguments in metadata["calls"]]


def gold_tables(metadata: Record, actions: Sequence[Action]) -> Tables:
    """`tables` of a prompt's metadata after its `calls`.

    Raises:
        ValueError: one of them is refused, or they change nothing at all.
    """
    world = World(metadata["tables"], actions)
    for name, arguments in gold_calls(metadata):
        if (result := world.run(name, arguments)).startswith("error:"):
            raise ValueError(f"gold call {name}: {result}")
    if same_state(metadata["tables"], metadata["tables"], world.tables):
        raise ValueError("the gold calls change nothing: doing nothing would pass")
    return world.tables


def reaches_gold(metadata: Record, completion: Completion, actions: Sequence[Action]) -> bool:
    """Whether a completion's final tables are the gold's."""
    tables = metadata["tables"]
    final = json.loads(completion.state)["tables"] if completion.state else tables
    return same_state(tables, gold_tables(metadata, actions), final)


def same_state(initial: Tables, expected: Tables, actual: Tables) -> bool:
    """Whether two states that came of `initial` are the same."""
    return _comparable(initial, expected) == _comparable(initial, actual)


def _comparable(initial: Tables, tables: Tables) -> Record:
    state: Record = {}
    for table, rows in tables.items():
        before = initial.get(table, {})
        kept = {key: _plain(row) for key, row in rows.items() if key in before}
        added = Counter(json_text(_plain(row)) for key, row in rows.items() if key not in before)
        state[table] = kept, added
    return state


def _plain(row: Record) -> Record:
    return {
        name: " ".join(value.split()).casefold() if isinstance(value, str) else value
        for name, value in sorted(row.items())
    }
