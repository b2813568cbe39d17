"""What of each evaluation file is looked for, and how: told in the manifest and by warnings.

FileCounts("gsm8k.jsonl", rows=1319, lacking=0, too_short=0, repeated=2, inside=1310, whole=4, …)

Every text of a file is one of the last five: fewer than 5 words, the same as a text before, found
inside of others, shorter than a run and so found as a whole message only, found as a whole message
only because all but a few of its words stand in templates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data_builders.decontamination.index import SHORTEST, RunIndex
from data_builders.decontamination.items import FileItems
from posttrain.config.decontamination import DecontaminationConfig, EvaluationFile
from posttrain.errors import ConfigError

Int = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FileCounts:
    """Rows and texts of one evaluation file. `lacking` rows have no text where one was named."""

    file: str
    rows: int
    lacking: int
    too_short: int
    repeated: int
    inside: int
    whole: int
    template: int

    def stats(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)


def counts_of(
    read: Sequence[tuple[EvaluationFile, FileItems]], index: RunIndex, config: DecontaminationConfig
) -> tuple[list[FileCounts], list[str]]:
    """The book of every file, and what the user should know of them.

    Args:
        read: the files in the order in which `index` was given their texts.

    Raises:
        ConfigError: a file that gives nothing to look for, or nothing that could be found in
            another text; it would let everything pass without a word.
    """
    new = np.zeros(len(index.number), np.bool_)
    new[np.unique(index.number, return_index=True)[1]] = True
    templates = (index.own < index.ngram) & (index.lengths >= index.ngram)
    counts: list[FileCounts] = []
    warnings: list[str] = []
    start = 0
    for file, found in read:
        end = start + len(found.items)
        number = index.number[start:end]
        standing = np.unique(number[number >= 0])
        hidden = int(templates[standing].sum())
        _check(found, len(standing), hidden, config)
        warnings += _warnings(file, found, len(standing), hidden, config)
        counts.append(_file_counts(found, number, new[start:end], index))
        start = end
    return counts, warnings


def _file_counts(
    found: FileItems, number: Int, new: npt.NDArray[np.bool_], index: RunIndex
) -> FileCounts:
    """`number` is the item of each text, `new` where it is the first of that item."""
    first = number[new & (number >= 0)]
    too_short = int((number < 0).sum())
    inside = int((index.own[first] >= index.ngram).sum())
    whole = int((index.lengths[first] < index.ngram).sum())
    return FileCounts(
        file=Path(found.path).name,
        rows=found.rows,
        lacking=found.lacking,
        too_short=too_short,
        repeated=len(number) - too_short - len(first),
        inside=inside,
        whole=whole,
        template=len(first) - inside - whole,
    )


def _check(found: FileItems, items: int, hidden: int, config: DecontaminationConfig) -> None:
    if not items:
        raise ConfigError(
            f"decontamination: {found.path}: no text to look for; it is empty, or all its texts "
            f"have fewer than {SHORTEST} words"
        )
    if hidden == items:
        raise ConfigError(
            f"decontamination: {found.path}: none of its {items:,} items could be found inside of "
            f"a text: {_why(config)}. Raise `common`, lower `ngram`, or name under `fields` only "
            "the texts in which items differ"
        )


def _warnings(
    file: EvaluationFile, found: FileItems, items: int, hidden: int, config: DecontaminationConfig
) -> list[str]:
    """By file name only, as they become part of the manifest."""
    name = f"decontamination: {Path(found.path).name}"
    warnings: list[str] = []
    if found.lacking:
        where = f" in {' or '.join(file.fields)}" if file.fields else ""
        warnings.append(f"{name}: {found.lacking:,} of {found.rows:,} rows have no text{where}")
    if hidden:
        warnings.append(
            f"{name}: {hidden:,} of {items:,} items are found as whole messages only: "
            f"{_why(config)}"
        )
    return warnings


def _why(config: DecontaminationConfig) -> str:
    return (
        f"each has fewer than {config.ngram} words outside of runs that more than "
        f"{config.common} items of the files have"
    )
