"""JSON text in, plain values out; what Python's `json` accepts beyond JSON is refused.

Nesting has a limit of its own: Python's is the room on the stack, by which the same row would be
read in one process and refused in another.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.records import json_text

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
MAX_DEPTH = 100  # lists and objects inside each other; far beyond any chat, far below the stack
_TOO_DEEP = f"nested too deep: lists and objects beyond {MAX_DEPTH} levels"


def load_json(text: str | bytes) -> Any:
    """Decode strict JSON.

    Raises:
        ValueError: not JSON; or a repeated key, NaN, an infinity, nesting beyond `MAX_DEPTH`, bytes
            that are not UTF-8 (`UnicodeDecodeError`).
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(text, value)
    return value


def jsonl_rows(text: str) -> list[Any]:
    """The values of JSON Lines that we wrote.

    Only "\\n" ends a line: what else `str.splitlines` splits at, such as U+2028, stands in texts.
    """
    return [json.loads(line) for line in text.split("\n") if line]


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> int:
    """Write one JSON object a line; returns the number of rows."""
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return len(rows)


def encode_json(value: object) -> str:
    """Encode a value as JSON text.

    Raises:
        ValueError: it holds what JSON has no word for (NaN, bytes, a date) or nests too deep.
    """
    try:
        text = json_text(value)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except TypeError as error:
        raise ValueError(str(error)) from None
    _check_depth(text, value)
    if ("NaN" in text or "Infinity" in text) and not _finite_everywhere(value):
        raise ValueError("a number is not finite")
    return text


def writable(text: str) -> str:
    """Text that UTF-8 can hold: a surrogate pair becomes its character, half of one an escape."""
    if text.isascii():
        return text
    paired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return paired.encode("utf-8", "backslashreplace").decode()


def row_line(row: object) -> str:
    """Write a row as one line of JSON that UTF-8 can hold."""
    # a broken byte sequence may have been decoded to a lone surrogate: such are written as escapes
    return writable(json_text(row)) + "\n"


def printable(text: str) -> str:
    """Text that cannot steer a terminal: without control characters but line ends and tabs."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def first_error(errors: Iterable[Any]) -> Any:
    """Select the error at the first place of the document; None without errors.

    jsonschema yields them in an order that is in part a set's: another in every process.
    """
    return min(errors, key=lambda error: error.path, default=None)


def schema_error(validator: Any, schema: Any) -> Any:
    """First error of a schema itself, by one of jsonschema's validator classes; None if valid."""
    meta_validator = validator(validator.META_SCHEMA, format_checker=validator.FORMAT_CHECKER)
    return first_error(meta_validator.iter_errors(schema))


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _check_depth(text: str, value: Any) -> None:
    """Refuse what nests beyond the limit; few texts hold enough brackets to need a closer look."""
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        children: list[Any] = []
        for container in level:
            children += [child for child in _inside(container) if isinstance(child, dict | list)]
        level = children
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _finite_everywhere(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return all(map(_finite_everywhere, _inside(value)))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        raise ValueError(f"key {twice[0]!r} appears twice in one object")
    return fields


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is beyond the range of a number")
    return number


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_refuse)
