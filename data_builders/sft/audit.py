"""What the masks of every source's sequences teach, from the columns that preparation wrote. All
records count that the mixture and evaluation may draw from, each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from data_builders.keyed import is_among
from data_builders.sft.prepared import PreparedPart, PreparedSource, Reader
from posttrain.audit.figures import Audit, Shown, SourceFigures
from posttrain.tokens.supervision import Marks, mask_of_spans

Int = npt.NDArray[np.int64]


def audit_sources(
    sources: Sequence[PreparedSource], drops: Sequence[Mapping[str, Int]] | None, marks: Marks
) -> Audit:
    """Audit all sources but for the records that `drops` has, per source by reason."""
    audit = Audit({s.name: SourceFigures.empty(marks, knows_cuts=True) for s in sources})
    by_source = drops or [{} for _ in sources]
    unused = [np.unique(np.concatenate([np.empty(0, np.int64), *o.values()])) for o in by_source]
    for k, source in enumerate(sources):
        with Reader(source.folders) as reader:
            for part, at in _used(source, unused[k]):
                fetch = partial(_fetch, reader, part, at)
                audit.add(part.sequences[at], np.full(len(at), k), fetch)

    def look_up(places: set[int]) -> dict[int, Shown]:
        shown = dict[int, Shown]()
        start = 0
        for source, own in zip(sources, unused, strict=True):
            with Reader(source.folders) as reader:
                for part, at in _used(source, own) if places else ():
                    inside = range(start, start + len(at))
                    shown |= {p: _fetch(reader, part, at, p - start) for p in places if p in inside}
                    start = inside.stop
        return shown

    audit.count_copies(look_up)
    return audit


def _used(source: PreparedSource, unused: Int) -> Iterator[tuple[PreparedPart, Int]]:
    """Parts, and the places in them of the sequences of used records."""
    for part in source.parts():
        yield part, np.flatnonzero(~is_among(part.numbers, unused)[part.owners])


def _fetch(reader: Reader, part: PreparedPart, at: Int, place: int) -> Shown:
    """Tokens, mask and name of a used sequence of a part, by its place among them."""
    row = part.sequences[at[place]]
    record = part.records[row["record"]]
    ids = np.empty(int(row["length"]), np.int32)
    edges = np.empty(int(row["edges"]), np.int32)
    reader.tokens(part.number, int(row["at"]), ids, edges)
    text = reader.text(part.number, int(record["text"]), int(record["text_size"]))
    return ids, mask_of_spans(len(ids), edges.astype(np.int64)), f"{text[0]} turn {row['turn']}"
