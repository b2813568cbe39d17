"""A small database and the actions on it: the state that one completion changes.

A refused action changes nothing. States are compared as a whole: initial rows by their id, new rows
by their content, texts up to case and white space. Every change is logged as an effect, since the
final state alone does not show what was done and undone.
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
# [table, id, column, value] for a changed initial row, [table, id] for a deleted one, and
# [table, content] for a new row
Change = list[Any]
Effect = tuple[str, list[Change]]  # name of an action, its changes


class Refused(Exception):
    """An action cannot be carried out; the message is what the model reads as its result."""


@dataclass(frozen=True, slots=True)
class Action:
    """A tool that reads or changes the tables.

    Attributes:
        parameters: JSON schema of each parameter: type string or integer, and perhaps an `enum`.
        run: takes the tables and the arguments by name; raises Refused before any change.
    """

    name: str
    description: str
    parameters: Mapping[str, Mapping[str, Any]]
    run: Callable[..., str]
    required: tuple[str, ...]

    def schema(self) -> dict[str, Any]:
        """The tool's declaration, as chat templates take it."""
        parameters = {
            "type": "object",
            "properties": {name: dict(schema) for name, schema in self.parameters.items()},
            "required": list(self.required),
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise Refused where the arguments do not fit the parameters."""
        if not set(self.required) <= arguments.keys():
            raise Refused(f"{self.name} needs {', '.join(self.required)}")
        for name, value in arguments.items():
            if name not in self.parameters:
                raise Refused(f"{self.name} takes {', '.join(self.parameters)}")
            schema = self.parameters[name]
            # not isinstance: a boolean is an int to Python
            if type(value) is not (int if schema["type"] == "integer" else str):
                raise Refused(f"{name} is of type {schema['type']}")
            if value not in schema.get("enum", (value,)):
                raise Refused(f"{name} is one of {', '.join(schema['enum'])}")


class World(Environment):
    """A copy of the initial tables, and the actions that read and change it.

    Attributes:
        effects: name and changes of each action that changed something.
    """

    def __init__(self, tables: Tables, actions: Sequence[Action]) -> None:
        self.tables: Tables = copy.deepcopy(tables)
        self.effects: list[Effect] = []
        self._initial = tables
        self._actions = {action.name: action for action in actions}

    def run(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run an action and log its effect; returns its result or the error to read."""
        action = self._actions.get(name)
        try:
            if action is None:
                raise Refused(f"no tool {name[:80]}; there is {', '.join(self._actions)}")
            action.check(arguments)
            before: Tables = {}
            for table, rows in self.tables.items():
                before[table] = {key: dict(row) for key, row in rows.items()}
            result = writable(action.run(self.tables, **arguments))
            if changes := _changes(self._initial, before, self.tables):
                self.effects.append((name, changes))
            return result
        except Refused as refused:
            return writable(f"error: {refused}")
        except (KeyError, TypeError, AttributeError) as error:  # the tables of a row lack a column
            return writable(f"error: {type(error).__name__}: {error}")

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return self.run(name, arguments)

    def snapshot(self) -> str:
        # ASCII, since a model may have written half a surrogate pair
        state = {"tables": self.tables, "effects": self.effects}
        return json.dumps(state, separators=(",", ":"))


def row_of(tables: Tables, table: str, key: str) -> Record:
    """The row with an id. Raises Refused where there is none."""
    if key not in tables[table]:
        raise Refused(f"no {key[:80]} in {table}")
    return tables[table][key]


def add_row(tables: Tables, table: str, row: Record) -> str:
    """Add a row under a new id, and return the id."""
    number = 1
    while (key := f"{table}-new-{number}") in tables[table]:
        number += 1
    tables[table][key] = row
    return key


def gold_calls(metadata: Record) -> list[Call]:
    """(action, arguments) of each gold call of a prompt's metadata."""
    return [(name, arguments) for name, arguments in metadata["calls"]]


def gold_world(metadata: Record, actions: Sequence[Action]) -> World:
    """The world of a prompt's metadata after its `calls`.

    Raises ValueError: a call is refused, or the calls change nothing at all.
    """
    world = World(metadata["tables"], actions)
    for name, arguments in gold_calls(metadata):
        if (result := world.run(name, arguments)).startswith("error:"):
            raise ValueError(f"gold call {name}: {result}")
    if same_state(metadata["tables"], metadata["tables"], world.tables):
        raise ValueError("the gold calls change nothing: doing nothing would pass")
    return world


def departure(metadata: Record, completion: Completion, gold: World) -> str | None:
    """Describe how a completion departs from the gold; None where it does not.

    It departs by another final state, or by an effect that the gold does not need. The effects of
    actions that `metadata["allowed"]` names may be more than the gold's, if they are undone.
    """
    initial = metadata["tables"]
    untouched: Record = {"tables": initial, "effects": []}
    state: Record = json.loads(completion.state) if completion.state else untouched
    if not same_state(initial, gold.tables, state["tables"]):
        return "another final state"
    # any route may lead there: a change is needed if it is one of the net changes or of the gold's
    # route
    needed = Counter(map(json_text, _changes(initial, initial, gold.tables)))
    needed_on_route = Counter[str]()
    for _, changes in gold.effects:
        needed_on_route.update(map(json_text, changes))
    needed |= needed_on_route
    counts = Counter[str]()
    effects: list[Effect] = state["effects"]
    for action, changes in effects:
        for change in changes:
            key = json_text(change)
            counts[key] += 1
            # setting a column to the same value again is harmless; creating a row again is not
            creates_row = isinstance(change[-1], dict)
            needless = counts[key] > needed[key] if creates_row else not needed[key]
            if needless and action not in metadata.get("allowed", ()):
                return f"an effect that was not needed: {action}"
    return None


def _changes(initial: Tables, before: Tables, after: Tables) -> list[Change]:
    """Differences between two states, see `Change`; `initial` tells new rows from initial ones."""
    changes: list[Change] = []
    for table, rows_after in after.items():
        rows_before = before.get(table, {})
        initial_rows = initial.get(table, {})
        for key in sorted(rows_before.keys() | rows_after.keys()):
            row_before = rows_before.get(key)
            row_after = rows_after.get(key)
            if row_before == row_after:
                continue
            if row_after is None and key in initial_rows:
                changes.append([table, key])
            elif row_after is None:
                changes.append([table, key, "undone"])
            elif key not in initial_rows:
                changes.append([table, _plain(row_after)])
            else:
                values_before = _plain(row_before or {})
                for column, value in _plain(row_after).items():
                    if value != values_before.get(column):
                        changes.append([table, key, column, value])
    return changes


def same_state(initial: Tables, expected: Tables, actual: Tables) -> bool:
    """Tell whether two states that came from `initial` are the same."""

    def comparable(tables: Tables) -> Record:
        state: Record = {}
        for table, rows in tables.items():
            initial_keys = rows.keys() & initial.get(table, {}).keys()
            initial_rows = {key: _plain(rows[key]) for key in initial_keys}
            new_rows = Counter(json_text(_plain(rows[key])) for key in rows.keys() - initial_keys)
            state[table] = (initial_rows, new_rows)
        return state

    return comparable(expected) == comparable(actual)


def _plain(row: Record) -> Record:
    """A row with its columns sorted and its texts up to case and white space."""
    return {
        name: " ".join(value.split()).casefold() if isinstance(value, str) else value
        for name, value in sorted(row.items())
    }
