"""Deduplication as a step of a build, and the `dropped.jsonl` lines of drops after preparation."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data_builders.dedup.columns import DedupColumns
from data_builders.dedup.duplicates import REASONS, Duplicates, find_duplicates
from data_builders.sft.prepared import PreparedSource
from posttrain.config.overlap import DeduplicationConfig

Int = npt.NDArray[np.int64]
Drops = Sequence[Mapping[str, Int]]
_MANY_COPIES = 0.1  # a source that loses a larger share may be made from a template; ours
_DETAILS = {
    "duplicate": "the same conversation as",
    "near_duplicate": "has Jaccard similarity {similarity} with",
    "duplicate_prompt": "the same prompt as",
    "held_out_duplicate": "its conversation is held out, or one with a sequence of its tokens",
    "not_sampled": "the mixture takes no more of this source",
}


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of records.

    Attributes:
        drops: per source, the numbers of the records to leave out, by reason.
        duplicates: all copies, numbered over all sources.
    """

    drops: list[dict[str, Int]]
    duplicates: Duplicates

    def warnings(self, sources: Sequence[PreparedSource]) -> list[str]:
        """Warnings about sources with so many near-duplicates that a template may be behind."""
        warnings: list[str] = []
        for source, drops in zip(sources, self.drops, strict=True):
            name = source.name
            share = len(drops.get("near_duplicate", ())) / max(len(source), 1)
            if share > _MANY_COPIES:
                warnings.append(
                    f"deduplication: {share:.0%} of the records of {name!r} are near-duplicates of "
                    "others. If they are exercises made from a template, keep them: "
                    f"`deduplication.near.per_source: {{{name}: null}}`, or a threshold such as "
                    "0.95"
                )
        return warnings


def find_copies(sources: Sequence[PreparedSource], config: DeduplicationConfig) -> Copies:
    """Look for copies among the records of all sources."""
    columns = _open_columns(sources)
    assert len(columns) == sum(map(len, sources)), "a record is written to both or none"
    duplicates = find_duplicates(columns, {s.name: len(s) for s in sources}, config)
    starts = np.cumsum([0, *map(len, sources)])
    edges = np.searchsorted(duplicates.row, starts)
    drops: list[dict[str, Int]] = []
    for start, first, stop in zip(starts, edges, edges[1:], strict=False):
        rows = duplicates.row[first:stop] - start
        reasons = duplicates.reason[first:stop]
        drops.append({REASONS[k]: rows[reasons == k] for k in np.unique(reasons).tolist()})
    return Copies(drops, duplicates)


def _open_columns(sources: Sequence[PreparedSource]) -> DedupColumns:
    """Open the columns of deduplication of all sources."""
    folders: list[Path] = []
    for source in sources:
        folders += source.folders
    return DedupColumns(folders)


def dropped_lines(
    sources: Sequence[PreparedSource], dropped: Drops, copies: Copies | None
) -> Iterator[str]:
    """Lines of `dropped.jsonl` for every record that was prepared and is left out, in order.

    Args:
        dropped: per source, the numbers of the records by reason, copies among them.
    """
    columns = _open_columns(sources)
    starts = np.cumsum([0, *map(len, sources)])
    kept_copy: dict[int, tuple[int, float]] = {}  # dropped row → row kept instead, similarity
    if copies is not None:
        duplicates = copies.duplicates
        kept_rows = zip(duplicates.kept.tolist(), duplicates.similarity.tolist(), strict=True)
        kept_copy = dict(zip(duplicates.row.tolist(), kept_rows, strict=True))

    def describe_row(row: int) -> dict[str, Any]:
        """Source, file, line and record id of a row."""
        source = sources[int(np.searchsorted(starts, row, side="right")) - 1]
        return {"source": source.name, **columns.place(row)}

    for start, drops in zip(starts.tolist(), dropped, strict=False):
        rows: list[tuple[int, str]] = []
        for reason, numbers in drops.items():
            rows += [(start + number, reason) for number in numbers.tolist()]
        for row, reason in sorted(rows):
            line = {
                "source": "",
                "reason": reason,
                "detail": _DETAILS.get(reason),
                **describe_row(row),
            }
            if row in kept_copy:
                kept_row, share = kept_copy[row]
                similarity = None if math.isnan(share) else round(share, 4)
                line["kept"] = {**describe_row(kept_row), "similarity": similarity}
                relation = _DETAILS[reason].format(similarity=similarity)
                line["detail"] = "{} {record_id} of {source}, {file}:{line}".format(
                    relation, **line["kept"]
                )
            yield json.dumps(line, ensure_ascii=True) + "\n"
