"""What a source's rows showed of the fields that its `where` names, to catch a wrong one.

source 'airline': where names 'rewrad', which none of 100 rows has (did you mean 'reward'?)
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from data_builders.rows.where import Where, lookup
from posttrain.errors import ConfigError

_SAMPLE = 5
_KEYS = 100


class ObservedFields:
    """Fields seen and a few of their values; bounded, whatever the number of rows."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self._rows = 0
        self._matched = 0
        self._keys: dict[str, None] = {}
        self._values: dict[str, dict[str, None]] = {}

    def see(self, row: Mapping[str, Any], *, matched: bool) -> None:
        """Note one row."""
        self._rows += 1
        self._matched += matched
        if len(self._keys) < _KEYS:
            self._keys.update(dict.fromkeys(map(str, row)))
        for path in self.where.fields:
            values = self._values.get(path, {})
            if len(values) >= _SAMPLE:
                continue
            try:
                values[f"{lookup(row, path)!r:.40}"] = None
            except KeyError:
                continue
            self._values[path] = values

    def state(self) -> dict[str, Any]:
        """What was seen, JSON-able, for `add`."""
        values = {path: list(found) for path, found in self._values.items()}
        return {
            "rows": self._rows,
            "matched": self._matched,
            "keys": list(self._keys),
            "values": values,
        }

    def add(self, state: Mapping[str, Any]) -> None:
        """Note what was seen in another part of the source."""
        self._rows += state["rows"]
        self._matched += state["matched"]
        if len(self._keys) < _KEYS:
            self._keys.update(dict.fromkeys(state["keys"]))
        for path, found in state["values"].items():
            values = self._values.setdefault(path, {})
            for value in found:
                if len(values) < _SAMPLE:
                    values[value] = None

    def check(self, source: str) -> None:
        """Complain about a field that no row had, or an expression that no row met.

        Raises:
            ConfigError: naming the field and the nearest that exists, or the values seen.
        """
        if self._rows == 0:
            return
        for path in self.where.fields:
            if path not in self._values:
                close = difflib.get_close_matches(path, self._keys, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"rows have {_some(self._keys)}"
                raise ConfigError(
                    f"source {source!r}: where names {path!r}, which none of {self._rows} rows has "
                    f"({hint}): {self.where.text}"
                )
        if self._matched == 0:
            seen = "; ".join(f"{path} is {_some(values)}" for path, values in self._values.items())
            raise ConfigError(
                f"source {source!r}: where matches none of {self._rows} rows: {self.where.text} "
                f"({seen})"
            )


def _some(names: Mapping[str, None]) -> str:
    return ", ".join(list(names)[:8]) + (" …" if len(names) > 8 else "")
