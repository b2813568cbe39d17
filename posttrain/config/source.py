"""One source of rows in a data recipe: where its rows are, how to read them, which to drop.

    sources:
      - name: airline
        path: ../shared/data/tau_bench_airline.jsonl
        license: MIT
        where: {reward: 1}
        metadata: [task_id, trial]
        filters: {tool_markup: false}

How much of a source a mixture takes is not said here.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from posttrain.config.base import Strict
from posttrain.config.filters import Filters
from posttrain.config.where import Where
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
    keys = [path.rpartition(".")[2] for path in fields]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice or not all(keys):
        raise ValueError(
            f"{twice or 'an empty field'}: each field is carried under the last part of its path, "
            "once"
        )
    return fields


Metadata = Annotated[tuple[str, ...], AfterValidator(_distinct)]


class RowPlace(Strict):
    """Where a source's rows are.

    Args:
        path: file, HF dataset directory or glob, or a list of them, relative to the base directory:
            `.jsonl`, `.ndjson` (one object a line), `.json` (the same, or one array of objects),
            each also `.gz` or `.zst`; `.parquet`.
        hub: a Hugging Face dataset id, read as a stream.
        revision: of a hub id, as a 40-digit commit.
        subset: of a hub id that has several configurations.
        split: the split of a hub id, or of an HF directory that holds several.
    """

    name: str = Field(min_length=1)
    path: str | tuple[str, ...] | None = None
    hub: str | None = None
    revision: str | None = None
    subset: str | None = None
    split: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The given paths and globs, always as a tuple."""
        if self.path is None:
            return ()
        return (self.path,) if isinstance(self.path, str) else self.path

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        self.check_place()
        return self

    def check_place(self) -> None:
        """Raises ValueError unless there is exactly one place, completely given."""
        if (self.path is None) == (self.hub is None):
            raise ValueError(f"source {self.name!r}: give exactly one of path and hub")
        if self.path is not None and not all(self.paths or ("",)):
            raise ValueError(f"source {self.name!r}: path is empty")
        if self.path is not None and (self.revision or self.subset):
            raise ValueError(f"source {self.name!r}: revision and subset belong to a hub id")
        if self.hub is not None and not _COMMIT.fullmatch(self.revision or ""):
            found = f"found {self.revision!r}" if self.revision else "none is given"
            raise ValueError(
                f"source {self.name!r}: a hub id needs its revision as a 40-digit commit "
                f"({found}): a branch or tag can move and the build could not be repeated. "
                f"The commit stands at https://huggingface.co/datasets/{self.hub}/commits/main"
            )
        if self.hub is not None and self.split is None:
            raise ValueError(f"source {self.name!r}: a hub id needs its split, e.g. split: train")


class SourceConfig(RowPlace):
    """Where a source's rows are and how they become records.

    Args:
        dialect: name it to forbid recognition by structure; rows that do not fit are dropped.
        fields: canonical name → the row's own name for it (a dotted path reaches inside objects).
        roles: the row's own role names → ours, beside the usual ones.
        where: keep only the rows that meet these conditions (`posttrain.config.where`).
        license: of every row, or of those that lack `license_field`.
        license_field: the row's own field (a dotted path) with its license.
        metadata: fields of the row (dotted paths) to carry along, keyed by their last part.
        ending: conversations that do not end on an assistant turn are trimmed to it, or dropped.
        prefilled_think: assistant texts start inside a trace, the opening tag is not in the text.
        strict: stop at the first row that cannot be read as a record instead of dropping it.
        filters: structural checks and filters of the text (`posttrain.config.filters`).
    """

    dialect: DialectName | None = None
    fields: dict[FieldName, str] = Field(default_factory=dict[FieldName, str])
    roles: dict[str, Role] = Field(default_factory=dict[str, Role])
    where: Where | None = None
    license: str = "unknown"
    license_field: str | None = None
    metadata: Metadata = ()
    ending: EndingPolicy = "trim"
    prefilled_think: bool = False
    strict: bool = False
    filters: Filters = Filters()
