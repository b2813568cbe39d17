"""One source of rows in a data recipe: where its rows are, how to read them, which to drop."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field

from posttrain.config.base import Strict, refuse
from posttrain.config.filters import Filters
from posttrain.config.load import nearest
from posttrain.records import Role

DialectName = Literal[
    "openai", "inline_think", "sharegpt", "alpaca", "prompt_completion", "chosen_rejected"
]
FieldName = Literal[
    "messages", "role", "content", "tools", "system", "reasoning", "instruction", "input", "output",
    "history", "prompt", "completion", "chosen", "rejected",
]  # fmt: skip
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
#    null. They are kept as {field: {operator: value}}, whatever form they came in.


_VALUE = "a text, a number or a truth value (exists: false for null)"
_ORDERED = "a number or a text"
_SEVERAL = "a list of texts, numbers or truth values"
_TRUTH = "true or false"
_TAKES = {
    **dict.fromkeys(("eq", "ne"), _VALUE),
    **dict.fromkeys(("ge", "gt", "le", "lt"), _ORDERED),
    **dict.fromkeys(("in", "not_in"), _SEVERAL),
    "exists": _TRUTH,
}


def _is(what: str, given: Any) -> bool:
    if what == _SEVERAL:
        items = cast(list[Any], given) if isinstance(given, list | tuple) else []
        return len(items) > 0 and all(_is(_VALUE, item) for item in items)
    if isinstance(given, bool):
        return what != _ORDERED
    return what != _TRUTH and isinstance(given, str | int | float)


def _conditions(given: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(given, Mapping) or not given:
        raise ValueError(
            "where is a mapping of fields to conditions, e.g. {reward: {ge: 1}, task: [a, b]}, "
            f"found {given!r} (from an expression: docs/reference/renamed.md)"
        )
    return {str(k): _operators(str(k), v) for k, v in cast(Mapping[Any, Any], given).items()}


def _operators(field: str, given: Any) -> dict[str, Any]:
    operators: dict[str, Any] = {"in" if isinstance(given, list | tuple) else "eq": given}
    if isinstance(given, Mapping):
        operators = cast(dict[str, Any], given)
    for name, value in operators.items():
        if name not in _TAKES:
            hint = nearest(name.replace("te", "e"), [*_TAKES])  # gte and lte of other languages
            raise ValueError(f"{field}: there is no operator {name!r}{hint}")
        if not _is(_TAKES[name], value):
            raise ValueError(f"{field}: {name} takes {_TAKES[name]}, found {value!r}")
    if not operators or (operators.get("exists") is False and len(operators) > 1):
        raise ValueError(f"{field}: no row can meet {dict(operators)!r}")
    return operators


Where = Annotated[dict[str, dict[str, Any]], BeforeValidator(_conditions)]


class RowPlace(Strict):
    """Where a source's rows are.

    path: file, HF dataset directory or glob, or a list of them, relative to the base directory:
        `.jsonl`, `.ndjson`, `.json` (lines, or one array), each also `.gz`, `.zst`; `.parquet`.
    hub: a Hugging Face dataset id, read as a stream.
    revision: of a hub id, as a 40-digit commit.
    subset: of a hub id that has several configurations.
    split: the split of a hub id, or of an HF directory that holds several.
    where: keep only the rows that meet these conditions (`posttrain.config.source`).
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
        """The given paths and globs, always as a tuple."""
        if self.path is None:
            return ()
        return (self.path,) if isinstance(self.path, str) else self.path

    def check(self) -> None:
        self.check_place()

    def check_place(self) -> None:
        """Raises ValueError unless there is exactly one place, completely given."""
        commit = _COMMIT.fullmatch(self.revision or "")
        refuse(f"source {self.name!r}", {
            "give exactly one of path and hub": (self.path is None) == (self.hub is None),
            "path is empty": self.path is not None and not all(self.paths or ("",)),
            "revision and subset belong to a hub id": self.path and (self.revision or self.subset),
            f"a hub id needs its revision as a 40-digit commit (found {self.revision!r}): a branch "
            "or tag can move and the build could not be repeated. The commit stands at "
            f"https://huggingface.co/datasets/{self.hub}/commits/main":
                self.hub is not None and not commit,
            "a hub id needs its split, e.g. split: train": self.hub is not None and not self.split,
        })  # fmt: skip


class SourceConfig(RowPlace):
    """Where a source's rows are and how they become records.

    dialect: name it to forbid recognition by structure; rows that do not fit are dropped.
    fields: canonical name → the row's own name for it (a dotted path reaches inside objects).
    roles: the row's own role names → ours, beside the usual ones.
    license: of every row, or of those that lack `license_field`.
    license_field: the row's own field (a dotted path) with its license.
    metadata: fields of the row (dotted paths) to carry along, keyed by their last part.
    ignored_keys: columns, and keys of messages, to leave out where a row that fills one is refused.
    ending: conversations that do not end on an assistant turn are trimmed to it, or dropped.
    prefilled_think: assistant texts start inside a trace, the opening tag is not in the text.
    strict: stop at the first row that cannot be read as a record instead of dropping it.
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
