"""The pairs of a `dpo_data` artifact, checked row by row, and a batch of them as tensors. The
columns that training needs cost about 5 bytes a token in memory.

Both layouts of a batch give the same log-probabilities:

    shared_prompt   one row holds whole pairs, each prompt once:  p p p │ p c c c │ p r r │ …
    unpacked        one completion a row, right-padded:           p p p p c c c   /   p p p p r r

In `shared_prompt` the last token of a prompt opens both branches, so that the token before each
completion is the one that predicts it. Common fields: `labels` (-100 but for the tokens that the
model sampled), `segment` (2 × pair + side of each position, -1 for padding), `row` of the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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

# its functions are made when it is imported, so types know none of them
pc: Any = pyarrow.compute
SIDES = ("chosen", "rejected")
LISTS = ("prompt_ids", "chosen_ids", "chosen_mask", "rejected_ids", "rejected_mask")
COLUMNS = ("id", "category", "source", *LISTS)
Lengths = np.ndarray[Any, np.dtype[np.int64]]
Batch = dict[str, torch.Tensor]
# the mask costs the square of a row's width
LONGEST_SHARED = 4096
LAYOUTS = {
    "shared_prompt": "shared_prompt: a pair in one row, its prompt computed once",
    "unpacked": "unpacked: a completion a row, right-padded",
}
Score = Callable[[Batch], ScoredPairs]
PROBED_PAIRS = 3
# nats a token, in fp32 and in half precision
PROBE_LIMIT, PROBE_LIMIT_HALF = 1e-4, 5e-2


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

    def hold(self, token: int) -> bool:
        """Whether a token id stands anywhere in them."""
        columns = (self.data.data.column(f"{side}_ids") for side in ("prompt", *SIDES))
        return any(pc.index(pc.list_flatten(column), token).as_py() >= 0 for column in columns)

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
        rows: of the model's embedding; `longest`: sequence it has positions for.

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


def choose_layout(requested: str, model: PreTrainedModel, *, longest: int) -> str:
    """Resolve `auto`, and refuse a layout that this model's layers would not honour.

    Args:
        longest: tokens of the longest pair, its prompt counted once.

    Raises:
        ConfigError: saying what works.
    """
    problem = _cannot_share(model)
    if requested == "shared_prompt" and problem:
        raise ConfigError(f"layout shared_prompt: {problem}. Set layout: unpacked")
    if requested != "auto":
        return requested
    return "unpacked" if problem or longest > LONGEST_SHARED else "shared_prompt"


def _cannot_share(model: PreTrainedModel) -> str | None:
    config: Any = model.config.get_text_config()
    if recurrent_layers(model):
        return "recurrent layers would carry state from one completion to the other"
    if model.config._attn_implementation != "sdpa":
        return f"a mask of one's own needs sdpa, not {model.config._attn_implementation}"
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None) if not kinds else None
    if kinds - {"full_attention"} or window:
        return "layers that attend to a window would see too much"
    return None


def make_pair_collator(layout: str, pad_id: int) -> Callable[[Sequence[dict[str, Any]]], Batch]:
    """The collator of a resolved layout."""
    return partial({"shared_prompt": _shared_prompt, "unpacked": _unpacked}[layout], pad_id)


def _masked(ids: Sequence[int], mask: Sequence[bool]) -> list[int]:
    return [token if sampled else IGNORED for token, sampled in zip(ids, mask, strict=True)]


def _unpacked(pad_id: int, pairs: Sequence[dict[str, Any]]) -> Batch:
    """Right-padded rows, chosen and rejected of each pair in turn; any model, any attention."""
    ids: list[list[int]] = []
    labels: list[list[int]] = []
    for pair in pairs:
        prompt = list(pair["prompt_ids"])
        for side in SIDES:
            ids.append(prompt + list(pair[f"{side}_ids"]))
            untrained = [IGNORED] * len(prompt)
            labels.append(untrained + _masked(pair[f"{side}_ids"], pair[f"{side}_mask"]))
    return padded(ids, labels, pad_id) | {
        "segment": pad_rows(([n] * len(row) for n, row in enumerate(ids)), -1),
        "row": torch.tensor([pair["row"] for pair in pairs]),
    }


def _shared_prompt(pad_id: int, pairs: Sequence[dict[str, Any]]) -> Batch:
    """Whole pairs side by side in rows no wider than the widest pair.

    `attention_mask` is bool `[rows, 1, width, width]`, true where a query may look.
    """
    parts = [_branches(pair, number) for number, pair in enumerate(pairs)]
    widths = [len(part["ids"]) for part in parts]
    rows = deal_rows(widths, max(widths))

    def column(name: str, fill: int) -> torch.Tensor:
        return pad_rows(([i for n in row for i in parts[n][name]] for row in rows), fill)

    segment = column("segment", -1)
    return {
        "input_ids": column("ids", pad_id),
        "labels": column("labels", IGNORED),
        "position_ids": column("positions", 0),
        "attention_mask": _pair_mask(column("number", -1), segment),
        "segment": segment,
        "row": torch.tensor([pair["row"] for pair in pairs]),
    }


def _branches(pair: dict[str, Any], number: int) -> dict[str, list[int]]:
    """One pair as a run of tokens; `segment` is -1 in the shared prompt."""
    *shared, last = pair["prompt_ids"]
    ids, labels = [*shared], [IGNORED] * len(shared)
    positions, segment = [*range(len(shared))], [-1] * len(shared)
    for side, name in enumerate(SIDES):
        branch = [last, *pair[f"{name}_ids"]]
        ids += branch
        labels += [IGNORED, *_masked(pair[f"{name}_ids"], pair[f"{name}_mask"])]
        positions += range(len(shared), len(shared) + len(branch))
        segment += [2 * number + side] * len(branch)
    columns = {"ids": ids, "labels": labels, "positions": positions, "segment": segment}
    return columns | {"number": [number] * len(ids)}


def _pair_mask(number: torch.Tensor, segment: torch.Tensor) -> torch.Tensor:
    """Earlier tokens of the same pair: of its prompt, or of the query's own branch."""
    width = number.size(1)
    earlier = torch.ones(width, width, dtype=torch.bool).tril()
    query, key = segment[:, :, None], segment[:, None, :]
    same_pair = number[:, :, None] == number[:, None, :]
    return (earlier & same_pair & ((key == query) | (key == -1)))[:, None]


def shorter_pairs(pairs: Sequence[dict[str, Any]], tokens: int) -> list[dict[str, Any]]:
    """The same pairs with prompts and completions cut in proportion, about `tokens` tokens in all,
    the prompt counted in both sequences; every list keeps one token at least."""
    whole = sum(2 * len(pair["prompt_ids"]) for pair in pairs)
    whole += sum(len(pair[f"{side}_ids"]) for pair in pairs for side in SIDES)
    share = min(1.0, tokens / whole)
    cut: list[dict[str, Any]] = []
    for pair in pairs:
        lists = {name: pair[name][: math.ceil(share * len(pair[name]))] for name in LISTS}
        cut.append({**pair, **lists})
    return cut


def probe_layout(
    score: Score, pairs: Pairs, layout: str, *, pad_id: int, dtype: str
) -> tuple[float, dict[SftForm, float]]:
    """Score a few pairs of all lengths in the batch layout, and each completion alone: the largest
    difference, a token, and what the SFT term is in either form. All in nats.

    Raises:
        ConfigError: a layout in which tokens see what they should not; with the difference.
    """
    order = np.argsort(pairs.lengths, kind="stable")
    places = np.linspace(0, len(order) - 1, min(PROBED_PAIRS, len(order))).astype(int)
    probed = [pairs.data[int(row)] for row in order[places]]
    batched = score(make_pair_collator(layout, pad_id)(probed))
    alone = [[score(_alone(pair, side)).chosen[0] for side in SIDES] for pair in probed]
    tokens = torch.tensor([[sum(pair[f"{side}_mask"]) for side in SIDES] for pair in probed])
    sums = torch.stack([batched.chosen, batched.rejected], dim=1).cpu()
    apart = float(((sums - torch.tensor(alone)).abs() / tokens).max())
    limit = PROBE_LIMIT if dtype == "float32" else PROBE_LIMIT_HALF
    if apart > limit:
        raise ConfigError(
            f"layout {layout} is not right for this model: log-probabilities in a batch differ by "
            f"{apart:.2g} nats a token from the same completion alone (limit {limit:g} in "
            f"{dtype}). Set layout: unpacked"
        )
    nats = -sums[:, 0].sum()
    return apart, {"sum": float(nats / len(probed)), "mean": float(nats / tokens[:, 0].sum())}


def _alone(pair: dict[str, Any], side: str) -> Batch:
    """One completion, nothing beside it, no padding, no mask; as if it were a chosen one."""
    prompt, ids = list(pair["prompt_ids"]), list(pair[f"{side}_ids"])
    labels = _masked(ids, pair[f"{side}_mask"])
    return {
        "input_ids": torch.tensor([prompt + ids]),
        "labels": torch.tensor([[IGNORED] * len(prompt) + labels]),
        "segment": torch.zeros(1, len(prompt) + len(ids), dtype=torch.long),
        "row": torch.tensor([pair["row"]]),
    }
