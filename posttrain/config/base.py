"""The base of every recipe schema: strict, frozen, and never silently lenient.

    class MixtureConfig(Strict):
        total_rows: int = 1000

An unknown key, a value of another type (`"3"` for `3`) or an assignment after construction raises.
Defaults live on the schema field and nowhere else.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


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
