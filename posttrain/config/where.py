"""Conditions on the fields of a row, which choose the rows of a source that are used.

    where:
      reward: 1                        # equals
      task: [a, b]                     # one of
      info.score: {ge: 0.5, lt: 1}     # a dotted path reaches inside objects
      aborted: {exists: false}         # missing or null

All of them must hold. They are kept as `{field: {operator: value}}`, whatever form they came in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import BeforeValidator

from posttrain.config.load import nearest

ORDERED = ("ge", "gt", "le", "lt")
OPERATORS = ("eq", "ne", *ORDERED, "in", "not_in", "exists")


def _conditions(given: object) -> object:
    if not isinstance(given, Mapping) or not given:
        old = "expressions are gone (docs/reference/renamed.md): " if isinstance(given, str) else ""
        raise ValueError(
            f"{old}where is a mapping of fields to conditions, e.g. "
            f"{{reward: {{ge: 1}}, task: [a, b]}}, found {given!r}"
        )
    return {str(k): _operators(str(k), v) for k, v in cast(Mapping[Any, Any], given).items()}


def _operators(field: str, given: Any) -> dict[str, Any]:
    if isinstance(given, Mapping):
        operators = cast(dict[str, Any], given)
    else:
        operators = {"in" if isinstance(given, list | tuple) else "eq": cast(Any, given)}
    for name, value in operators.items():
        if name not in OPERATORS:
            hint = nearest(name.replace("te", "e"), OPERATORS)  # gte and lte of other languages
            raise ValueError(f"{field}: there is no operator {name!r}{hint}")
        if (needed := _needs(name, value)) is not None:
            raise ValueError(f"{field}: {name} takes {needed}, found {value!r}")
    if not operators or (operators.get("exists") is False and len(operators) > 1):
        raise ValueError(f"{field}: no row can meet {dict(operators)!r}")
    return operators


def _needs(name: str, value: Any) -> str | None:
    """What an operator takes, where `value` is something else."""
    if name == "exists":
        return None if isinstance(value, bool) else "true or false"
    if name in ("in", "not_in"):
        items = cast(list[Any], value) if isinstance(value, list | tuple) else []
        fits = bool(items) and all(isinstance(item, str | int | float) for item in items)
        return None if fits else "a list of texts, numbers or truth values"
    if name in ORDERED and isinstance(value, bool):
        return "a number or a text"
    fits = isinstance(value, str | int | float)
    return None if fits else "a text, a number or a truth value (exists: false for null)"


Where = Annotated[dict[str, dict[str, Any]], BeforeValidator(_conditions)]
