"""The packed shards of an `sft_data` artifact as memory-mapped datasets, one row a pack.

Each ends with one *filler* row: a pack with nothing trained. An epoch whose packs do not divide by
the global batch is topped up with it, so that no pack is dropped or counted twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, concatenate_datasets

from posttrain.errors import DataError
from posttrain.tokens.encode import IGNORED
from posttrain.tokens.tokenizer import SpecialTokens
from posttrain.training.document_masking import sequences
from posttrain.training.plan import Line

COLUMNS = ("input_ids", "labels", "seq_lengths")
SAMPLED_PACKS = 512
END_TRAINED = 0.5


def load_split(artifact: Path, split: str, *, pad_id: int) -> Dataset | None:
    """All shards of a split, `train` or `eval`, and the filler row; None where there is none.

    Raises:
        DataError: a shard lacks one of the columns.
    """
    shards = sorted((artifact / "packed").glob(f"{split}-*.arrow"))
    parts = [Dataset.from_file(str(shard)) for shard in shards]
    parts = [part for part in parts if len(part)]
    if not parts:
        return None
    for shard, part in zip(shards, parts, strict=False):
        missing = [name for name in COLUMNS if name not in part.column_names]
        if missing:
            raise DataError(f"{shard} has no column {missing[0]!r}, found {part.column_names}")
    return concatenate_datasets([*parts, _filler(parts[0], pad_id)])


def _filler(like: Dataset, pad_id: int) -> Dataset:
    row: dict[str, Any] = {
        "input_ids": [pad_id, pad_id],
        "labels": [IGNORED, IGNORED],
        "seq_lengths": [2],
    }
    row |= {name: None for name in like.column_names if name not in row}
    return Dataset.from_dict({key: [value] for key, value in row.items()}, features=like.features)


def split_by_group(packs: Dataset) -> dict[str, Dataset]:
    """The eval split as one dataset a group (`<source>/<on|off>`), each with its filler row."""
    groups = packs["group"][: len(packs) - 1]
    rows: dict[str, list[int]] = {}
    for row, group in enumerate(groups):
        rows.setdefault(group, []).append(row)
    filler = len(packs) - 1
    return {group: packs.select([*rows[group], filler]) for group in sorted(rows)}


def read_index(artifact: Path, split: str, *columns: str) -> pa.Table:
    """Columns of a split's `index/<split>-*.parquet`, one row a sequence: no pack is opened."""
    shards = sorted((artifact / "index").glob(f"{split}-*.parquet"))
    empty = pa.table({name: pa.array([], pa.int64()) for name in columns})
    tables = [pq.read_table(shard, columns=list(columns)) for shard in shards]
    return pa.concat_tables(tables) if tables else empty


def split_size(artifact: Path, split: str) -> tuple[int, int, int, int]:
    """Packs, sequences, tokens and trained tokens of a split."""
    table = read_index(artifact, split, "pack", "length", "trained")
    columns = [table[name].to_numpy() for name in table.column_names]
    packs, tokens, trained = columns[0].max(initial=-1) + 1, columns[1].sum(), columns[2].sum()
    return int(packs), len(table), int(tokens), int(trained)


def index_sums(artifact: Path, split: str, column: str) -> dict[str, tuple[int, int, int]]:
    """Sequences, tokens and trained tokens of a split for each value of an index column."""
    table = read_index(artifact, split, column, "length", "trained").group_by(column)
    sums = table.aggregate([("length", "count"), ("length", "sum"), ("trained", "sum")])
    names = (column, "length_count", "length_sum", "trained_sum")
    rows = zip(*(sums[name].to_pylist() for name in names), strict=True)
    return dict(sorted((str(value), (n, tokens, trained)) for value, n, tokens, trained in rows))


def sampled_rows(packs: int) -> list[int]:
    """Evenly spaced rows, few enough to be looked at one by one."""
    taken = min(packs, SAMPLED_PACKS)
    return sorted({i * packs // taken for i in range(taken)})


def check_data(
    packs: Dataset, special: SpecialTokens, *, rows: int, positions: int
) -> tuple[list[Line], float]:
    """Look into evenly spaced packs for what this model cannot train on.

    Args:
        packs: with the filler as their last row.
        rows: rows of the model's embedding.
        positions: the longest sequence the model has positions for.

    Returns:
        Lines of the plan, and the share of sequences whose end token is trained.

    Raises:
        DataError: ids outside the embedding, sequences too long or with nothing trained, a trained
            pad, or an end token that is not trained.
    """
    total = len(packs) - 1
    taken = sampled_rows(total)
    seen = ended = untrained = longest = 0
    smallest, largest, pad_trained = 1 << 60, -1, False
    for pack in packs.select(taken):
        for ids, labels in sequences(dict(pack)):
            seen += 1
            ended += special.end_id in labels
            untrained += all(label == IGNORED for label in labels[1:])
            pad_trained |= special.pad_id in labels
            smallest, largest = min(smallest, *ids), max(largest, *ids)
            longest = max(longest, len(ids))
    end_trained = ended / seen
    if smallest < 0 or largest >= rows:
        raise DataError(
            f"ids {smallest}…{largest} in the shards, the model's embedding has rows 0…{rows - 1}: "
            "they were made with another tokenizer"
        )
    if longest > positions:
        raise DataError(f"a sequence has {longest} tokens, the model has positions for {positions}")
    if untrained:
        raise DataError(
            f"{untrained} of {seen} sequences have nothing trained; build_sft drops such "
            "sequences, so these shards come from elsewhere"
        )
    if pad_trained:
        raise DataError(f"the pad token {special.pad_token!r} is trained in the shards")
    if end_trained < END_TRAINED:
        raise DataError(
            f"{special.end_token!r} is trained in {end_trained:.1%} of the sequences: the model "
            "would not learn to stop. Set end_token: to the token that closes a turn, or build the "
            "data with its end tokens trained"
        )
    looked = (
        f"{len(taken):,} of {total:,} packs looked at: ids {smallest}…{largest} of {rows:,} rows"
    )
    lines = [
        ("tokens", f"{looked}; pad {special.pad_token} ≠ end {special.end_token}"),
        ("end token", f"{special.end_token} is trained in {end_trained:.1%} of {seen:,} sequences"),
    ]
    return lines, end_trained


def first_tokens(packs: Sequence[dict[str, Any]], tokens: int) -> list[dict[str, Any]]:
    """The beginning of some packs, `tokens` tokens in all; the last sequence may be cut."""
    cut: list[dict[str, Any]] = []
    for pack in packs:
        kept = min(tokens, len(pack["input_ids"]))
        lengths: list[int] = []
        for length in pack["seq_lengths"]:
            if sum(lengths) < kept:
                lengths.append(min(length, kept - sum(lengths)))
        if kept:
            columns = {name: pack[name][:kept] for name in ("input_ids", "labels")}
            cut.append({**columns, "seq_lengths": lengths})
        tokens -= kept
    return cut
