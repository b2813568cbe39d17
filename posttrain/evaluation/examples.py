"""A few records to read: of every cell some with calls nobody declared, some right, some wrong.

examples(records)  → [Record, …], the same whatever else was evaluated
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from posttrain.evaluation.cells import by_cell
from posttrain.evaluation.record import Record

EACH = 2  # of a kind and cell
_KINDS: tuple[Callable[[Record], bool], ...] = (
    lambda record: record.verdict.hallucinated,
    lambda record: not record.verdict.hallucinated and record.score.value == 1.0,
    lambda record: not record.verdict.hallucinated and record.score.value == 0.0,
)


def examples(records: Sequence[Record]) -> list[Record]:
    """Up to `EACH` of each kind from every cell, the first of each, in the order of the records."""
    chosen: set[int] = set()
    for found in by_cell(records).values():
        if len({record.prompt.source for record in found}) > 1:
            continue  # all tasks together: their own cells show theirs
        for kind in _KINDS:
            chosen |= {id(record) for record in [r for r in found if kind(r)][:EACH]}
    return [record for record in records if id(record) in chosen]
