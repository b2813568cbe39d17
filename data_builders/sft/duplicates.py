"""Deduplication as a step of a build: between the sources and the plan, over all records at once.

    found = find_copies(sources, recipe.deduplication, scratch)
    found.drops             →  [{}, {"duplicate": array([17, 204])}]   per source, to `plan_build`
    found.lines(sources)     →  lines of `dropped.jsonl`, each with the record that was kept

It comes before anything is held out, so neither split has a copy of what is in the other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data_builders.dedup.columns import DedupColumns
from data_builders.dedup.duplicates import (
    REASONS,
    Duplicates,
    Order,
    find_duplicates,
    order_of,
)
from data_builders.sft.prepared import RECORD, PreparedSource, Reader
from posttrain.config.deduplication import DeduplicationConfig

Int = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Copies:
    """What was found. `drops`: per source, by reason, the numbers of its records to leave out."""

    order: Order
    found: Duplicates
    drops: list[dict[str, Int]]

    def lines(self, sources: Sequence[PreparedSource]) -> Iterator[str]:
        """A line of `dropped.jsonl` for every record that is left out, in order.

        Args:
            sources: whose parts were prepared with `write_dropped`.
        """
        found = self.found
        similarity = [None if math.isnan(s) else round(s, 4) for s in found.similarity.tolist()]
        names = _Names(self.order, sources)
        columns = found.row.tolist(), found.reason.tolist(), found.kept.tolist(), similarity
        try:
            for row, reason, kept, share in zip(*columns, strict=True):
                own, other, name = names.of(row), names.of(kept), REASONS[reason]
                line = {
                    "source": own["source"],
                    "reason": name,
                    "detail": _detail(name, other, share),
                    **own,
                    "kept": {**other, "similarity": share},
                }
                yield json.dumps(line, ensure_ascii=True) + "\n"
        finally:
            names.close()


def find_copies(
    sources: Sequence[PreparedSource], config: DeduplicationConfig, scratch: Path
) -> Copies:
    """Look for copies among the records of all sources.

    Args:
        scratch: a folder for the index of near-duplicates; it is removed again.
    """
    columns = [DedupColumns(source.folders) for source in sources]
    assert [len(s) for s in columns] == [len(s) for s in sources], (
        "a record is written to both or none"
    )
    order = order_of(columns, [source.name for source in sources], config)
    found = find_duplicates(order, config, scratch)
    source = order.source(found.row)
    drops = [
        {
            name: found.row[own & (found.reason == number)] - order.starts[k]
            for number, name in enumerate(REASONS)
            if (own & (found.reason == number)).any()
        }
        for k, own in enumerate(source == k for k in range(len(sources)))
    ]
    return Copies(order, found, drops)


def _detail(reason: str, kept: dict[str, Any], similarity: float | None) -> str:
    what = {
        "duplicate": "says the same as",
        "duplicate_prompt": "asks the same as",
        "near_duplicate": f"has {similarity or 0:.1%} of its characters in common with",
    }[reason]
    return f"{what} {kept['record_id']} of {kept['source']}, {kept['file']}:{kept['line']}"


class _Names:
    """How records are called, by their number over all sources."""

    def __init__(self, order: Order, sources: Sequence[PreparedSource]) -> None:
        self._order, self._sources = order, sources
        self._readers = [Reader(source.folders) for source in sources]
        self._starts = [source.record_starts() for source in sources]

    def of(self, row: int) -> dict[str, Any]:
        """Source, file, line and id of a record."""
        k = int(self._order.source(np.array([row]))[0])
        at = row - int(self._order.starts[k])
        place = self._order.columns[k].place(at)
        assert place is not None, "write_dropped keeps places"
        part = np.searchsorted(self._starts[k], [at], side="right") - 1
        found = self._readers[k].rows(part, at - self._starts[k][part], "records.bin", RECORD)[0]
        text = self._readers[k].text(int(part[0]), int(found["text"]), int(found["text_size"]))
        return {
            "source": self._sources[k].name,
            "file": place[0],
            "line": place[1],
            "record_id": text[0],
        }

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
