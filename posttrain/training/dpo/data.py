"""Pairs of a `dpo_data` artifact, checked row by row, and the collators that batch them.

The columns that training needs take about 5 bytes per token in memory. Both layouts of a batch give
the same log-probabilities:

    shared_prompt   a row holds whole pairs, each prompt once:    p p p │ p c c c │ p r r │ …
    unpacked        a row holds one completion, right-padded:     p p p p c c c   /   p p p p r r

In `shared_prompt` the last token of a prompt opens both branches, so that the token before each
completion is the one that predicts it. Fields of both: `labels` (-100 for every token that the
model did not sample), `segment` (2 × pair + side at each position, -1 for padding) and `row`, the
row of each pair in the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import torch
from datasets import Dataset
from transformers import PreTrainedModel

from posttrain.config.dpo import SftForm
from posttrain.errors import ConfigError, DataError
from posttrain.models.load import recurrent_layers
from posttrain.models.room import room_text
from posttrain.records import CATEGORIES
from posttrain.tokens.encode import IGNORED
from posttrain.training.document_masking import deal_rows, pad_rows, padded
from posttrain.training.dpo.loss import ScoredPairs

# untyped: pyarrow creates these functions when it is imported, so type checkers see none of them
pc: Any = pyarrow.compute
SIDES = ("chosen", "rejected")
LISTS = ("prompt_ids", "chosen_ids", "chosen_mask", "rejected_ids", "rejected_mask")
COLUMNS = ("id", "category", "source", *LISTS)
Lengths = np.ndarray[Any, np.dtype[np.int64]]
Batch = dict[str, torch.Tensor]
# longest pair that `auto` lays out in one row: the mask takes the square of the row's width
LONGEST_SHARED = 4096
LAYOUTS = {
    "shared_prompt": "shared_prompt: a pair in one row, its prompt computed once",
    "unpacked": "unpacked: one completion per row, right-padded",
}
Score = Callable[[Batch], ScoredPairs]
PROBED_PAIRS = 3
# nats per token by which a batch may differ from its completions alone
PROBE_LIMIT = 1e-4
PROBE_LIMIT_HALF = 5e-2


@dataclass(frozen=True, slots=True)
class SideLengths:
    """Lengths of one side, chosen or rejected, of each pair.

    Attributes:
        ids: Tokens of the completion.
        sampled: Tokens of these that the model sampled.
    """

    ids: Lengths
    sampled: Lengths


@dataclass(frozen=True, slots=True)
class Pairs:
    """All pairs of an artifact, and their sizes by row.

    Attributes:
        data: Token ids and masks, with the row of each pair.
        ids: Identifier of each pair.
        category: Index into CATEGORIES of each pair.
        prompt: Tokens of each prompt.
        chosen: Lengths of the chosen completions.
        rejected: Lengths of the rejected completions.
        id_range: Smallest and largest token id.
    """

    data: Dataset
    ids: list[str]
    category: Lengths
    prompt: Lengths
    chosen: SideLengths
    rejected: SideLengths
    id_range: tuple[int, int]

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.ids)

    @property
    def total_lengths(self) -> Lengths:
        """Tokens of both sequences of each pair together, the prompt counted twice."""
        return 2 * self.prompt + self.chosen.ids + self.rejected.ids

    @property
    def longest(self) -> Lengths:
        """Tokens of the longer sequence of each pair."""
        return self.prompt + np.maximum(self.chosen.ids, self.rejected.ids)

    def contains(self, token: int) -> bool:
        """Tell whether any prompt or completion contains a token id."""
        for part in ("prompt", *SIDES):
            ids = pc.list_flatten(self.data.data.column(f"{part}_ids"))
            if pc.index(ids, token).as_py() >= 0:
                return True
        return False

    def by_category(self) -> dict[str, int]:
        """Number of pairs of each category that occurs."""
        counts = np.bincount(self.category, minlength=len(CATEGORIES)).tolist()
        pairs_by_category = zip(CATEGORIES, counts, strict=True)
        return {name: count for name, count in pairs_by_category if count}


def load_pairs(artifact: Path) -> Pairs:
    """Read all shards of a `dpo_data` artifact.

    Raises:
        DataError: no pairs, a missing column, or a pair that cannot be trained on; with its shard
            and id.
    """
    shards = sorted((artifact / "pairs").glob("train-*.parquet"))
    tables: list[pa.Table] = []
    for shard in shards:
        shard_table = _read_shard(shard)
        if len(shard_table):
            tables.append(shard_table)
    if not tables:
        raise DataError(f"{artifact} has no pairs")
    table = pa.concat_tables(tables)
    table = table.append_column("row", pa.array(range(len(table)), pa.int64()))
    return Pairs(
        data=Dataset(table.select(["row", *LISTS])),
        ids=table["id"].to_pylist(),
        category=np.array([CATEGORIES.index(name) for name in table["category"].to_pylist()]),
        prompt=_list_lengths(table["prompt_ids"]),
        chosen=_side_lengths(table, "chosen"),
        rejected=_side_lengths(table, "rejected"),
        id_range=_id_range(table),
    )


def _read_shard(shard: Path) -> pa.Table:
    """Read one shard and check its pairs."""
    columns = pq.read_schema(shard).names
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise DataError(f"{shard} has no column {missing[0]!r}, found {columns}")
    table = pq.read_table(shard, columns=list(COLUMNS))
    for row, problem in _problems(table):
        raise DataError(f"{shard}, pair {table['id'][row].as_py()!r}: {problem}")
    return table


def _problems(table: pa.Table) -> Iterator[tuple[int, str]]:
    """Yield (row, problem) for every check that a pair fails, one check after the other."""
    # (column that is true where a pair passes, problem of the others)
    checks: list[tuple[Any, str]] = [
        (pc.is_in(table["category"], pa.array(CATEGORIES)), f"category is none of {CATEGORIES}"),
        (pc.greater(pc.list_value_length(table["prompt_ids"]), 0), "its prompt is empty"),
    ]
    for side in SIDES:
        ids = table[f"{side}_ids"]
        mask = table[f"{side}_mask"]
        same_length = pc.equal(pc.list_value_length(ids), pc.list_value_length(mask))
        checks.append((same_length, f"{side}_ids and {side}_mask differ in length"))
        trained = pa.array(_count_true(mask, _list_lengths(mask)) > 0)
        checks.append((trained, f"{side}_mask trains no token"))
    for passes, problem in checks:
        # a comparison with a null list is null, and such a pair does not pass either
        passing_rows = pc.fill_null(passes, False).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(~passing_rows):
            yield int(row), problem


def _side_lengths(table: pa.Table, side: str) -> SideLengths:
    """Lengths of the completions of one side."""
    lengths = _list_lengths(table[f"{side}_ids"])
    return SideLengths(lengths, _count_true(table[f"{side}_mask"], lengths))


def _list_lengths(column: Any) -> Lengths:
    """Length of the list in each row; 0 for null."""
    return pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)


def _count_true(column: Any, lengths: Lengths) -> Lengths:
    """Number of true entries in the list of each row."""
    entries = pc.list_flatten(column).to_numpy().astype(np.int64)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(rows, weights=entries, minlength=len(lengths)).astype(np.int64)


def _id_range(table: pa.Table) -> tuple[int, int]:
    """Smallest and largest token id of a table."""
    ends: list[int] = []
    for part in ("prompt", *SIDES):
        part_range = pc.min_max(pc.list_flatten(table[f"{part}_ids"])).as_py()
        ends += [part_range["min"], part_range["max"]]
    return min(ends), max(ends)


def check_pairs(pairs: Pairs, *, embeddings: int, positions: int) -> str:
    """Check that the model can be trained on the pairs. Returns a line for the plan.

    Args:
        embeddings: rows of the model's embedding.
        positions: length of the longest sequence that the model has positions for.

    Raises:
        DataError: ids outside the embedding, or a pair that is too long, with its id.
    """
    smallest_id, largest_id = pairs.id_range
    if smallest_id < 0 or largest_id >= embeddings:
        raise DataError(
            f"ids {smallest_id}…{largest_id} in the pairs, the model's embedding has rows "
            f"0…{embeddings - 1}: they were made with another tokenizer"
        )
    row = int(np.argmax(pairs.longest))
    longest = pairs.longest[row]
    if longest > positions:
        raise DataError(
            f"pair {pairs.ids[row]!r} has a sequence of {longest} tokens, the model has positions "
            f"for {positions}; set max_length: {positions} in the recipe that builds the pairs"
        )
    return (
        f"ids {smallest_id}…{largest_id} of {embeddings:,} rows; longest sequence {longest:,} "
        f"{room_text(positions)}"
    )


def choose_layout(requested: str, model: PreTrainedModel, *, longest: int) -> str:
    """Resolve `auto` by model and longest pair; refuse what lets this model's tokens see too much.

    Args:
        longest: tokens of the longest pair, its prompt counted once.

    Raises:
        ConfigError: naming the reason and the layout that works.
    """
    problem = _sharing_problem(model)
    if requested == "shared_prompt" and problem:
        raise ConfigError(f"layout shared_prompt: {problem}. Set layout: unpacked")
    if requested != "auto":
        return requested
    return "unpacked" if problem or longest > LONGEST_SHARED else "shared_prompt"


def _sharing_problem(model: PreTrainedModel) -> str | None:
    """Reason why two completions of a model cannot share their prompt; None where they can."""
    config: Any = model.config.get_text_config()
    if recurrent_layers(model):
        return "recurrent layers would carry state from one completion to the other"
    if model.config._attn_implementation != "sdpa":
        return f"a mask of one's own needs sdpa, not {model.config._attn_implementation}"
    if getattr(config, "alibi", False):
        return "attention by distance (alibi) takes distances from a mask of padding"
    layer_types = set(getattr(config, "layer_types", None) or ())
    # a model that lists its layers may name a window that none of them uses
    window = getattr(config, "sliding_window", None) if not layer_types else None
    if layer_types - {"full_attention"} or window:
        return "layers that attend to a window would see too much"
    return None


def make_pair_collator(layout: str, pad_id: int) -> Callable[[Sequence[dict[str, Any]]], Batch]:
    """Build the collator of a resolved layout."""
    collate = {"shared_prompt": _shared_prompt, "unpacked": _unpacked}[layout]
    return partial(collate, pad_id)


def _labels(ids: Sequence[int], mask: Sequence[bool]) -> list[int]:
    """Token ids as labels, ignored where the model did not sample them."""
    return [token if sampled else IGNORED for token, sampled in zip(ids, mask, strict=True)]


def _unpacked(pad_id: int, pairs: Sequence[dict[str, Any]]) -> Batch:
    """Collate the chosen and the rejected of each pair in turn, one per right-padded row."""
    ids: list[list[int]] = []
    labels: list[list[int]] = []
    for pair in pairs:
        prompt = list(pair["prompt_ids"])
        prompt_labels = [IGNORED] * len(prompt)
        for side in SIDES:
            ids.append(prompt + list(pair[f"{side}_ids"]))
            labels.append(prompt_labels + _labels(pair[f"{side}_ids"], pair[f"{side}_mask"]))
    segment = pad_rows(([row] * len(row_ids) for row, row_ids in enumerate(ids)), -1)
    return padded(ids, labels, pad_id) | {
        "segment": segment,
        "row": torch.tensor([pair["row"] for pair in pairs]),
    }


def _shared_prompt(pad_id: int, pairs: Sequence[dict[str, Any]]) -> Batch:
    """Collate whole pairs side by side, in rows no wider than the widest pair.

    `attention_mask` is bool `[rows, 1, width, width]`, true where a query may look.
    """
    pair_columns = [_branches(pair, number) for number, pair in enumerate(pairs)]
    widths = [len(columns["ids"]) for columns in pair_columns]
    rows = deal_rows(widths, max(widths))

    def join(name: str, fill: int) -> torch.Tensor:
        """Column of the batch, `[rows, width]`, from that of the pairs of each row."""
        values: list[list[int]] = []
        for row in rows:
            values.append(list(chain.from_iterable(pair_columns[number][name] for number in row)))
        return pad_rows(values, fill)

    segment = join("segment", -1)
    return {
        "input_ids": join("ids", pad_id),
        "labels": join("labels", IGNORED),
        "position_ids": join("positions", 0),
        "attention_mask": _pair_mask(join("number", -1), segment),
        "segment": segment,
        "row": torch.tensor([pair["row"] for pair in pairs]),
    }


def _branches(pair: dict[str, Any], number: int) -> dict[str, list[int]]:
    """Columns of one pair: its prompt, then the chosen branch, then the rejected one.

    `segment` is -1 in the shared prompt, and `number` is that of the pair in its micro-batch.
    """
    # the last token of the prompt opens both branches: it predicts the first token of each
    *shared, last = pair["prompt_ids"]
    ids = list(shared)
    labels = [IGNORED] * len(shared)
    positions = list(range(len(shared)))
    segment = [-1] * len(shared)
    for side, name in enumerate(SIDES):
        branch = [last, *pair[f"{name}_ids"]]
        ids += branch
        labels += [IGNORED, *_labels(pair[f"{name}_ids"], pair[f"{name}_mask"])]
        # both branches go on where the prompt ends, as each would alone
        positions += range(len(shared), len(shared) + len(branch))
        segment += [2 * number + side] * len(branch)
    return {
        "ids": ids,
        "labels": labels,
        "positions": positions,
        "segment": segment,
        "number": [number] * len(ids),
    }


def _pair_mask(number: torch.Tensor, segment: torch.Tensor) -> torch.Tensor:
    """Attention mask of shared prompts: a token sees earlier tokens of its prompt and its branch.

    Args:
        number: `[rows, width]`, index of the pair at each position, -1 for padding.
        segment: `[rows, width]`, 2 × pair + side, -1 in the prompt and for padding.

    Returns:
        Bool `[rows, 1, width, width]`, true where a query may look.
    """
    width = number.size(1)
    earlier = torch.ones(width, width, dtype=torch.bool).tril()
    query_segment = segment[:, :, None]
    key_segment = segment[:, None, :]
    same_pair = number[:, :, None] == number[:, None, :]
    same_branch_or_prompt = (key_segment == query_segment) | (key_segment == -1)
    return (earlier & same_pair & same_branch_or_prompt)[:, None]


def shorter_pairs(pairs: Sequence[dict[str, Any]], tokens: int) -> list[dict[str, Any]]:
    """Cut pairs in proportion, to about `tokens` tokens in all with each prompt counted twice.

    Every list keeps at least one token.
    """
    total = 0
    for pair in pairs:
        total += 2 * len(pair["prompt_ids"]) + len(pair["chosen_ids"]) + len(pair["rejected_ids"])
    share = min(1.0, tokens / total)
    cut_pairs: list[dict[str, Any]] = []
    for pair in pairs:
        lists = {name: pair[name][: math.ceil(share * len(pair[name]))] for name in LISTS}
        cut_pairs.append({**pair, **lists})
    return cut_pairs


def probe_layout(
    score: Score, pairs: Pairs, layout: str, *, pad_id: int, dtype: str
) -> tuple[float, dict[SftForm, float]]:
    """Refuse a layout that scores completions unlike alone. Returns the difference and SFT terms.

    A few pairs of all lengths are scored, in the batch layout and each completion alone.

    Returns:
        The largest difference between both in nats per token, and the SFT term in either form.

    Raises:
        ConfigError: a layout in which tokens see what they should not; with the difference.
    """
    order = np.argsort(pairs.total_lengths, kind="stable")
    evenly_spaced = np.linspace(0, len(order) - 1, min(PROBED_PAIRS, len(order))).astype(int)
    probed = [pairs.data[int(row)] for row in order[evenly_spaced]]
    batched = score(make_pair_collator(layout, pad_id)(probed))
    # [pairs, sides], as all tensors here
    batched_sums = torch.stack([batched.chosen, batched.rejected], dim=1).cpu()
    single_sums: list[list[torch.Tensor]] = []
    token_counts: list[list[int]] = []
    for pair in probed:
        single_sums.append([_score_alone(score, pair, side) for side in SIDES])
        token_counts.append([sum(pair[f"{side}_mask"]) for side in SIDES])
    tokens = torch.tensor(token_counts)
    nats_per_token = (batched_sums - torch.tensor(single_sums)).abs() / tokens
    difference = float(nats_per_token.max())
    limit = PROBE_LIMIT if dtype == "float32" else PROBE_LIMIT_HALF
    if difference > limit:
        raise ConfigError(
            f"layout {layout} is not right for this model: log-probabilities in a batch differ by "
            f"{difference:.2g} nats a token from the same completion alone (limit {limit:g} in "
            f"{dtype}). Set layout: unpacked"
        )
    sft_sum = -batched_sums[:, 0].sum()
    sft_terms: dict[SftForm, float] = {
        "sum": float(sft_sum / len(probed)),
        "mean": float(sft_sum / tokens[:, 0].sum()),
    }
    return difference, sft_terms


def _score_alone(score: Score, pair: dict[str, Any], side: str) -> torch.Tensor:
    """Log-probability of one completion with nothing beside it, scored as if it were a chosen."""
    return score(_completion_alone(pair, side)).chosen[0]


def _completion_alone(pair: dict[str, Any], side: str) -> Batch:
    """Batch of one completion, without padding and mask, as the chosen of its pair."""
    prompt = list(pair["prompt_ids"])
    ids = list(pair[f"{side}_ids"])
    labels = _labels(ids, pair[f"{side}_mask"])
    return {
        "input_ids": torch.tensor([prompt + ids]),
        "labels": torch.tensor([[IGNORED] * len(prompt) + labels]),
        "segment": torch.zeros(1, len(prompt) + len(ids), dtype=torch.long),
        "row": torch.tensor([pair["row"]]),
    }
