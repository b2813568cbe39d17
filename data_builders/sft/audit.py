"""The audit of a build: what the masks of every source's sequences teach, from their columns.

    audit = audit_sources(sources, drops, marks)
    audit.figures["maths"].stats()  →  {"sequences": 7470, "end_trained": 7470, …}

All records count that the mixture and evaluation may draw from, each once. Flags and keys were
computed as the sequences were made; tokens are read only of the few that are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from data_builders.keyed import is_among
from data_builders.sft.prepared import PreparedPart, PreparedSource, Reader
from posttrain.audit.figures import Audit, SourceFigures
from posttrain.audit.limits import violations
from posttrain.audit.worst import SHOWN, excerpt
from posttrain.config.supervision import SupervisionLimits
from posttrain.errors import DataError
from posttrain.tokens.repeats import Repeated, Repeats
from posttrain.tokens.supervision import Ids, Marks, Mask, mask_of_spans

Int = npt.NDArray[np.int64]
Drops = Mapping[str, Int]


def audit_sources(
    sources: Sequence[PreparedSource], drops: Sequence[Drops] | None, marks: Marks
) -> Audit:
    """Audit what was prepared of all sources.

    Args:
        drops: per source, by reason, the numbers of records that the plan does not use.
        marks: by which the sequences were read.
    """
    audit = Audit()
    unused = [_numbers(own) for own in drops or [{} for _ in sources]]
    repeats = Repeats()
    for k, source in enumerate(sources):
        figures = audit.figures[source.name] = SourceFigures.empty(marks, knows_cuts=True)
        with Reader(source.folders) as reader:
            for part, records, at in _used(source, unused[k]):
                rows = part.sequences[at]
                length, trained = rows["length"].astype(np.int64), rows["trained"]
                figures.add(length, trained.astype(np.int64), rows["flags"])
                repeats.add(rows["key"], np.full(len(rows), k))
                fetch = _Fetch(reader, part, records, at)
                audit.worst.offer(source.name, length, trained, rows["flags"], rows["key"], fetch)
    repeated = repeats.count(groups=len(sources), most=SHOWN)
    for figures, later in zip(audit.figures.values(), repeated.later, strict=True):
        figures.duplicated = later
    _show_repeated(audit, sources, unused, repeated)
    return audit


def check_supervision(
    figures: Mapping[str, Mapping[str, int | None]], limits: SupervisionLimits
) -> None:
    """Stop a build whose masks cross a limit.

    Raises:
        DataError: every limit that is crossed, with source, figure and what to do.
    """
    crossed = [line for name, own in figures.items() for line in violations(name, own, limits)]
    if crossed:
        raise DataError("\n  ".join(["the data crosses limits of the recipe:", *crossed]))


def _numbers(drops: Drops) -> Int:
    return np.unique(np.concatenate([np.empty(0, np.int64), *drops.values()]))


def _used(source: PreparedSource, unused: Int) -> Iterator[tuple[PreparedPart, Int, Int]]:
    """PreparedParts, and of each used sequence the place of its record and its own in the part."""
    for part in source.parts():
        owners = part.owners
        at = np.flatnonzero(~is_among(part.numbers, unused)[owners])
        yield part, owners[at], at


class _Fetch:
    """Tokens, mask and name of a used sequence of a part, by its place among them."""

    def __init__(self, reader: Reader, part: PreparedPart, records: Int, at: Int) -> None:
        self._reader, self._part, self._records, self._at = reader, part, records, at

    def __call__(self, place: int) -> tuple[Ids, Mask, str]:
        row = self._part.sequences[self._at[place]]
        record = self._part.records[self._records[place]]
        ids = np.empty(int(row["length"]), np.int32)
        edges = np.empty(int(row["edges"]), np.int32)
        self._reader.tokens(self._part.number, int(row["at"]), ids, edges)
        text = self._reader.text(self._part.number, int(record["text"]), int(record["text_size"]))
        mask = mask_of_spans(len(ids), edges.astype(np.int64))
        return ids, mask, f"{text[0]} turn {row['turn']}"


def _show_repeated(
    audit: Audit, sources: Sequence[PreparedSource], unused: Sequence[Int], repeated: Repeated
) -> None:
    """Look the most repeated sequences up again by their places."""
    start = 0
    for k, (source, most) in enumerate(zip(sources, repeated.most, strict=True)):
        wanted = [place for _, place in most]
        shown = dict[int, tuple[Ids, Mask, str]]()
        with Reader(source.folders) as reader:
            for part, records, at in _used(source, unused[k]):
                for place in wanted:
                    if start <= place < start + len(at):
                        shown[place] = _Fetch(reader, part, records, at)(place - start)
                start += len(at)
        for number, place in most:
            audit.worst.add_repeated(source.name, number, excerpt(*shown[place]))
