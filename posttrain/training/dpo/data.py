"""The pairs of a `dpo_data` artifact, in memory, checked row by row before anything is trained.

    pairs = load_pairs(Path("runs/x/dpo_data"))
    pairs.data[7]   → {"row": 7, "prompt_ids": […], "chosen_ids": […], "chosen_mask": […], …}
    pairs.chosen.ids, pairs.chosen.sampled          lengths by row, in tokens

All columns that training needs cost about 5 bytes a token; the texts are not read.

    list(PairOrder(lengths=[30, 90, 60, 40], batch=3, steps=2, seed=0))
    → [1, 2, 0,   1, 3, 0]     steps of three: the first epoch's rest and the next one's beginning

Every step has exactly `batch` pairs, whatever the number of pairs; a pair is drawn a second time
only when all have been drawn once. In a step the longer pairs come first: micro-batches then hold
pairs of like length, and a mean over the step does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from datasets import Dataset
from torch.utils.data import Sampler

from posttrain.errors import DataError
from posttrain.models.room import room_text
from posttrain.records import CATEGORIES
from posttrain.training.order import rows_drawn

# its functions are made when it is imported, so types know none of them
pc: Any = pyarrow.compute
SIDES = ("chosen", "rejected")
LISTS = ("prompt_ids", "chosen_ids", "chosen_mask", "rejected_ids", "rejected_mask")
COLUMNS = ("id", "category", "source", *LISTS)
Lengths = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class SideLengths:
    """Tokens of one side of every pair, and how many of them the model sampled."""

    ids: Lengths
    sampled: Lengths


@dataclass(frozen=True, slots=True)
class Pairs:
    """All pairs. `category` holds an index into CATEGORIES by row."""

    data: Dataset
    ids: list[str]
    category: Lengths
    prompt: Lengths
    chosen: SideLengths
    rejected: SideLengths
    id_range: tuple[int, int]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> Lengths:
        """Tokens of both sequences of each pair, the prompt counted in each."""
        return 2 * self.prompt + self.chosen.ids + self.rejected.ids

    @property
    def longest(self) -> Lengths:
        """Tokens of the longer sequence of each pair."""
        return self.prompt + np.maximum(self.chosen.ids, self.rejected.ids)

    def by_category(self) -> dict[str, int]:
        """Pairs of each category that there is."""
        counts = np.bincount(self.category, minlength=len(CATEGORIES)).tolist()
        return {name: n for name, n in zip(CATEGORIES, counts, strict=True) if n}


def load_pairs(artifact: Path) -> Pairs:
    """Read every shard of a `dpo_data` artifact.

    Raises:
        DataError: no pairs, a missing column, or a pair that cannot be trained on; with its shard
            and id.
    """
    shards = sorted((artifact / "pairs").glob("train-*.parquet"))
    tables = [_read(shard) for shard in shards]
    tables = [table for table in tables if len(table)]
    if not tables:
        raise DataError(f"{artifact} has no pairs")
    table = pa.concat_tables(tables)
    prompt, chosen, rejected = (_lengths(table[f"{side}_ids"]) for side in ("prompt", *SIDES))
    sides = [
        SideLengths(ids, _sampled(table[f"{side}_mask"], ids))
        for side, ids in zip(SIDES, (chosen, rejected), strict=True)
    ]
    table = table.append_column("row", pa.array(range(len(table)), pa.int64()))
    return Pairs(
        data=Dataset(table.select(["row", *LISTS])),
        ids=table["id"].to_pylist(),
        category=np.array([CATEGORIES.index(name) for name in table["category"].to_pylist()]),
        prompt=prompt,
        chosen=sides[0],
        rejected=sides[1],
        id_range=_range([table[f"{side}_ids"] for side in ("prompt", *SIDES)]),
    )


def _read(shard: Path) -> pa.Table:
    columns = pq.read_schema(shard).names
    if missing := [name for name in COLUMNS if name not in columns]:
        raise DataError(f"{shard} has no column {missing[0]!r}, found {columns}")
    table = pq.read_table(shard, columns=list(COLUMNS))
    for row, problem in _problems(table):
        raise DataError(f"{shard}, pair {table['id'][row].as_py()!r}: {problem}")
    return table


def _problems(table: pa.Table) -> Iterator[tuple[int, str]]:
    """(row, what is wrong) of each pair that cannot be trained on."""
    checks: list[tuple[Any, str]] = [
        (pc.is_in(table["category"], pa.array(CATEGORIES)), f"category is none of {CATEGORIES}"),
        (pc.greater(pc.list_value_length(table["prompt_ids"]), 0), "its prompt is empty"),
    ]
    for side in SIDES:
        ids, mask = table[f"{side}_ids"], table[f"{side}_mask"]
        same = pc.equal(pc.list_value_length(ids), pc.list_value_length(mask))
        checks.append((same, f"{side}_ids and {side}_mask differ in length"))
        sampled = pa.array(_sampled(mask, _lengths(mask)) > 0)
        checks.append((sampled, f"{side}_mask trains no token"))
    for good, problem in checks:
        kept = pc.fill_null(good, False).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(~kept):
            yield int(row), problem


def _lengths(column: Any) -> Lengths:
    return pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)


def _sampled(column: Any, lengths: Lengths) -> Lengths:
    """How many entries of each list are true."""
    flat = pc.list_flatten(column).to_numpy().astype(np.int64)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(rows, weights=flat, minlength=len(lengths)).astype(np.int64)


def _range(columns: list[Any]) -> tuple[int, int]:
    ranges = [pc.min_max(pc.list_flatten(column)).as_py() for column in columns]
    return min(each["min"] for each in ranges), max(each["max"] for each in ranges)


def check_pairs(pairs: Pairs, *, rows: int, longest: int) -> str:
    """One line on ids and lengths.

    Args:
        rows: of the model's embedding.
        longest: sequence the model has positions for.

    Raises:
        DataError: ids outside the embedding, or a pair that is too long; by name.
    """
    smallest, largest = pairs.id_range
    if smallest < 0 or largest >= rows:
        raise DataError(
            f"ids {smallest}…{largest} in the pairs, the model's embedding has rows 0…{rows - 1}: "
            "they were made with another tokenizer"
        )
    at = int(np.argmax(pairs.longest))
    if pairs.longest[at] > longest:
        raise DataError(
            f"pair {pairs.ids[at]!r} has a sequence of {pairs.longest[at]} tokens, the model has "
            f"positions for {longest}; set max_length: {longest} in the recipe that builds the "
            "pairs"
        )
    return (
        f"ids {smallest}…{largest} of {rows:,} rows; longest sequence {pairs.longest[at]:,} "
        f"{room_text(longest)}"
    )


class PairOrder(Sampler[int]):
    """Rows of the pairs for a whole run, the same for every layout of processes.

    Args:
        lengths: tokens of each pair.
        batch: pairs a step.
        steps: of the run.
        seed: of the permutations.
    """

    def __init__(self, *, lengths: Sequence[int], batch: int, steps: int, seed: int) -> None:
        self.lengths = lengths
        self.batch = batch
        self.steps = steps
        self.seed = seed

    def __len__(self) -> int:
        return self.batch * self.steps

    def __iter__(self) -> Iterator[int]:
        count = len(self.lengths)
        for step in range(self.steps):
            rows = rows_drawn(count=count, per_step=self.batch, step=step, seed=self.seed)
            yield from sorted(rows, key=lambda row: (-self.lengths[row], row))
