"""The loss and its importance weights, against slow readings of the formulas."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from posttrain.config.grpo import GrpoLossConfig, ImportanceConfig
from posttrain.training.rl.loss import (
    TokenLoss,
    TokenSums,
    importance,
    ratio_rows,
    token_loss,
)

CONFIG = ImportanceConfig()


def tensors(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(
    ("config", "weights"),
    [
        (ImportanceConfig(sequence_limit=99), [0, 0.5 + 1e-9, 1, 5 - 1e-9, 0]),
        (ImportanceConfig(outside="truncate", sequence_limit=99), [0.5, 0.5, 1, 5, 5]),
        (None, [1, 1, 1, 1, 1]),
    ],
)
def test_a_ratio_outside_the_limits_counts_as_nothing_or_as_the_limit(
    config: ImportanceConfig | None, weights: list[float]
):
    ratios = [0.4, 0.5 + 1e-9, 1.0, 5 - 1e-9, 5.1]
    previous = tensors([math.log(ratio) for ratio in ratios])
    found = importance(previous, torch.zeros(1, 5), torch.ones(1, 5).bool(), config)
    assert found.weight[0].tolist() == pytest.approx(weights)
    assert found.ratio[0].tolist() == pytest.approx(ratios)
    assert found.trusted.tolist() == [True]


def test_the_ratio_is_the_trainers_chance_over_the_samplers():
    """Both sides away from zero: with a sampled log-probability of 0 a wrong sign goes unseen."""
    previous = tensors([-1.0, -2.5, -0.3])
    sampled = tensors([-1.5, -2.0, -0.3])
    mask = torch.tensor([[True, True, False]])
    found = importance(previous, sampled, mask, CONFIG)
    assert found.ratio[0].tolist() == pytest.approx([math.exp(0.5), math.exp(-0.5), 1.0])
    assert found.weight[0, :2].tolist() == pytest.approx([math.exp(0.5), math.exp(-0.5)])
    assert found.strayed.tolist() == pytest.approx([math.exp(0.5)])


def test_a_rows_ratios_are_those_of_its_own_tokens():
    """Padding has a ratio of 1: counted, it would move mean, low and high."""
    previous = tensors([math.log(2.0), math.log(4.0), 0.0, 0.0], [0.0, 0.0, 0.0, 0.0])
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    weights = importance(
        previous, torch.zeros(2, 4), mask, ImportanceConfig(token_high=3.0, sequence_limit=9.0)
    )
    row, empty = ratio_rows(mask, weights)
    assert empty is None
    assert row is not None
    assert (row["mean"], row["low"], row["high"]) == pytest.approx((3.0, 2.0, 4.0))
    assert (row["masked"], row["strayed"]) == (pytest.approx(1), pytest.approx(3.0))
    assert row["kept"] is True


@pytest.mark.parametrize("outside", ["mask", "truncate"])
def test_numbers_that_are_none_count_as_nothing(outside: Any):
    previous = tensors([math.nan, 0.0], [math.inf, 0.0])
    config = ImportanceConfig(outside=outside)
    found = importance(previous, torch.zeros(2, 2), torch.ones(2, 2).bool(), config)
    assert found.weight[:, 0].tolist() == [0.0, 0.0]
    assert not found.trusted.any()


def test_a_completion_that_strays_is_left_out_and_padding_is_not_asked():
    """Mean of exp|difference| over a row's own tokens; the second row's padding would be far off."""
    sampled = tensors([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    previous = tensors([1.0, -1.0, 0.0], [0.1, 9.0, 9.0], [9.0, 9.0, 9.0])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]).bool()
    found = importance(previous, sampled, mask, CONFIG)
    assert found.strayed.tolist() == pytest.approx([(2 * math.e + 1) / 3, math.exp(0.1), 1.0])
    assert found.trusted.tolist() == [False, True, True]
    assert found.weight[0].tolist() == [0, 0, 0]
    assert found.weight[1, 0] == pytest.approx(math.exp(0.1))


def test_the_log_has_the_mean_difference_of_the_tokens_in_the_mask():
    previous = tensors([1.0, -0.5, 0.0, 9.0], [0.1, 9.0, 9.0, 9.0])
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]).bool()
    none = torch.zeros(2, 4)
    sums = TokenSums()
    found = importance(previous, none, mask, None)
    sums.add(mask, none, found, TokenLoss(none, none.bool(), None))
    alone: Any = SimpleNamespace(reduce=lambda values, _: values)
    assert sums.drain(alone)["logp_difference"] == pytest.approx(1.6 / 4)


def test_the_log_of_a_step_counts_tokens_and_completions_that_the_ratio_masked():
    """Three rows: one that strays as a whole, one with a single token masked, one of padding."""
    previous = tensors([3.0, 3.0, 0.0], [0.0, math.log(6.0), 0.0], [0.0, 0.0, 0.0])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0]]).bool()
    zeros = torch.zeros(3, 3)
    weights = importance(previous, zeros, mask, ImportanceConfig(sequence_limit=4.0))
    assert weights.trusted.tolist() == [False, True, True]
    sums = TokenSums()
    entropy = torch.full((3, 3), 0.5)
    clipped = torch.tensor([[0, 0, 1], [1, 0, 0], [1, 1, 1]]).bool()
    sums.add(mask, entropy, weights, TokenLoss(zeros, clipped, torch.ones(3, 3)))
    one_process: Any = SimpleNamespace(reduce=lambda values, _: values)
    means = sums.drain(one_process)
    ratios = 2 * math.exp(3.0) + 1 + 6 + 1
    strayed = math.exp(3.0) + (1 + 6 + 1) / 3
    assert means == pytest.approx(
        {
            "loss_tokens": 5,
            "importance": ratios / 5,
            "logp_difference": (3 + 3 + math.log(6.0)) / 5,
            "masked_tokens": 1 / 5,
            "masked_completions": 1 / 2,
            "strayed": strayed / 2,
            "clipped": 1 / 5,
            "entropy": 0.5,
            "kl": 1.0,
        }
    )


def test_a_step_without_tokens_logs_zeros_and_no_entropy():
    mask, zeros = torch.zeros(1, 2).bool(), torch.zeros(1, 2)
    sums = TokenSums()
    sums.add(mask, zeros, importance(zeros, zeros, mask, CONFIG), TokenLoss(zeros, mask, None))
    one_process: Any = SimpleNamespace(reduce=lambda values, _: values)
    means = sums.drain(one_process)
    assert set(means.values()) == {0.0}
    assert "entropy" not in means


@pytest.mark.parametrize(
    ("limit", "kept"), [(2.0, [True, True, True]), (1.2, [False, True, False])]
)
def test_a_completion_is_left_out_for_its_mean_difference_whatever_stands_outside_the_mask(
    limit: float, kept: list[bool]
):
    """The mean of exp |difference| is e^0.2, e^0.02 and e^0.2."""
    previous = tensors([0.2] * 4 + [9.0], [0.02] * 4 + [9.0], [-0.2] * 4 + [9.0])
    mask = torch.tensor([[1, 1, 1, 1, 0]] * 3).bool()
    weights = importance(previous, torch.zeros(3, 5), mask, ImportanceConfig(sequence_limit=limit))
    assert weights.trusted.tolist() == kept
    assert [bool(row.any()) for row in weights.weight[:, :4]] == kept


def test_a_forced_ratio_needs_updates_to_correct_for():
    for wrong in ({}, {"num_iterations": 2, "importance": None}):
        with pytest.raises(ValueError, match="force_on_policy_ratio"):
            GrpoLossConfig(force_on_policy_ratio=True, **wrong)
    assert GrpoLossConfig(force_on_policy_ratio=True, num_iterations=2)


@pytest.mark.parametrize("advantage", [1.5, -1.5])
@pytest.mark.parametrize("ratio", [0.5, 0.85, 1.0, 1.2, 1.5])
def test_clipping_takes_the_worse_of_both(advantage: float, ratio: float):
    config = GrpoLossConfig(clip_low=0.2, clip_high=0.28)
    current = tensors([math.log(ratio)]).requires_grad_()
    found = token_loss(
        current, torch.zeros(1, 1), tensors([advantage]), tensors([0.7]), config, None
    )
    bounded = min(max(ratio, 0.8), 1.28)
    expected = max(-advantage * ratio, -advantage * bounded) * 0.7
    assert found.loss.item() == pytest.approx(expected)
    held = -advantage * bounded > -advantage * ratio
    assert bool(found.clipped) == held
    found.loss.sum().backward()
    assert current.grad is not None
    assert float(current.grad) == pytest.approx(0.0 if held else -advantage * ratio * 0.7)


def test_k3_is_never_negative_and_its_gradient_is_that_of_the_kl():
    """Over the whole vocabulary the expected gradient is the gradient of KL(policy ‖ reference)."""
    logits = tensors([0.3, -0.2, 1.1, 0.0]).requires_grad_()
    reference = tensors([0.1, 0.4, -0.3, 0.2]).log_softmax(-1)
    policy = logits.log_softmax(-1)
    exact = (policy.exp() * (policy - reference)).sum()
    [wanted] = torch.autograd.grad(exact, logits, retain_graph=True)
    config = GrpoLossConfig(kl=1.0)
    found = token_loss(
        policy, policy.detach(), torch.zeros(1, 1), torch.ones(1, 4), config, reference
    )
    assert found.kl is not None
    assert (found.kl >= 0).all()
    [got] = torch.autograd.grad((policy.detach().exp() * found.loss).sum(), logits)
    torch.testing.assert_close(got, wanted)
