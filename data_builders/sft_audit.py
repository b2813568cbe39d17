"""The audit of a build: what the masks of every source's sequences teach, from the spool's columns.

    audit = audit_spools(spools, drops, marks, scratch=work)
    audit.figures["maths"].stats()  →  {"sequences": 7470, "end_trained": 7470, …}

All records count that the mixture and evaluation may draw from, each once. Flags and keys were
computed as the sequences were made; tokens are read only of the few that are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data_builders.held_out import is_among
from data_builders.sft_spool import Block, Reader, Spool
from posttrain.audit.figures import Audit, SourceFigures
from posttrain.audit.limits import violations
from posttrain.audit.worst import SHOWN, excerpt
from posttrain.config.supervision import SupervisionLimits
from posttrain.errors import DataError
from posttrain.tokens.repeats import Repeated, Repeats
from posttrain.tokens.supervision import Ids, Marks, Mask, mask_of_spans

Int = npt.NDArray[np.int64]
Drops = Mapping[str, Int]


def audit_spools(
    spools: Sequence[Spool], drops: Sequence[Drops] | None, marks: Marks, *, scratch: Path
) -> Audit:
    """Audit what was prepared of all sources.

    Args:
        drops: per source, by reason, the numbers of records that the plan does not use.
        marks: by which the sequences were read.
        scratch: a folder for the keys of all sequences, 20 bytes each, while copies are looked for.
    """
    audit = Audit()
    unused = [_numbers(own) for own in drops or [{} for _ in spools]]
    scratch.mkdir(parents=True, exist_ok=True)
    with Repeats(scratch) as repeats:
        for k, spool in enumerate(spools):
            figures = audit.figures[spool.name] = SourceFigures.empty(marks, knows_cuts=True)
            with Reader(spool.folders) as reader:
                for block, records, at in _used(spool, unused[k]):
                    rows = block.sequences[at]
                    length, trained = rows["length"].astype(np.int64), rows["trained"]
                    figures.add(length, trained.astype(np.int64), rows["flags"])
                    repeats.add(rows["key"], np.full(len(rows), k))
                    fetch = _Fetch(reader, block, records, at)
                    audit.worst.offer(
                        spool.name, length, trained, rows["flags"], rows["key"], fetch
                    )
        repeated = repeats.found(groups=len(spools), most=SHOWN)
    for figures, later in zip(audit.figures.values(), repeated.later, strict=True):
        figures.duplicated = later
    _show_repeated(audit, spools, unused, repeated)
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


def _used(spool: Spool, unused: Int) -> Iterator[tuple[Block, Int, Int]]:
    """Blocks, and of each used sequence the place of its record and its own in the block."""
    for block in spool.blocks():
        numbers = np.arange(block.row, block.row + len(block.records))
        counts = block.records["sequences"].astype(np.int64)
        records = np.repeat(np.arange(len(counts)), counts)
        at = np.flatnonzero(~is_among(numbers, unused)[records])
        yield block, records[at], at


class _Fetch:
    """Tokens, mask and name of a used sequence of a block, by its place among them."""

    def __init__(self, reader: Reader, block: Block, records: Int, at: Int) -> None:
        self._reader, self._block, self._records, self._at = reader, block, records, at

    def __call__(self, place: int) -> tuple[Ids, Mask, str]:
        row = self._block.sequences[self._at[place]]
        record = self._block.records[self._records[place]]
        ids = np.empty(int(row["length"]), np.int32)
        edges = np.empty(int(row["edges"]), np.int32)
        self._reader.tokens(self._block.part, int(row["at"]), ids, edges)
        text = self._reader.text(self._block.part, int(record["text"]), int(record["text_size"]))
        mask = mask_of_spans(len(ids), edges.astype(np.int64))
        return ids, mask, f"{text[0]} turn {row['turn']}"


def _show_repeated(
    audit: Audit, spools: Sequence[Spool], unused: Sequence[Int], repeated: Repeated
) -> None:
    """Look the most repeated sequences up again by their places."""
    start = 0
    for k, (spool, most) in enumerate(zip(spools, repeated.most, strict=True)):
        wanted = [place for _, place in most]
        shown = dict[int, tuple[Ids, Mask, str]]()
        with Reader(spool.folders) as reader:
            for block, records, at in _used(spool, unused[k]):
                for place in wanted:
                    if start <= place < start + len(at):
                        shown[place] = _Fetch(reader, block, records, at)(place - start)
                start += len(at)
        for number, place in most:
            audit.worst.add_repeated(spool.name, number, excerpt(*shown[place]))
