"""The packed shards of an `sft_data` artifact as memory-mapped datasets, one row a pack.

    {"input_ids": [1, 7, 2, 1, 9, 2], "labels": [-100, 7, 2, -100, 9, 2], "seq_lengths": [3, 3]}

Each dataset ends with one *filler* row: a pack with nothing trained. An epoch whose packs do not
divide by the global batch is topped up with it, so that no pack is dropped or counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet
from datasets import Dataset, concatenate_datasets

from posttrain.errors import DataError
from posttrain.tokens.encode import IGNORED
from posttrain.tokens.tokenizer import SpecialTokens
from posttrain.training.document_masking import sequences

COLUMNS = ("input_ids", "labels", "seq_lengths")
SAMPLED_PACKS = 512
END_TRAINED = 0.5


@dataclass(frozen=True, slots=True)
class SplitSize:
    """What one split holds, read from the index: no pack is opened."""

    packs: int
    sequences: int
    tokens: int
    trained: int
    longest: int


def load_split(artifact: Path, split: str, *, pad_id: int) -> Dataset | None:
    """All shards of a split and the filler row, or None where the artifact has no such split.

    Args:
        artifact: the directory of an `sft_data` artifact.
        split: `train` or `eval`.
        pad_id: the token that fills the filler row.

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


def split_size(artifact: Path, split: str) -> SplitSize:
    """Packs, sequences, tokens and trained tokens of a split, from `index/<split>-*.parquet`."""
    packs = sequences = tokens = trained = longest = 0
    for path in sorted((artifact / "index").glob(f"{split}-*.parquet")):
        table = pyarrow.parquet.read_table(path, columns=["pack", "length", "trained"])
        lengths = table["length"].to_numpy()
        if not len(lengths):
            continue
        packs = max(packs, int(table["pack"].to_numpy().max()) + 1)
        sequences += len(lengths)
        tokens += int(lengths.sum())
        trained += int(table["trained"].to_numpy().sum())
        longest = max(longest, int(lengths.max()))
    return SplitSize(packs, sequences, tokens, trained, longest)


def index_sums(artifact: Path, split: str, column: str) -> dict[str, tuple[int, int, int]]:
    """Sequences, tokens and trained tokens of a split for each value of an index column."""
    sums: dict[str, tuple[int, int, int]] = {}
    for path in sorted((artifact / "index").glob(f"{split}-*.parquet")):
        table = pyarrow.parquet.read_table(path, columns=[column, "length", "trained"])
        for value, length, trained in zip(
            *(table[name].to_pylist() for name in (column, "length", "trained")), strict=True
        ):
            n, t, m = sums.get(str(value), (0, 0, 0))
            sums[str(value)] = (n + 1, t + length, m + trained)
    return dict(sorted(sums.items()))


@dataclass(frozen=True, slots=True)
class DataSample:
    """What a sample of the packs holds."""

    packs: int
    of: int
    sequences: int
    smallest_id: int
    largest_id: int
    longest: int
    end_trained: float
    untrained: int
    pad_trained: bool


def sampled_rows(packs: int) -> list[int]:
    """Evenly spaced rows, few enough to be looked at one by one."""
    taken = min(packs, SAMPLED_PACKS)
    return sorted({i * packs // taken for i in range(taken)})


def sample_data(packs: Dataset, special: SpecialTokens) -> DataSample:
    """Look into evenly spaced packs (the last row, the filler, is left out)."""
    total = len(packs) - 1
    rows = sampled_rows(total)
    seen = ended = untrained = longest = 0
    smallest, largest, pad_trained = 1 << 60, -1, False
    for pack in packs.select(rows):
        for ids, labels in sequences(dict(pack)):
            seen += 1
            ended += special.end_id in labels
            untrained += all(label == IGNORED for label in labels[1:])
            pad_trained |= special.pad_id in labels
            smallest, largest = min(smallest, *ids), max(largest, *ids)
            longest = max(longest, len(ids))
    return DataSample(
        len(rows), total, seen, smallest, largest, longest, ended / seen, untrained, pad_trained
    )


def check_data(sample: DataSample, special: SpecialTokens, *, rows: int, positions: int) -> None:
    """Stop on data that this model cannot train on.

    Args:
        rows: rows of the model's embedding.
        positions: the longest sequence the model has positions for.

    Raises:
        DataError: ids outside the embedding, sequences too long or with nothing trained, a trained
            pad, or an end token that is not trained.
    """
    if sample.smallest_id < 0 or sample.largest_id >= rows:
        raise DataError(
            f"ids {sample.smallest_id}…{sample.largest_id} in the shards, the model's embedding "
            f"has rows 0…{rows - 1}: they were made with another tokenizer"
        )
    if sample.longest > positions:
        raise DataError(
            f"a sequence has {sample.longest} tokens, the model has positions for {positions}"
        )
    if sample.untrained:
        raise DataError(
            f"{sample.untrained} of {sample.sequences} sequences have nothing trained; "
            "build_sft drops such sequences, so these shards come from elsewhere"
        )
    if sample.pad_trained:
        raise DataError(f"the pad token {special.pad_token!r} is trained in the shards")
    if sample.end_trained < END_TRAINED:
        raise DataError(
            f"{special.end_token!r} is trained in {sample.end_trained:.1%} of the sequences: the "
            "model would not learn to stop. Set end_token: to the token that closes a turn, or "
            "build the data with its end tokens trained"
        )
