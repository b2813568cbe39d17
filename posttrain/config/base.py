"""The base of every recipe schema: strict, frozen, and never silently lenient.

    class MixtureConfig(Strict):
        total_rows: int = 1000

An unknown key, a value of another type (`"3"` for `3`) or an assignment after construction raises.
Defaults live on the schema field and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict


class Strict(BaseModel):
    """A schema that forbids unknown keys, coerces nothing but int → float, and is immutable."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        # `model_init_kwargs`-like names are ordinary keys in a recipe
        protected_namespaces=(),
    )


def _plain_name(name: str) -> str:
    if not re.fullmatch(r"[\w.+-]+", name):
        raise ValueError(f"{name!r} is no name: use letters, digits and any of _ . + -")
    return name


Name = Annotated[str, AfterValidator(_plain_name)]


def refuse_twice(kind: str, names: Sequence[str]) -> None:
    """Raises ValueError for names of one kind that do not differ."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{kind} names must differ, found twice: {', '.join(twice)}")


def source(text: str) -> dict[str, Any]:
    """Where a default comes from, for `Field(json_schema_extra=…)`; a number without it is ours."""
    return {"source": text}
