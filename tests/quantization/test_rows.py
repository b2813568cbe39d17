"""Which sequences calibrate and measure; intervals of ratios. No ModelOpt is needed here."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from posttrain.errors import DataError
from posttrain.evaluation.intervals import ratio
from posttrain.quantization.rows import draw_sequences, trained_targets
from tests.training.tiny import END, write_artifact


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_artifact(tmp_path_factory.mktemp("data") / "packed")


def test_sequences_are_whole_and_the_same_for_a_seed(data: Path):
    drawn = draw_sequences(data, "train", 12, seed=3, reasoning=True)
    again = draw_sequences(data, "train", 20, seed=3, reasoning=True)
    other = draw_sequences(data, "train", 12, seed=4, reasoning=True)
    ids = [row.ids_T.tolist() for row in drawn]
    assert ids == [row.ids_T.tolist() for row in again[:12]]
    assert ids != [row.ids_T.tolist() for row in other]
    for row in drawn:
        assert row.ids_T[-1] == END
        positions_N, targets_N = trained_targets(row)
        assert row.ids_T[positions_N + 1].tolist() == targets_N.tolist()
        assert targets_N[-1] == END


def test_data_without_held_out_rows_is_refused(tmp_path: Path):
    data = write_artifact(tmp_path / "data", held_out=0)
    with pytest.raises(DataError, match="no sequences of the split 'eval'"):
        draw_sequences(data, "eval", 5, seed=0, reasoning=False)


def test_the_interval_of_a_ratio_covers_as_often_as_it_says():
    """Rows of unequal length whose tokens move together."""
    generator = np.random.default_rng(0)
    lengths = [random.Random(row).randint(2, 40) for row in range(30)]
    covered = 0
    for _ in range(400):
        means = generator.normal(0.5, 0.3, size=30)
        sums = [mean * length for mean, length in zip(means, lengths, strict=True)]
        estimate = ratio(sums, lengths)
        covered += estimate.low <= 0.5 <= estimate.high
    assert 0.92 <= covered / 400 <= 0.98
    assert ratio([2.0, 4.0], [2, 4]).value == 1.0
