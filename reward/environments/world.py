"""A small database and the actions on it: the state that one completion changes.

A refused action changes nothing. States are compared as a whole: rows that were there by their id,
new rows by their content, text without regard to case and white space.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.environments.base import Environment
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
    """A tool on the tables; its parameters are of type string or integer, perhaps with an `enum`.
    `run` takes the tables and the arguments by name, and raises Refused before any change."""

    name: str
    description: str
    parameters: Mapping[str, Mapping[str, Any]]
    run: Callable[..., str]
    required: tuple[str, ...]

    def schema(self) -> dict[str, Any]:
        parameters = {
            "type": "object",
            "properties": {name: dict(schema) for name, schema in self.parameters.items()},
            "required": list(self.required),
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def check(self, arguments: Mapping[str, Any]) -> None:
        if not set(self.required) <= arguments.keys():
            raise Refused(f"{self.name} needs {', '.join(self.required)}")
        for name, value in arguments.items():
            if name not in self.parameters:
                raise Refused(f"{self.name} takes {', '.join(self.parameters)}")
            schema = self.parameters[name]
            if type(value) is not (int if schema["type"] == "integer" else str):  # nor a boolean
                raise Refused(f"{name} is of type {schema['type']}")
            if value not in schema.get("enum", (value,)):
                raise Refused(f"{name} is one of {', '.join(schema['enum'])}")


class World(Environment):
    """Tables of its own, and the actions that read and change them."""

    def __init__(self, tables: Tables, actions: Sequence[Action]) -> None:
        self.tables: Tables = copy.deepcopy(tables)
        self._actions = {action.name: action for action in actions}

    def run(self, name: str, arguments: Mapping[str, Any]) -> str:
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
        return self.run(name, arguments)

    def snapshot(self) -> str:
        # ASCII, since a model may have written half a surrogate pair
        return json.dumps({"tables": self.tables}, separators=(",", ":"))


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
    return [(name, arguments) for name, arguments in metadata["calls"]]


def gold_tables(metadata: Record, actions: Sequence[Action]) -> Tables:
    """`tables` of a prompt's metadata after its `calls`. Raises ValueError: one of them is refused,
    or they change nothing at all."""
    world = World(metadata["tables"], actions)
    for name, arguments in gold_calls(metadata):
        if (result := world.run(name, arguments)).startswith("error:"):
            raise ValueError(f"gold call {name}: {result}")
    if same_state(metadata["tables"], metadata["tables"], world.tables):
        raise ValueError("the gold calls change nothing: doing nothing would pass")
    return world.tables


def reaches_gold(metadata: Record, completion: Completion, actions: Sequence[Action]) -> bool:
    tables = metadata["tables"]
    final = json.loads(completion.state)["tables"] if completion.state else tables
    return same_state(tables, gold_tables(metadata, actions), final)


def same_state(initial: Tables, expected: Tables, actual: Tables) -> bool:
    """Whether two states that came of `initial` are the same."""

    def comparable(tables: Tables) -> Record:
        state: Record = {}
        for table, rows in tables.items():
            old = rows.keys() & initial.get(table, {}).keys()
            new = Counter(json_text(_plain(rows[key])) for key in rows.keys() - old)
            state[table] = {key: _plain(rows[key]) for key in old}, new
        return state

    return comparable(expected) == comparable(actual)


def _plain(row: Record) -> Record:
    return {
        name: " ".join(value.split()).casefold() if isinstance(value, str) else value
        for name, value in sorted(row.items())
    }
