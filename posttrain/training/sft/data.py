"""Packed shards of an `sft_data` artifact as memory-mapped datasets, one pack per row.

Each dataset ends with one *filler* row: a pack in which nothing is trained. An epoch whose packs
do not divide by the global batch is filled up with it, so that no pack is dropped or counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
# packs to look into before training; more would take longer than the first steps
SAMPLED_PACKS = 512
# share of the sequences whose end token must be trained: below it a model does not learn to stop
END_TRAINED = 0.5


@dataclass(frozen=True, slots=True)
class SplitSize:
    """Size of a split in packs, sequences, tokens and trained tokens."""

    packs: int
    sequences: int
    tokens: int
    trained: int

    @property
    def text(self) -> str:
        """Counts for the plan, without the trained tokens."""
        return f"{self.packs:,} packs, {self.sequences:,} sequences, {self.tokens:,} tokens"


def load_split(artifact: Path, split: str, *, pad_id: int) -> Dataset | None:
    """Load all shards of a split and append the filler row.

    Args:
        split: "train" or "eval".

    Returns:
        The dataset, or None where the artifact has no pack of this split.

    Raises:
        DataError: a shard lacks one of the columns.
    """
    parts: list[Dataset] = []
    for shard in sorted((artifact / "packed").glob(f"{split}-*.arrow")):
        part = Dataset.from_file(str(shard))
        if not len(part):
            continue
        missing = [name for name in COLUMNS if name not in part.column_names]
        if missing:
            raise DataError(f"{shard} has no column {missing[0]!r}, found {part.column_names}")
        parts.append(part)
    if not parts:
        return None
    return concatenate_datasets([*parts, _filler(parts[0], pad_id)])


def _filler(like: Dataset, pad_id: int) -> Dataset:
    """Dataset of one filler row, with the columns of another dataset."""
    row: dict[str, Any] = dict.fromkeys(like.column_names)
    row["input_ids"] = [pad_id, pad_id]
    row["labels"] = [IGNORED, IGNORED]
    row["seq_lengths"] = [2]
    return Dataset.from_dict({name: [row[name]] for name in row}, features=like.features)


def split_by_group(packs: Dataset) -> dict[str, Dataset]:
    """Divide the eval split into one dataset per group, `<source>/<on|off>`, each with a filler."""
    filler_row = len(packs) - 1
    rows_by_group: dict[str, list[int]] = {}
    for row, group in enumerate(packs["group"][:filler_row]):
        rows_by_group.setdefault(group, []).append(row)
    return {
        group: packs.select([*rows_by_group[group], filler_row]) for group in sorted(rows_by_group)
    }


def read_index(artifact: Path, split: str, *columns: str) -> pa.Table:
    """Read columns of a split's index, one row per sequence, without opening a pack."""
    shards = sorted((artifact / "index").glob(f"{split}-*.parquet"))
    if not shards:
        return pa.table({name: pa.array([], pa.int64()) for name in columns})
    return pa.concat_tables([pq.read_table(shard, columns=list(columns)) for shard in shards])


def split_size(artifact: Path, split: str) -> SplitSize:
    """Read the size of a split from its index."""
    index = read_index(artifact, split, "pack", "length", "trained")
    return SplitSize(
        # packs are numbered through, from 0
        packs=int(index["pack"].to_numpy().max(initial=-1)) + 1,
        sequences=len(index),
        tokens=int(index["length"].to_numpy().sum()),
        trained=int(index["trained"].to_numpy().sum()),
    )


def sizes_by_value(artifact: Path, split: str, column: str) -> dict[str, tuple[int, int, int]]:
    """Sequences, tokens and trained tokens of a split for each value of an index column."""
    index = read_index(artifact, split, column, "length", "trained")
    sums = index.group_by(column).aggregate(
        [("length", "count"), ("length", "sum"), ("trained", "sum")]
    )
    sizes: dict[str, tuple[int, int, int]] = {}
    for row in sums.to_pylist():
        sizes[str(row[column])] = (row["length_count"], row["length_sum"], row["trained_sum"])
    return dict(sorted(sizes.items()))


def sampled_rows(packs: int) -> list[int]:
    """Evenly spaced row indices, few enough to look into each of these packs."""
    count = min(packs, SAMPLED_PACKS)
    return sorted({number * packs // count for number in range(count)})


def check_packs(
    packs: Dataset, special: SpecialTokens, *, embeddings: int, positions: int
) -> tuple[list[Line], float]:
    """Look into evenly spaced packs for sequences that this model cannot be trained on.

    Args:
        packs: dataset with the filler as its last row.
        embeddings: rows of the model's embedding.
        positions: length of the longest sequence that the model has positions for.

    Returns:
        Lines of the plan, and the share of sequences whose end token is trained.

    Raises:
        DataError: ids outside the embedding, a sequence that is too long or has nothing trained, a
            trained pad, or an end token that is not trained.
    """
    pack_count = len(packs) - 1
    rows = sampled_rows(pack_count)
    sequence_count = 0
    end_trained = 0
    untrained = 0
    longest = 0
    smallest_id = 1 << 60
    largest_id = -1
    pad_trained = False
    for pack in packs.select(rows):
        for ids, labels in sequences(dict(pack)):
            sequence_count += 1
            end_trained += special.end_id in labels
            # nothing predicts the first token, so its label does not count
            untrained += all(label == IGNORED for label in labels[1:])
            pad_trained |= special.pad_id in labels
            smallest_id = min(smallest_id, *ids)
            largest_id = max(largest_id, *ids)
            longest = max(longest, len(ids))
    end_share = end_trained / sequence_count
    if smallest_id < 0 or largest_id >= embeddings:
        raise DataError(
            f"ids {smallest_id}…{largest_id} in the shards, the model's embedding has rows "
            f"0…{embeddings - 1}: they were made with another tokenizer"
        )
    if longest > positions:
        raise DataError(f"a sequence has {longest} tokens, the model has positions for {positions}")
    if untrained:
        raise DataError(
            f"{untrained} of {sequence_count} sequences have nothing trained; build_sft drops such "
            "sequences, so these shards come from elsewhere"
        )
    if pad_trained:
        raise DataError(f"the pad token {special.pad_token!r} is trained in the shards")
    if end_share < END_TRAINED:
        raise DataError(
            f"{special.end_token!r} is trained in {end_share:.1%} of the sequences: the model "
            "would not learn to stop. Set end_token: to the token that closes a turn, or build the "
            "data with its end tokens trained"
        )
    ids_text = (
        f"{len(rows):,} of {pack_count:,} packs looked at: ids {smallest_id}…{largest_id} of "
        f"{embeddings:,} rows; pad {special.pad_token} ≠ end {special.end_token}"
    )
    end_text = f"{special.end_token} is trained in {end_share:.1%} of {sequence_count:,} sequences"
    return [("tokens", ids_text), ("end token", end_text)], end_share


def first_tokens(packs: Sequence[dict[str, Any]], tokens: int) -> list[dict[str, Any]]:
    """Cut a list of packs to its first `tokens` tokens, which may cut its last sequence short."""
    cut_packs: list[dict[str, Any]] = []
    for pack in packs:
        cut_length = min(tokens, len(pack["input_ids"]))
        tokens -= cut_length
        if not cut_length:
            continue
        lengths: list[int] = []
        for length in pack["seq_lengths"]:
            remaining = cut_length - sum(lengths)
            if remaining:
                lengths.append(min(length, remaining))
        columns = {name: pack[name][:cut_length] for name in ("input_ids", "labels")}
        cut_packs.append({**columns, "seq_lengths": lengths})
    return cut_packs
