"""The conditions of a source's `where` on a raw row, and whether they can have been meant.

unmet({"reward": {"ge": 1}}, {"reward": 0})    → ("where", "reward is 0, not ge 1")
unmet({"reward": {"ge": 1}}, {"reward": "1"})  → ("where_type", "reward: '1' does not compare …")
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Mapping
from typing import Any

from posttrain.errors import ConfigError

Conditions = Mapping[str, Mapping[str, Any]]
_SAMPLE = 5
_KEYS = 100
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "in": lambda value, listed: value in listed,
    "not_in": lambda value, listed: value not in listed,
}


def lookup(row: Mapping[str, Any], path: str) -> Any:
    """The value at a path: the key itself if the row has it, else one object deeper a dot.

    Raises:
        KeyError: the row has no such field.
    """
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise KeyError(path)
        value = value[part]
    return value


def unmet(conditions: Conditions, row: Mapping[str, Any]) -> tuple[str, str] | None:
    """(drop reason, detail) of the first condition that a row does not meet, or `None`.

    A field that is missing or null meets `exists: false` and nothing else. Text and numbers do not
    compare, nor do lists and objects with anything: such a row is dropped as `where_type`.
    """
    for path, tests in conditions.items():
        try:
            value = lookup(row, path)
        except KeyError:
            value = None
        for name, operand in tests.items():
            if name == "exists":
                met = operand == (value is not None)
            elif value is None:
                met = False
            elif not _comparable(value, operand):
                return "where_type", f"{path}: {value!r:.40} does not compare with {operand!r:.40}"
            else:
                met = _COMPARE[name](value, operand)
            if not met:
                return "where", f"{path} is {value!r:.40}, not {name} {operand!r:.40}"
    return None


def _comparable(value: Any, operand: Any) -> bool:
    if isinstance(operand, list):
        return any(_comparable(value, item) for item in operand)
    return isinstance(value, str if isinstance(operand, str) else int | float)


class WhereFields:
    """A source's `where`, the fields that it names and a few of their values, to catch a wrong one.

    Bounded, whatever the number of rows.
    """

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._rows = self._matched = 0
        self._keys: dict[str, None] = {}
        self._values: dict[str, dict[str, None]] = {}

    def unmet(self, row: Mapping[str, Any]) -> tuple[str, str] | None:
        """As the function."""
        why = unmet(self._conditions, row)
        values: dict[str, list[str]] = {}
        for path in self._conditions:
            if len(self._values.get(path, ())) < _SAMPLE:
                try:
                    values[path] = [f"{lookup(row, path)!r:.40}"]
                except KeyError:
                    continue
        keys = map(str, row) if len(self._keys) < _KEYS else ()
        self.add({"rows": 1, "matched": why is None, "keys": keys, "values": values})
        return why

    def state(self) -> dict[str, Any]:
        """What was seen, JSON-able, for `add`."""
        values = {path: list(seen) for path, seen in self._values.items()}
        keys = list(self._keys)
        return {"rows": self._rows, "matched": self._matched, "keys": keys, "values": values}

    def add(self, state: Mapping[str, Any]) -> None:
        """Note what was seen in another part of the source."""
        self._rows += state["rows"]
        self._matched += state["matched"]
        if len(self._keys) < _KEYS:
            self._keys.update(dict.fromkeys(state["keys"]))
        for path, seen in state["values"].items():
            values = self._values.setdefault(path, {})
            for value in seen:
                if len(values) < _SAMPLE:
                    values[value] = None

    def check(self, source: str) -> None:
        """Complain about a field that no row had, or conditions that no row met.

        Raises:
            ConfigError: naming the field and the nearest that exists, or the values seen.
        """
        if self._rows == 0:
            return
        for path, tests in self._conditions.items():
            if path not in self._values and tests != {"exists": False}:
                close = difflib.get_close_matches(path, self._keys, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"rows have {_some(self._keys)}"
                raise ConfigError(
                    f"source {source!r}: where names {path!r}, which none of {self._rows} rows has "
                    f"({hint})"
                )
        if self._matched == 0:
            seen = "; ".join(f"{path} is {_some(values)}" for path, values in self._values.items())
            raise ConfigError(
                f"source {source!r}: where matches none of {self._rows} rows ({seen})"
            )


def _some(names: Mapping[str, None]) -> str:
    return ", ".join(list(names)[:8]) + (" …" if len(names) > 8 else "")
