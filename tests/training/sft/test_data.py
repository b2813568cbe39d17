"""Sizes that an index tells without opening a pack, and what is printed and logged of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from posttrain.tokens.tokenizer import special_tokens
from posttrain.training.sft import data as packed
from posttrain.training.sft.data import (
    check_packs,
    load_split,
    sampled_rows,
    sizes_by_value,
    split_size,
)
from posttrain.training.sft.trainer import describe_step, held_out_group, standard_error
from tests.training.tiny import PAD, make_tokenizer


def test_a_split_has_the_size_of_its_packs(data: Path):
    packs = load_split(data, "train", pad_id=PAD)
    assert packs is not None
    size = split_size(data, "train")
    real = [packs[row] for row in range(len(packs) - 1)]
    assert size.packs == len(real) == 40
    assert size.sequences == sum(len(pack["seq_lengths"]) for pack in real)
    assert size.tokens == sum(len(pack["input_ids"]) for pack in real)
    assert size.trained == sum(label != -100 for pack in real for label in pack["labels"])
    filler = packs[len(real)]
    assert filler["input_ids"] == [PAD, PAD]
    assert filler["labels"] == [-100, -100]
    assert filler["seq_lengths"] == [2]


def test_sizes_by_a_column_sum_to_that_of_the_split(data: Path):
    """The tiny artifact has two sources, of every other pack, and one license."""
    whole = split_size(data, "train")
    by_source = sizes_by_value(data, "train", "source")
    assert list(by_source) == ["s0", "s1"]
    sums = tuple(map(sum, zip(*by_source.values(), strict=True)))
    assert sums == (whole.sequences, whole.tokens, whole.trained)
    assert sizes_by_value(data, "train", "license") == {"cc0-1.0": sums}


def test_a_split_that_is_not_there_is_empty(tmp_path: Path):
    size = split_size(tmp_path, "eval")
    assert (size.packs, size.sequences, size.tokens, size.trained) == (0, 0, 0, 0)
    assert sizes_by_value(tmp_path, "eval", "source") == {}
    assert load_split(tmp_path, "eval", pad_id=PAD) is None


def test_sampled_rows_are_evenly_spaced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packed, "SAMPLED_PACKS", 4)
    assert sampled_rows(3) == [0, 1, 2]
    assert sampled_rows(4) == [0, 1, 2, 3]
    assert sampled_rows(10) == [0, 2, 5, 7]


def test_a_sample_of_all_packs_is_looked_at_and_not_the_filler(
    data: Path, monkeypatch: pytest.MonkeyPatch
):
    packs = load_split(data, "train", pad_id=PAD)
    assert packs is not None
    special = special_tokens(make_tokenizer())
    size = split_size(data, "train")
    lines, end_share = check_packs(packs, special, embeddings=64, positions=256)
    assert end_share == 1.0
    texts = dict(lines)
    assert texts["tokens"].startswith("40 of 40 packs looked at: ids 1…63 of 64 rows")
    assert texts["end token"] == f"<|im_end|> is trained in 100.0% of {size.sequences} sequences"
    monkeypatch.setattr(packed, "SAMPLED_PACKS", 10)
    lines, _ = check_packs(packs, special, embeddings=64, positions=256)
    assert dict(lines)["tokens"].startswith("10 of 40 packs looked at")


def test_a_line_says_of_a_step_what_its_row_has_and_names_the_held_out_group():
    row = {"loss": 1.23456, "learning_rate": 3e-4, "tokens": 12345}
    assert describe_step(row) == "loss 1.2346  learning rate 3.00e-04  12,345 tokens"
    figures = {"mean_token_accuracy": 0.5, "grad_norm": 2.0}
    assert describe_step(row | figures) == (
        "loss 1.2346  token accuracy 0.50  gradient 2.00  learning rate 3.00e-04  12,345 tokens"
    )
    assert describe_step({"eval_web/on_loss": 2.0, "eval_web/on_trained": 5}) == (
        "held-out loss 2.0000 (web/on)"
    )
    assert describe_step({"eval_loss": 2.0, "eval_error": 0.1}) == "held-out loss 2.0000 (all)"
    assert describe_step({"step": 1}) is None
    assert held_out_group("eval_web/on_trained") is None
    assert held_out_group("train_loss") is None


def test_the_standard_error_of_a_held_out_loss_is_the_spread_of_resampled_batches():
    """Against the bootstrap, with batches of unequal tokens; and none for a few batches."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(20, 200, 40)
    losses = tokens * rng.normal(2.0, 0.3, 40)

    def sums(chosen: np.ndarray) -> torch.Tensor:
        loss, count = losses[chosen], tokens[chosen]
        columns = [loss, count, np.ones(len(chosen)), loss**2, loss * count, count**2]
        return torch.tensor([float(column.sum()) for column in columns], dtype=torch.float64)

    drawn = rng.integers(0, 40, (4000, 40))
    spread = (losses[drawn].sum(1) / tokens[drawn].sum(1)).std()
    assert standard_error(sums(np.arange(40))) == pytest.approx(spread, rel=0.1)
    assert standard_error(sums(np.arange(9))) is None
