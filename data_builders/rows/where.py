"""Conditions of a source's `where` on raw rows, and a check that they can match anything."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, cast

from data_builders.rows.raw import Drop
from posttrain.config.source import SourceConfig

Conditions = Mapping[str, Mapping[str, Any]]
_VALUES_SHOWN = 5  # values of a field that an error shows
_KEYS_SHOWN = 100  # keys of rows that an error compares a name with
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "ge", "gt", "le", "lt")},
    "in": lambda value, operands: value in operands,
    "not_in": lambda value, operands: value not in operands,
}


def lookup(row: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path, or raise KeyError; a key with dots in it comes first.

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


def unmet(conditions: Conditions, row: Mapping[str, Any]) -> Drop | None:
    """Drop of a row for the first condition that it does not meet; None if it meets all.

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
                is_met = operand == (value is not None)
            elif value is None:
                is_met = False
            elif not _comparable(value, operand):
                detail = f"{path}: {value!r:.40} does not compare with {operand!r:.40}"
                return Drop("where_type", detail)
            else:
                is_met = _COMPARE[name](value, operand)
            if not is_met:
                return Drop("where", f"{path} is {value!r:.40}, not {name} {operand!r:.40}")
    return None


def _comparable(value: Any, operand: Any) -> bool:
    """True if a value is of a type that compares with the operand, or with one in its list."""
    if isinstance(operand, list):
        return any(_comparable(value, item) for item in operand)
    if isinstance(operand, str):
        return isinstance(value, str)
    return isinstance(value, int | float)


def named_paths(config: SourceConfig) -> Iterator[str]:
    """Yield all fields that a source's recipe names, for any purpose."""
    yield from (*config.fields.values(), *config.metadata, *(config.where or ()))
    yield from config.ignored_keys
    if config.license_field is not None:
        yield config.license_field


class SeenFields:
    """Record of the fields that rows have, so that a wrong name in the recipe is an error.

    Memory is bounded: the first keys that rows have at any depth, and a few values of each field
    of `where`.
    """

    def __init__(self, config: SourceConfig) -> None:
        self._where: Conditions = config.where or {}
        self._missing = set(named_paths(config))
        self._rows = 0
        self._matched = 0
        # dicts with null values: ordered sets
        self._keys: dict[str, None] = {}
        self._values: dict[str, dict[str, None]] = {path: {} for path in self._where}

    def unmet(self, row: Mapping[str, Any]) -> Drop | None:
        """Record the fields of a row. Returns its drop if `where` does not match it."""
        drop = unmet(self._where, row)
        self._rows += 1
        self._matched += drop is None
        if self._missing:
            row_keys = dict.fromkeys(_walk_keys(row))
            self._missing -= row_keys.keys()
            if len(self._keys) < _KEYS_SHOWN:
                self._keys |= row_keys
        for path, values in self._values.items():
            if len(values) < _VALUES_SHOWN:
                with suppress(KeyError):
                    values[f"{lookup(row, path)!r:.40}"] = None
        return drop

    def state(self) -> dict[str, Any]:
        """JSON-able state, for `add`."""
        return {
            "rows": self._rows,
            "matched": self._matched,
            "missing": sorted(self._missing),
            "keys": list(self._keys)[:_KEYS_SHOWN],
            "values": {path: list(values) for path, values in self._values.items()},
        }

    def add(self, state: Mapping[str, Any]) -> None:
        """Merge the state of another part of the source."""
        self._rows += state["rows"]
        self._matched += state["matched"]
        self._missing &= set(state["missing"])
        self._keys |= dict.fromkeys(state["keys"])
        for path, values in self._values.items():
            new_values = dict.fromkeys(state["values"][path])
            values |= dict.fromkeys(list(new_values)[: _VALUES_SHOWN - len(values)])

    def problem(self, source: str) -> str | None:
        """Message about a field that no row has, with the nearest key, or a `where` never met."""
        if self._rows == 0:
            return None
        may_be_absent = {path for path, tests in self._where.items() if tests == {"exists": False}}
        for name in sorted(self._missing - may_be_absent):
            close = difflib.get_close_matches(name, self._keys, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"rows have {_shortened(self._keys)}"
            return f"source {source!r} names {name!r}, which none of {self._rows} rows has ({hint})"
        if self._matched == 0:
            examples = [f"{path} is {_shortened(values)}" for path, values in self._values.items()]
            return (
                f"source {source!r}: where matches none of {self._rows} rows "
                f"({'; '.join(examples)})"
            )
        return None


def _walk_keys(value: Any, path: str = "", depth: int = 4) -> Iterator[str]:
    """Yield the keys of a row and of the objects in it, alone and as dotted paths."""
    if isinstance(value, list):
        for item in cast(list[Any], value)[:_VALUES_SHOWN]:
            yield from _walk_keys(item, "", depth)
    if isinstance(value, dict) and depth:
        for key, inner in cast(dict[str, Any], value).items():
            yield key
            yield f"{path}{key}"
            yield from _walk_keys(inner, f"{path}{key}.", depth - 1)


def _shortened(names: Mapping[str, None]) -> str:
    return ", ".join(list(names)[:8]) + (" …" if len(names) > 8 else "")
