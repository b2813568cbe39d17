from __future__ import annotations

import random

import pytest
import torch

from posttrain.errors import DataError
from posttrain.training.document_masking import (
    deal_rows,
    make_collator,
    sequence_ids,
    sequences,
)

PACKS = [
    {
        "input_ids": [5, 6, 7, 8, 9],
        "labels": [-100, 6, 7, -100, 9],
        "seq_lengths": [3, 2],
    },
    {"input_ids": [4, 3, 2], "labels": [-100, -100, 2], "seq_lengths": [3]},
    {"input_ids": [0, 0], "labels": [-100, -100], "seq_lengths": [2]},
]
LAYOUTS = ("varlen", "block_diagonal", "unpacked")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_tokens_are_trained_in_every_layout(layout):
    batch = make_collator(layout, pad_id=0)(PACKS)
    labels = batch["labels"]
    assert sorted(labels[labels != -100].tolist()) == [2, 6, 7, 9]
    # the counts the trainer's loss divides by
    assert int((labels[:, 1:] != -100).sum()) == 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sequence_ids_name_trained_sequences_only(layout):
    batch = make_collator(layout, pad_id=0)(PACKS)
    ids, count = sequence_ids(batch)
    assert count == 3
    tokens = batch["input_ids"].reshape(-1)
    found = sorted(tokens[ids == i].tolist() for i in range(3))
    assert found == [[4, 3, 2], [5, 6, 7], [8, 9]]
    assert int((ids >= 0).sum()) == 8


def test_block_diagonal_rows_are_as_narrow_as_the_longest_sequence():
    """Padding is a sequence of its own: position 0 at each start, none without a key."""
    batch = make_collator("block_diagonal", pad_id=0)(PACKS)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [4, 3, 2], [8, 9, 0], [0, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2], [0, 1, 2], [0, 1, 0], [0, 1, 0]]
    assert "attention_mask" not in batch


def test_sequences_share_rows_first_fit_decreasing():
    assert deal_rows([2, 7, 3, 5, 4], width=7) == [[1], [3, 0], [4, 2]]
    rng = random.Random(0)
    lengths = [rng.randint(1, 200) for _ in range(400)]
    rows = deal_rows(lengths, 200)
    assert sorted(n for row in rows for n in row) == list(range(400))
    assert max(sum(lengths[n] for n in row) for row in rows) <= 200
    assert sum(lengths) / (200 * len(rows)) > 0.97


def test_a_first_label_is_never_trained():
    """Nothing predicts it; in a pack the previous sequence would."""
    pack = {"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4], "seq_lengths": [2, 2]}
    for layout in LAYOUTS:
        labels = make_collator(layout, pad_id=0)([pack])["labels"]
        assert labels[labels != -100].tolist() == [2, 4], layout


def test_lengths_that_do_not_cover_the_pack_are_refused():
    pack = {"input_ids": [1, 2, 3], "labels": [1, 2, 3], "seq_lengths": [2]}
    with pytest.raises(DataError, match="seq_lengths sum to 2"):
        list(sequences(pack))


def test_unpacked_rows_are_right_padded():
    batch = make_collator("unpacked", pad_id=0)(PACKS[:1])
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 0]]
    assert torch.equal(batch["attention_mask"], torch.tensor([[1, 1, 1], [1, 1, 0]]))
