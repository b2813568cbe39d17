"""The base of every recipe schema: strict, frozen, and never silently lenient.

Defaults live on the schema field and nowhere else.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from posttrain.config.load import nearest

# stage → schema of its recipe, from the files imported so far; a class registers itself by
# `stage="sft"` beside its base. `stage_schemas` imports all files
STAGES: dict[str, type[BaseModel]] = {}


class Strict(BaseModel):
    """A schema that forbids unknown keys, coerces nothing but int → float, and is immutable.

    The docstring of a schema ends with a line `key: description` for each key; `--help` prints it.
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
        # not a validator of pydantic's, which would add the class's name to an error's location
        for owner in reversed(type(self).__mro__):
            if "check" in vars(owner):
                vars(owner)["check"](self)

    def check(self) -> None:
        """Refuse keys that exclude each other; the checks of all bases run too, bases first.

        Raises:
            ValueError: saying what to write instead.
        """


def _plain_name(name: str) -> str:
    if not re.fullmatch(r"[\w.+-]+", name):
        raise ValueError(f"{name!r} is no name: use letters, digits and any of _ . + -")
    return name


Name = Annotated[str, AfterValidator(_plain_name)]


def refuse_twice(what: str, names: Sequence[str]) -> None:
    """Raise ValueError if a name stands twice; `what` says what is named."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{what} names must differ, found twice: {', '.join(repeated)}")


def refuse_unknown(message: str, names: Iterable[str], valid: Sequence[str]) -> None:
    """Raise ValueError for the first name that is not valid, and propose the nearest valid one."""
    for name in names:
        if name not in valid:
            raise ValueError(f"{message} {name!r}{nearest(name, valid)}")


def refuse_shares(where: str, shares: Sequence[float]) -> None:
    """Raise ValueError if the shares do not sum to 1."""
    if abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"{where}: the shares sum to {sum(shares):.6g}, they must sum to 1")


def source(text: str) -> dict[str, Any]:
    """Source of a default, for `Field(json_schema_extra=…)`; a number without one is our choice."""
    return {"source": text}
