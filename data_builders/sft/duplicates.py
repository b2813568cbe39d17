"""Deduplication as a step of a build, and the `dropped.jsonl` of drops after preparation."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from data_builders.dedup.columns import DedupColumns
from data_builders.dedup.duplicates import REASONS, Duplicates, find_duplicates
from data_builders.sft.prepared import PreparedSource
from posttrain.config.overlap import DeduplicationConfig

Int = npt.NDArray[np.int64]
Drops = Sequence[Mapping[str, Int]]
_MANY = 0.1  # share of a source's records from which on it may be made from a template
_DETAILS = {
    "duplicate": "the same conversation as",
    "near_duplicate": "has Jaccard similarity {similarity} with",
    "duplicate_prompt": "the same prompt as",
    "held_out_duplicate": "its conversation is held out, or one with a sequence of its tokens",
    "not_sampled": "the mixture takes no more of this source",
}


@dataclass(frozen=True, slots=True)
class Copies:
    """Per source, by reason, its records to leave out; all `duplicates`, numbered over sources."""

    drops: list[dict[str, Int]]
    duplicates: Duplicates

    def warnings(self, sources: Sequence[PreparedSource]) -> list[str]:
        """Sources that lose so many near-duplicates that they may be made from a template."""
        shares = [
            (source.name, len(own.get("near_duplicate", ())) / max(len(source), 1))
            for source, own in zip(sources, self.drops, strict=True)
        ]
        return [
            f"deduplication: {share:.0%} of the records of {name!r} are near-duplicates of others. "
            "If they are exercises made from a template, keep them: "
            f"`deduplication.near.per_source: {{{name}: null}}`, or a threshold such as 0.95"
            for name, share in shares
            if share > _MANY
        ]


def find_copies(sources: Sequence[PreparedSource], config: DeduplicationConfig) -> Copies:
    """Look for copies among the records of all sources."""
    columns = DedupColumns([folder for source in sources for folder in source.folders])
    assert len(columns) == sum(map(len, sources)), "a record is written to both or none"
    duplicates = find_duplicates(columns, {s.name: len(s) for s in sources}, config)
    starts = np.cumsum([0, *map(len, sources)])
    edges = np.searchsorted(duplicates.row, starts)
    drops: list[dict[str, Int]] = []
    for start, a, b in zip(starts, edges, edges[1:], strict=False):
        rows, reasons = duplicates.row[a:b] - start, duplicates.reason[a:b]
        drops.append({REASONS[k]: rows[reasons == k] for k in np.unique(reasons).tolist()})
    return Copies(drops, duplicates)


def dropped_lines(
    sources: Sequence[PreparedSource], dropped: Drops, copies: Copies | None
) -> Iterator[str]:
    """A line of `dropped.jsonl` for every record that was prepared and is left out, in order;
    `dropped` has their numbers per source by reason, copies among them.
    """
    columns = DedupColumns([folder for source in sources for folder in source.folders])
    starts = np.cumsum([0, *map(len, sources)])
    kept: dict[int, tuple[int, float]] = {}
    if copies is not None:
        c = copies.duplicates
        pairs = zip(c.kept.tolist(), c.similarity.tolist(), strict=True)
        kept = dict(zip(c.row.tolist(), pairs, strict=True))

    def place(row: int) -> dict[str, Any]:
        source = sources[int(np.searchsorted(starts, row, side="right")) - 1]
        return {"source": source.name, **columns.place(row)}

    for start, reasons in zip(starts.tolist(), dropped, strict=False):
        rows = sorted((start + k, name) for name, own in reasons.items() for k in own.tolist())
        for row, reason in rows:
            line = {"source": "", "reason": reason, "detail": _DETAILS.get(reason), **place(row)}
            if row in kept:
                other, share = kept[row]
                similarity = None if math.isnan(share) else round(share, 4)
                line["kept"] = {**place(other), "similarity": similarity}
                what = _DETAILS[reason].format(similarity=similarity)
                line["detail"] = "{} {record_id} of {source}, {file}:{line}".format(
                    what, **line["kept"]
                )
            yield json.dumps(line, ensure_ascii=True) + "\n"
