"""The base of every recipe schema: strict, frozen, and never silently lenient.

Defaults live on the schema field and nowhere else.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from posttrain.config.load import nearest

# stage → schema of its recipe, of the files imported so far; a class says `stage="sft"` beside its
# base. `stage_schemas` imports the others
STAGES: dict[str, type[BaseModel]] = {}


class Strict(BaseModel):
    """A schema that forbids unknown keys, coerces nothing but int → float, and is immutable.

    Docstrings of schemas end with what their keys are, `key: …` a line, which `--help` prints.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        # `model_init_kwargs`-like names are ordinary keys in a recipe
        protected_namespaces=(),
    )

    def __init_subclass__(cls, *, stage: str | None = None, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if stage is not None:
            STAGES[stage] = cls

    def model_post_init(self, context: Any, /) -> None:
        # no validator: pydantic would then name a union's member by it, in the place of an error
        for owner in reversed(type(self).__mro__):
            if "check" in vars(owner):
                vars(owner)["check"](self)

    def check(self) -> None:
        """Raises ValueError for keys that exclude each other; every class's runs, bases first."""


def _plain_name(name: str) -> str:
    if not re.fullmatch(r"[\w.+-]+", name):
        raise ValueError(f"{name!r} is no name: use letters, digits and any of _ . + -")
    return name


Name = Annotated[str, AfterValidator(_plain_name)]


def refuse(where: str, reasons: Mapping[str, object]) -> None:
    """Raises ValueError with the first reason that holds."""
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"{where}: {reason}")


def refuse_twice(kind: str, names: Sequence[str]) -> None:
    """Raises ValueError for names of one kind that do not differ."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{kind} names must differ, found twice: {', '.join(twice)}")


def refuse_unknown(what: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Raises ValueError with the nearest for the first name that is not known."""
    for name in names:
        if name not in known:
            raise ValueError(f"{what} {name!r}{nearest(name, known)}")


def refuse_shares(where: str, shares: Sequence[float]) -> None:
    """Raises ValueError for shares that do not sum to 1."""
    if abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"{where}: the shares sum to {sum(shares):.6g}, they must sum to 1")


def source(text: str) -> dict[str, Any]:
    """Where a default comes from, for `Field(json_schema_extra=…)`; a number without it is ours."""
    return {"source": text}
