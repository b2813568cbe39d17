"""Accuracy by the length of a question's documents and by the position of what it needs.

Tasks of `posttrain synthesize` with `kind: long_documents` say in `metadata.length` how many tokens
their documents may have, and in `metadata.positions` which share of them stands before each needed
document. A question counts once in each part of the documents that holds one that it needs. Rows of
other origin may use these names for something else: of them, those are read that say the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict
from typing import Any, cast

from posttrain.evaluation.intervals import Values, rate
from posttrain.evaluation.metrics import ALL
from posttrain.evaluation.run import Record
from posttrain.rollouts import metadata_of

Row = dict[str, Any]
PARTS = 5  # of the documents; of more, few of 20 questions would need a document in each


def long_context_rows(records: Sequence[Record]) -> list[Row]:
    """A row for each checkpoint, setting, mode and length, by rising length.

    Returns:
        `families` (with "all", where there are several) and `parts`, the documents' parts from
        their beginning: rates of right answers with their intervals, None for a part that no
        question needs.
    """
    cells: dict[tuple[str, str, str, int], list[tuple[Record, Row]]] = {}
    for record in records:
        metadata = metadata_of(record.prompt)
        if record.score.value is None or not _names_places(metadata):
            continue
        mode = "on" if record.prompt.thinking else "off"
        key = (record.checkpoint, record.prompt.setting, mode, metadata["length"])
        cells.setdefault(key, []).append((record, metadata))
    rows: list[Row] = []
    for key in sorted(cells, key=lambda key: key[-1]):
        families: dict[str, list[tuple[float, Hashable]]] = {}
        parts: list[list[tuple[float, Hashable]]] = [[] for _ in range(PARTS)]
        for record, metadata in cells[key]:
            prompt = record.prompt
            assert record.score.value is not None, "left out above"
            value = (record.score.value, (prompt.source, prompt.task))
            for family in dict.fromkeys((ALL, metadata["family"])):
                families.setdefault(family, []).append(value)
            # at a position of 1 a text ends, which is in the last part
            for part in {min(int(PARTS * p), PARTS - 1) for p in metadata["positions"]}:
                parts[part].append(value)
        names = {metadata["family"] for _, metadata in cells[key]}
        if len(names) == 1 and ALL not in names:  # of one family, which is all
            del families[ALL]
        checkpoint, setting, thinking, length = key
        rows.append(
            {
                "checkpoint": checkpoint,
                "setting": setting,
                "thinking": thinking,
                "length": length,
                "families": {family: _rate_row(values) for family, values in families.items()},
                "parts": [_rate_row(values) for values in parts],
            }
        )
    return rows


def _names_places(metadata: Row) -> bool:
    """True if a row names its family, a length in tokens, and positions in [0, 1]."""
    family = metadata.get("family")
    length = metadata.get("length")
    positions = metadata.get("positions")
    # `type`, since True is an int
    if not (isinstance(family, str) and family and type(length) is int and length > 0):
        return False
    if not isinstance(positions, list) or not positions:
        return False
    return all(type(p) in (int, float) and 0 <= p <= 1 for p in cast(list[Any], positions))


def _rate_row(values: Values) -> Row | None:
    estimate = rate(values)
    return None if estimate is None else asdict(estimate)
