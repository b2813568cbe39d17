"""One source of rows in a data recipe: where its rows are, how to read them, which to drop."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field

from posttrain.config.base import Strict
from posttrain.config.filters import Filters
from posttrain.config.load import nearest
from posttrain.records import Role

DialectName = Literal[
    "openai", "inline_think", "sharegpt", "alpaca", "prompt_completion", "chosen_rejected"
]
FieldName = Literal[
    "messages",
    "role",
    "content",
    "tools",
    "system",
    "reasoning",
    "instruction",
    "input",
    "output",
    "history",
    "prompt",
    "completion",
    "chosen",
    "rejected",
]
EndingPolicy = Literal["trim", "drop"]

_COMMIT = re.compile(r"[0-9a-f]{40}")


def _distinct(fields: tuple[str, ...]) -> tuple[str, ...]:
    keys = {path.rpartition(".")[2] for path in fields}
    if len(keys) < len(fields) or "" in keys:
        raise ValueError("each field is carried under the last part of its path, once")
    return fields


Metadata = Annotated[tuple[str, ...], AfterValidator(_distinct)]


# -- conditions on the fields of a row; all must hold. {reward: 1} equals; {task: [a, b]} is one of;
#    {info.score: {ge: 0.5, lt: 1}} reaches inside objects; {aborted: {exists: false}} is missing or
#    null. The resolved recipe holds them as {field: {operator: value}}, whatever their first form.


_SCALAR = "a text, a number or a truth value (exists: false for null)"
_ORDERED = "a number or a text"
_LIST = "a list of texts, numbers or truth values"
_TRUTH = "true or false"
# operator → the operand that it takes
_OPERANDS = {
    "eq": _SCALAR,
    "ne": _SCALAR,
    "ge": _ORDERED,
    "gt": _ORDERED,
    "le": _ORDERED,
    "lt": _ORDERED,
    "in": _LIST,
    "not_in": _LIST,
    "exists": _TRUTH,
}


def _is_operand(value: Any, operand: str) -> bool:
    if operand == _LIST:
        values = cast(list[Any], value) if isinstance(value, list | tuple) else []
        return len(values) > 0 and all(_is_operand(element, _SCALAR) for element in values)
    if isinstance(value, bool):
        return operand != _ORDERED
    return operand != _TRUTH and isinstance(value, str | int | float)


def _parse_conditions(value: Any) -> dict[str, dict[str, Any]]:
    """Read conditions in any of their forms into {field: {operator: operand}}.

    Raises:
        ValueError: there is none, or one that is unknown or that no row can meet.
    """
    if not isinstance(value, Mapping) or not value:
        raise ValueError(
            "where is a mapping of fields to conditions, e.g. {reward: {ge: 1}, task: [a, b]}, "
            f"found {value!r} (from an expression: docs/reference/renamed.md)"
        )
    conditions: dict[str, dict[str, Any]] = {}
    for field, condition in cast(Mapping[Any, Any], value).items():
        conditions[str(field)] = _parse_condition(str(field), condition)
    return conditions


def _parse_condition(field: str, condition: Any) -> dict[str, Any]:
    operators: dict[str, Any]
    if isinstance(condition, Mapping):
        operators = cast(dict[str, Any], condition)
    elif isinstance(condition, list | tuple):
        operators = {"in": condition}
    else:
        operators = {"eq": condition}
    for name, operand in operators.items():
        if name not in _OPERANDS:
            hint = nearest(name.replace("te", "e"), [*_OPERANDS])  # gte and lte of other languages
            raise ValueError(f"{field}: there is no operator {name!r}{hint}")
        if not _is_operand(operand, _OPERANDS[name]):
            raise ValueError(f"{field}: {name} takes {_OPERANDS[name]}, found {operand!r}")
    # a missing field meets no other condition
    if not operators or (operators.get("exists") is False and len(operators) > 1):
        raise ValueError(f"{field}: no row can meet {dict(operators)!r}")
    return operators


Where = Annotated[dict[str, dict[str, Any]], BeforeValidator(_parse_conditions)]


class RowPlace(Strict):
    """Place of a source's rows.

    path: file, HF dataset directory or glob, or a list of them, relative to the base directory:
        `.jsonl`, `.ndjson`, `.json` (lines, or one array), each also `.gz`, `.zst`; `.parquet`.
    hub: a Hugging Face dataset id, read as a stream.
    revision: revision of a hub id, as a 40-digit commit.
    subset: configuration of a hub id that has several.
    split: split of a hub id, or of an HF directory that holds several.
    where: conditions on the rows to keep (`posttrain.config.source`).
    """

    name: str = Field(min_length=1)
    path: str | tuple[str, ...] | None = None
    hub: str | None = None
    revision: str | None = None
    subset: str | None = None
    split: str | None = None
    where: Where | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths and globs as a tuple, empty for a hub id."""
        if self.path is None:
            return ()
        return (self.path,) if isinstance(self.path, str) else self.path

    def check(self) -> None:
        self.check_place()

    def check_place(self) -> None:
        """Refuse anything but exactly one place, complete with revision and split.

        Raises:
            ValueError: naming the source and the key.
        """
        where = f"source {self.name!r}"
        if (self.path is None) == (self.hub is None):
            raise ValueError(f"{where}: give exactly one of path and hub")
        if self.path is not None:
            if not self.paths or "" in self.paths:
                raise ValueError(f"{where}: path is empty")
            if self.revision or self.subset:
                raise ValueError(f"{where}: revision and subset belong to a hub id")
            return
        if not _COMMIT.fullmatch(self.revision or ""):
            raise ValueError(
                f"{where}: a hub id needs its revision as a 40-digit commit (found "
                f"{self.revision!r}): a branch or tag can move and the build could not be "
                "repeated. The commit stands at "
                f"https://huggingface.co/datasets/{self.hub}/commits/main"
            )
        if not self.split:
            raise ValueError(f"{where}: a hub id needs its split, e.g. split: train")


class SourceConfig(RowPlace):
    """Place of a source's rows, and the way that they become records.

    dialect: name of the dialect, to forbid recognition by structure; rows that do not fit are
        dropped.
    fields: canonical name → name of the field in the rows (a dotted path reaches inside objects).
    roles: names of roles in the rows → ours, beside the usual ones.
    license: license of every row, or of those that lack `license_field`.
    license_field: field of the rows (a dotted path) with their license.
    metadata: fields of the row (dotted paths) to carry along, keyed by their last part.
    ignored_keys: columns and keys of messages to leave out; otherwise a row that fills one is
        refused.
    ending: treatment of a conversation that does not end on an assistant turn: it is trimmed to its
        last one, or dropped.
    prefilled_think: assistant texts start inside a trace, and the opening tag is not in the text.
    strict: stop at the first row that cannot be read as a record, instead of dropping it.
    filters: structural checks and filters of the text (`posttrain.config.filters`).
    """

    dialect: DialectName | None = None
    fields: dict[FieldName, str] = Field(default_factory=dict[FieldName, str])
    roles: dict[str, Role] = Field(default_factory=dict[str, Role])
    license: str = "unknown"
    license_field: str | None = None
    metadata: Metadata = ()
    ignored_keys: tuple[str, ...] = ()
    ending: EndingPolicy = "trim"
    prefilled_think: bool = False
    strict: bool = False
    filters: Filters = Filters()
