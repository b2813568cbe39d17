"""Rows of a pre-tokenised table → sequences with their masks, as the installed TRL would see them.

    {"input_ids": [1, 7, 2, 1, 9], "labels": [-100, 7, 2, -100, 9], "seq_lengths": [3, 2]}
    →  [([1, 7, 2], [F, T, T]), ([1, 9], [F, T])]

The loss is where `labels` is not -100; without labels, where `completion_mask` and
`assistant_masks` are 1, as far as they are there; without any, everywhere. `seq_lengths`, or
`position_ids` that start again at 0, say where sequences begin in a pack; padding that
`attention_mask` names is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from posttrain.errors import DataError
from posttrain.tokens.encode import IGNORED
from posttrain.tokens.supervision import Ids, Mask

MASKS = ("completion_mask", "assistant_masks")
COLUMNS = ("input_ids", "labels", *MASKS, "attention_mask", "seq_lengths", "position_ids", "source")
Int = npt.NDArray[np.int64]
Row = Callable[[int], Int | None]


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why a row cannot be looked at."""

    reason: str


def rows_of(batch: pa.RecordBatch, name: str) -> list[list[tuple[Ids, Mask]] | Unusable]:
    """Every row's sequences, or why it has none.

    Raises:
        DataError: the table has no `input_ids`, or a column of another type.
    """
    if "input_ids" not in batch.schema.names:
        raise DataError(
            f"{name} has no column input_ids, found {', '.join(batch.schema.names)}; "
            "an audit reads data that is tokenised already"
        )
    columns = {c: _lists(batch, c, name) for c in COLUMNS[:-1] if c in batch.schema.names}
    return [_row({c: get(k) for c, get in columns.items()}) for k in range(batch.num_rows)]


def _lists(batch: pa.RecordBatch, column: str, name: str) -> Row:
    """Access to the lists of a column by row; None where the row has none."""
    cells = batch.column(column)
    if pa.types.is_fixed_size_list(cells.type):
        cells = cells.cast(pa.list_(cells.type.value_type))
    if not (pa.types.is_list(cells.type) or pa.types.is_large_list(cells.type)):
        raise DataError(f"{name}: column {column} is {cells.type}, a list of integers is expected")
    kind = cells.type.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise DataError(f"{name}: column {column} holds {kind}, integers are expected")
    inner, offsets = cells.values, cells.offsets.to_numpy()
    there = cells.is_valid().to_numpy(zero_copy_only=False)
    holes = inner.null_count > 0

    def get(row: int) -> Int | None:
        cut = inner.slice(offsets[row], offsets[row + 1] - offsets[row])
        if not there[row] or (holes and cut.null_count):
            return None
        return cut.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)

    return get


def _row(cells: dict[str, Int | None]) -> list[tuple[Ids, Mask]] | Unusable:
    ids = cells["input_ids"]
    if ids is None:
        return Unusable("null_ids")
    same = ("labels", *MASKS, "attention_mask", "position_ids")
    for column in same:
        if column in cells:
            other = cells[column]
            if other is None or len(other) != len(ids):
                return Unusable(f"length_of_{column}")
    if len(ids) and not -1 < ids.min() <= ids.max() < 2**31:
        return Unusable("impossible_ids")
    labels = cells.get("labels")
    trained = _trained(cells, len(ids))
    if labels is not None and (labels[trained] != ids[trained]).any():
        return Unusable("labels_differ_from_ids")
    starts = _starts(cells, len(ids))
    if starts is None:
        return Unusable("seq_lengths_do_not_add_up")
    keep = cells.get("attention_mask")
    found: list[tuple[Ids, Mask]] = []
    for a, b in pairwise([*starts, len(ids)]):
        own, mask = ids[a:b].astype(np.int32), trained[a:b]
        if keep is not None and not keep[a:b].all():
            # a trained pad stays, so that it is seen
            real = (keep[a:b] != 0) | mask
            own, mask = own[real], mask[real]
        if len(own):
            found.append((own, mask))
    return found


def _trained(cells: dict[str, Int | None], length: int) -> Mask:
    labels = cells.get("labels")
    if labels is not None:
        return labels != IGNORED
    trained = np.ones(length, np.bool_)
    for column in MASKS:
        mask = cells.get(column)
        if mask is not None:
            trained &= mask != 0
    return trained


def _starts(cells: dict[str, Int | None], length: int) -> list[int] | None:
    """Where the sequences of a row begin; None if `seq_lengths` does not say so."""
    if "seq_lengths" in cells:
        lengths = cells["seq_lengths"]
        if lengths is None or (lengths < 0).any() or lengths.sum() != length:
            return None
        return (np.cumsum(lengths) - lengths)[lengths > 0].tolist()
    positions = cells.get("position_ids")
    if positions is not None and length:
        starts = np.flatnonzero(positions == 0)
        # padding positions may count on from 0 or stay 0; a pack's first token starts a sequence
        return np.union1d([0], starts).tolist()
    return [0] if length else []
