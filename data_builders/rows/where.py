"""The conditions of a source's `where` on a raw row, and whether they can have been meant."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, cast

from posttrain.config.source import SourceConfig

Conditions = Mapping[str, Mapping[str, Any]]
_SAMPLE = 5
_KEYS = 100
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "ge", "gt", "le", "lt")},
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


def named_paths(config: SourceConfig) -> Iterator[str]:
    """The fields that a source names, whatever for."""
    yield from (*config.fields.values(), *config.metadata, *(config.where or ()))
    yield from config.ignored_keys
    if config.license_field is not None:
        yield config.license_field


class SeenFields:
    """Which of the fields that a source names its rows have, so that a wrong name is an error.

    Bounded: the first names that rows have at any depth, a few values of each field of `where`.
    """

    def __init__(self, config: SourceConfig) -> None:
        self._where: Conditions = config.where or {}
        self._missing = set(named_paths(config))
        self._rows = self._matched = 0
        self._keys: dict[str, None] = {}
        self._values: dict[str, dict[str, None]] = {path: {} for path in self._where}

    def unmet(self, row: Mapping[str, Any]) -> tuple[str, str] | None:
        """Note what a row shows; as the function `unmet`."""
        why = unmet(self._where, row)
        self._rows += 1
        self._matched += why is None
        if self._missing:
            own = dict.fromkeys(_keys(row))
            self._missing -= own.keys()
            if len(self._keys) < _KEYS:
                self._keys |= own
        for path, values in self._values.items():
            if len(values) < _SAMPLE:
                with suppress(KeyError):
                    values[f"{lookup(row, path)!r:.40}"] = None
        return why

    def state(self) -> dict[str, Any]:
        """What was seen, JSON-able, for `add`."""
        return {
            "rows": self._rows,
            "matched": self._matched,
            "missing": sorted(self._missing),
            "keys": list(self._keys)[:_KEYS],
            "values": {path: list(values) for path, values in self._values.items()},
        }

    def add(self, state: Mapping[str, Any]) -> None:
        """Note what was seen in another part of the source."""
        self._rows += state["rows"]
        self._matched += state["matched"]
        self._missing &= set(state["missing"])
        self._keys |= dict.fromkeys(state["keys"])
        for path, values in self._values.items():
            new = dict.fromkeys(state["values"][path])
            values |= dict.fromkeys(list(new)[: _SAMPLE - len(values)])

    def problem(self, source: str) -> str | None:
        """A field that no row had, with the nearest that there is, or conditions that none met."""
        if self._rows == 0:
            return None
        absent = {path for path, tests in self._where.items() if tests == {"exists": False}}
        for name in sorted(self._missing - absent):
            close = difflib.get_close_matches(name, self._keys, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"rows have {_some(self._keys)}"
            return f"source {source!r} names {name!r}, which none of {self._rows} rows has ({hint})"
        if self._matched == 0:
            seen = "; ".join(f"{path} is {_some(values)}" for path, values in self._values.items())
            return f"source {source!r}: where matches none of {self._rows} rows ({seen})"
        return None


def _keys(value: Any, path: str = "", depth: int = 4) -> Iterator[str]:
    """The keys of a row and of what is in it, alone and as dotted paths."""
    if isinstance(value, list):
        for item in cast(list[Any], value)[:_SAMPLE]:
            yield from _keys(item, "", depth)
    if isinstance(value, dict) and depth:
        for key, inner in cast(dict[str, Any], value).items():
            yield from (key, f"{path}{key}")
            yield from _keys(inner, f"{path}{key}.", depth - 1)


def _some(names: Mapping[str, None]) -> str:
    return ", ".join(list(names)[:8]) + (" …" if len(names) > 8 else "")
