"""A small database and the actions on it: the state that one completion changes.

A refused action changes nothing. States are compared as a whole: rows that were there by their id,
new rows by their content, text without regard to case and white space. Every change is logged, so
that what was done and undone, which the final state does not show, is an effect all the same.
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
# [table, id, column, value] of a row that was there at first, [table, id] of one that is gone, and
# [table, content] of a new one
Change = list[Any]
Effect = tuple[str, list[Change]]


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
    """Tables of its own, and the actions that read and change them.

    Attributes:
        effects: of each action that changed something its name and the changes, see `_changes`.
    """

    def __init__(self, tables: Tables, actions: Sequence[Action]) -> None:
        self.tables: Tables = copy.deepcopy(tables)
        self.effects: list[Effect] = []
        self._initial = tables
        self._actions = {action.name: action for action in actions}

    def run(self, name: str, arguments: Mapping[str, Any]) -> str:
        action = self._actions.get(name)
        try:
            if action is None:
                raise Refused(f"no tool {name[:80]}; there is {', '.join(self._actions)}")
            action.check(arguments)
            before = {
                table: {key: dict(row) for key, row in rows.items()}
                for table, rows in self.tables.items()
            }
            result = writable(action.run(self.tables, **arguments))
            if changes := _changes(self._initial, before, self.tables):
                self.effects.append((name, changes))
            return result
        except Refused as refused:
            return writable(f"error: {refused}")
        except (KeyError, TypeError, AttributeError) as error:  # a row's tables lack something
            return writable(f"error: {type(error).__name__}: {error}")

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return self.run(name, arguments)

    def snapshot(self) -> str:
        # ASCII, since a model may have written half a surrogate pair
        state = {"tables": self.tables, "effects": self.effects}
        return json.dumps(state, separators=(",", ":"))


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


def gold_world(metadata: Record, actions: Sequence[Action]) -> World:
    """The world of a prompt's metadata after its `calls`. Raises ValueError: one is refused, or
    they change nothing at all."""
    world = World(metadata["tables"], actions)
    for name, arguments in gold_calls(metadata):
        if (result := world.run(name, arguments)).startswith("error:"):
            raise ValueError(f"gold call {name}: {result}")
    if same_state(metadata["tables"], metadata["tables"], world.tables):
        raise ValueError("the gold calls change nothing: doing nothing would pass")
    return world


def departure(metadata: Record, completion: Completion, gold: World) -> str | None:
    """In which way a completion is not the gold: another final state, or an effect that does not
    lead there; None where it is the gold. `metadata["allowed"]` names actions whose effects may be
    more than the gold's, if they are undone."""
    initial = metadata["tables"]
    untouched: Record = {"tables": initial, "effects": []}
    state: Record = json.loads(completion.state) if completion.state else untouched
    if not same_state(initial, gold.tables, state["tables"]):
        return "another final state"
    # whatever route leads there, each change is one of the whole or of the gold's own route
    needed = Counter(map(json_text, _changes(initial, initial, gold.tables)))
    needed |= Counter(json_text(change) for _, changes in gold.effects for change in changes)
    made = Counter[str]()
    effects: list[Effect] = state["effects"]
    for name, changes in effects:
        for change in changes:
            made[json_text(change)] += 1
            # a row is set to the same value as often as one likes, and created once
            new_row = isinstance(change[-1], dict)
            most = needed[json_text(change)]
            needless = made[json_text(change)] > most if new_row else not most
            if needless and name not in metadata.get("allowed", ()):
                return f"an effect that was not needed: {name}"
    return None


def _changes(initial: Tables, before: Tables, after: Tables) -> list[Change]:
    changes: list[Change] = []
    for table, rows in after.items():
        old_rows = before.get(table, {})
        for key in sorted(old_rows.keys() | rows.keys()):
            old, new = old_rows.get(key), rows.get(key)
            if old == new:
                continue
            if new is None:
                changes.append(
                    [table, key] if key in initial.get(table, {}) else [table, key, "undone"]
                )
            elif key not in initial.get(table, {}):
                changes.append([table, _plain(new)])
            else:
                values, earlier = _plain(new), _plain(old or {})
                changed = [name for name in values if values[name] != earlier.get(name)]
                changes += [[table, key, name, values[name]] for name in changed]
    return changes


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
