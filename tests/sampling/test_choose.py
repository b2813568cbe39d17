"""Tokens are drawn with the probabilities they have, and filters keep what transformers' keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from posttrain.rollouts import Parameters
from posttrain.sampling.engines.decode import RowParameters, choose, uniforms

CPU = torch.device("cpu")
DRAWS = 20_000


def seeds(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint64)


def test_numbers_are_uniform_and_follow_seed_and_position_only():
    positions = np.arange(40)
    numbers = np.stack([uniforms(seeds(500), np.full(500, p)) for p in positions])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
    assert abs(counts / numbers.size - 0.05).max() < 0.005
    # neighbouring seeds and positions are not alike
    assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.03
    swapped = uniforms(seeds(500)[::-1].copy(), np.full(500, 7))
    assert (swapped[::-1] == numbers[7]).all()
    large = np.array([2**63 - 1, 0], dtype=np.uint64)
    assert len(set(uniforms(large, np.array([0, 0])))) == 2


@pytest.mark.parametrize(
    "parameters",
    [
        Parameters(),
        Parameters(temperature=0.6),
        Parameters(temperature=1.7, top_k=5),
        Parameters(top_p=0.7),
        Parameters(temperature=0.8, top_k=8, top_p=0.6),
        Parameters(top_p=1e-9),
        Parameters(top_k=500),
    ],
)
def test_frequencies_are_the_probabilities_that_transformers_gives(parameters):
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(3)) * 2
    expected = TemperatureLogitsWarper(parameters.temperature)(None, logits)
    if parameters.top_k:
        expected = TopKLogitsWarper(parameters.top_k)(None, expected)
    if parameters.top_p < 1:
        expected = TopPLogitsWarper(parameters.top_p)(None, expected)
    expected = expected.softmax(-1)[0].double()
    how = RowParameters.of([parameters] * DRAWS, CPU)
    numbers = uniforms(seeds(DRAWS), np.zeros(DRAWS, dtype=np.int64))
    tokens, _ = choose(logits.expand(DRAWS, -1), how, numbers)
    found = torch.bincount(tokens, minlength=50).double() / DRAWS
    assert ((found > 0) <= (expected > 0)).all()
    # five standard deviations of a share
    allowed = 5 * (expected * (1 - expected) / DRAWS).sqrt() + 1e-9
    assert ((found - expected).abs() <= allowed).all()


def test_the_last_number_below_one_draws_a_possible_token():
    logits = torch.tensor([[0.0, 1.0, -torch.inf, -torch.inf]])
    for number, token in ((0.0, 0), (1 - 2.0**-52, 1)):
        tokens, _ = choose(logits, RowParameters.of([Parameters()], CPU), np.array([number]))
        assert tokens.tolist() == [token]


def test_greedy_rows_report_the_model_s_own_log_probability():
    logits = torch.randn(2, 30, generator=torch.Generator().manual_seed(1))
    given = [Parameters(temperature=0.0, top_k=2, logps=True), Parameters(temperature=0.5)]
    tokens, logps = choose(logits, RowParameters.of(given, CPU), np.array([0.9, 0.9]))
    assert logps is not None
    assert tokens[0] == logits[0].argmax()
    assert logps[0] == pytest.approx(logits[0].log_softmax(-1).max().item(), abs=1e-6)
    assert logps[1] == pytest.approx((logits[1] / 0.5).log_softmax(-1)[tokens[1]].item(), abs=1e-6)


def test_a_large_vocabulary_is_searched_as_by_one_running_sum():
    torch.manual_seed(0)
    logits = torch.randn(400, 1500) * 3
    numbers = uniforms(seeds(400), np.zeros(400, dtype=np.int64))
    numbers[:3] = 0.0, 1 - 2.0**-52, 0.5
    sums = logits.softmax(-1).cumsum(-1, dtype=torch.float64)
    expected = torch.searchsorted(
        sums, torch.from_numpy(numbers)[:, None] * sums[:, -1:], right=True
    )
    tokens, _ = choose(logits, RowParameters.of([Parameters()] * 400, CPU), numbers)
    assert tokens.tolist() == expected[:, 0].tolist()
