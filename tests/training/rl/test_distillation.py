"""The formulas of distillation against slow float64 readings of them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from posttrain.config.grpo import GrpoLossConfig, ImportanceConfig
from posttrain.sampling.sampler import ScoreOutput, ScoreRequest
from posttrain.training.rl import distillation
from posttrain.training.rl.distillation import (
    advantages_of_rollouts,
    distillation_advantages,
    reverse_kl,
)
from posttrain.training.rl.loss import importance, token_loss

VOCABULARY, LENGTH = 5, 3


def slow_kl(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """KL over the last dimension, by autograd of the plain formula."""
    logps = student.log_softmax(-1)
    return (logps.exp() * (logps - teacher.log_softmax(-1))).sum(-1)


def random_logits(*shape: int, seed: int, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.double)


def test_advantages_are_the_difference_inside_the_mask_and_zero_outside():
    teacher = torch.tensor([[-1.0, -2.0, math.nan], [-30.0, -math.inf, -1.0]], requires_grad=True)
    proximal = torch.tensor([[-1.5, -1.0, -1.0], [-1.0, -2.0, -1.0]], requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, False, True]])
    advantages = distillation_advantages(teacher, proximal, mask)
    assert advantages.tolist() == [[0.5, -1.0, 0.0], [-29.0, 0.0, 0.0]]
    assert not advantages.requires_grad
    clipped = distillation_advantages(teacher, proximal, mask, clip=0.75)
    assert clipped.tolist() == [[0.5, -0.75, 0.0], [-0.75, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("teacher", "mask", "clip", "message"),
    [
        ([[-1.0, -2.0, -3.0]], [[True, True]], None, "one shape"),
        ([[-1.0, -2.0]], [[1, 0]], None, "must be boolean"),
        ([[-1.0, -math.inf]], [[True, True]], None, "not finite"),
        ([[-1.0, math.nan]], [[True, True]], 5.0, "not finite"),
        ([[-1.0, -2.0]], [[True, True]], 0.0, "clip must be above 0"),
    ],
)
def test_what_has_no_advantage_is_refused(
    teacher: list[list[float]], mask: list[list[int]], clip: float | None, message: str
):
    proximal = torch.tensor([[-1.0, -1.0]])
    with pytest.raises(ValueError, match=message):
        distillation_advantages(torch.tensor(teacher), proximal, torch.tensor(mask), clip=clip)


def test_rollouts_of_uneven_length_get_advantages_on_what_was_written():
    requests = [
        ScoreRequest((1, 2, 3, 4), (False, True, False, True)),
        ScoreRequest((1, 2), (False, True)),
        ScoreRequest((1, 2), (False, False)),
    ]
    teacher = [ScoreOutput((-1.0, -2.0)), ScoreOutput((-0.5,)), ScoreOutput(())]
    proximal = [ScoreOutput((-2.0, -1.5)), ScoreOutput((-0.25,)), ScoreOutput(())]
    advantages = advantages_of_rollouts(requests, teacher=teacher, proximal=proximal)
    assert advantages == [(1.0, -0.5), (-0.25,), ()]
    assert advantages_of_rollouts([], teacher=[], proximal=[]) == []
    with pytest.raises(ValueError, match="1 log-probabilities for 2 tokens"):
        advantages_of_rollouts(requests[:1], teacher=teacher[1:2], proximal=proximal[:1])


@pytest.mark.parametrize("chunk", [1, 12, 1 << 20])
def test_reverse_kl_and_its_gradient_are_those_of_autograd(
    monkeypatch: pytest.MonkeyPatch, chunk: int
):
    monkeypatch.setattr(distillation, "_CHUNK_LOGITS", chunk)
    student = random_logits(3, 4, VOCABULARY, seed=1).requires_grad_()
    expected_student = student.detach().clone().requires_grad_()
    teacher = random_logits(3, 4, VOCABULARY, seed=2).requires_grad_()
    mask = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 1, 0]]).bool()
    weights = random_logits(3, 4, seed=3)
    kl = reverse_kl(student, teacher, mask)
    expected = torch.where(mask, slow_kl(expected_student, teacher), 0.0)
    torch.testing.assert_close(kl, expected, atol=1e-14, rtol=1e-12)
    (kl * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(student.grad, expected_student.grad, atol=1e-13, rtol=1e-11)
    assert torch.autograd.gradcheck(lambda s: reverse_kl(s, teacher, mask), student)


def test_memory_is_bounded_by_the_vocabulary_both_ways(monkeypatch: pytest.MonkeyPatch):
    """A chunk has as many positions as their logits, not their rows or columns, leave room for."""
    vocabulary, room = 50, 120
    sizes: list[int] = []
    whole = distillation._ratios

    def counted(student: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        sizes.append(student.numel())
        return whole(student, *rest)

    monkeypatch.setattr(distillation, "_CHUNK_LOGITS", room)
    monkeypatch.setattr(distillation, "_ratios", counted)
    student = random_logits(3, 4, vocabulary, seed=1).requires_grad_()
    kl = reverse_kl(
        student, random_logits(3, 4, vocabulary, seed=2), torch.ones(3, 4, dtype=torch.bool)
    )
    assert sizes == [2 * vocabulary] * 6
    kl.sum().backward()
    assert sizes == [2 * vocabulary] * 12


def test_logits_of_minus_infinity_and_of_any_size_are_exact():
    infinity = math.inf
    student = torch.tensor(
        [[[0.0, 1.0, -infinity], [1e30, 0.0, 0.0], [-infinity] * 3, [2.0, 2.0, 2.0]]]
    ).requires_grad_()
    teacher = torch.tensor(
        [[[1.0, 0.0, -infinity], [1e30, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, -infinity]]]
    )
    mask = torch.tensor([[True, True, False, True]])
    kl = reverse_kl(student, teacher, mask)
    half = math.tanh(0.5)  # probabilities 1 / (1 + e) and e / (1 + e), swapped
    assert kl[0].tolist() == pytest.approx([half, 0.0, 0.0, infinity])
    torch.where(torch.isfinite(kl), kl, 0.0).sum().backward()
    assert student.grad is not None
    assert torch.isfinite(student.grad).all()
    assert not student.grad[0, 1:].any()
    assert student.grad[0, 0, 2] == 0
    assert student.grad[0, 0, 0] < 0 < student.grad[0, 0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_logits_have_a_reverse_kl_and_a_gradient_of_exactly_zero(dtype: torch.dtype):
    logits = random_logits(2, 3, 50, seed=4).to(dtype)
    student = logits.clone().requires_grad_()
    kl = reverse_kl(student, logits, torch.ones(2, 3, dtype=torch.bool))
    kl.sum().backward()
    assert student.grad is not None
    assert kl.dtype == torch.float32
    assert not kl.any()
    assert not student.grad.any()


def test_shapes_that_do_not_fit_are_refused():
    logits = torch.zeros(2, 3, VOCABULARY)
    mask = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="one shape"):
        reverse_kl(logits, torch.zeros(2, 3, VOCABULARY + 1), mask)
    with pytest.raises(ValueError, match="without the vocabulary"):
        reverse_kl(logits, logits, mask[:, :2])
    with pytest.raises(ValueError, match="must be boolean"):
        reverse_kl(logits, logits, mask.float())


def sequence_logps(table: torch.Tensor, completion: tuple[int, ...]) -> torch.Tensor:
    """Log-probability of each token of a completion; the table has the logits after every prefix,
    numbered in base `VOCABULARY`, one part for each length."""
    rows: list[int] = []
    prefix, start = 0, 0
    for length, token in enumerate(completion):
        rows.append(start + prefix)
        prefix = prefix * VOCABULARY + token
        start += VOCABULARY**length
    return table[rows].log_softmax(-1)[torch.arange(LENGTH), torch.tensor(completion)]


def test_the_mean_sampled_gradient_is_that_of_the_reverse_kl():
    """Over all 125 completions, weighted by their probability; the KL at the prefixes that the
    student writes, whose own probability has no part in the gradient."""
    prefixes = sum(VOCABULARY**length for length in range(LENGTH))
    student = random_logits(prefixes, VOCABULARY, seed=5, scale=1.0).requires_grad_()
    teacher = random_logits(prefixes, VOCABULARY, seed=6, scale=1.0)
    completions = [*itertools.product(range(VOCABULARY), repeat=LENGTH)]
    written = torch.ones(1, LENGTH, dtype=torch.bool)

    sampled = torch.zeros_like(student)
    full = torch.zeros_like(student)
    for completion in completions:
        logps_T = sequence_logps(student, completion)
        probability = logps_T.sum().exp().item()
        teacher_logps_T = sequence_logps(teacher, completion)
        advantages_B_T = distillation_advantages(teacher_logps_T[None], logps_T[None], written)
        loss = -(advantages_B_T[0] * logps_T).sum()
        sampled += probability * torch.autograd.grad(loss, student)[0]

        rows = [0, 1 + completion[0], 6 + completion[0] * VOCABULARY + completion[1]]
        kl_B_T = reverse_kl(student[rows][None], teacher[rows][None], written)
        full += probability * torch.autograd.grad(kl_B_T.sum(), student)[0]
    assert full.abs().max() > 0.01
    torch.testing.assert_close(sampled, full, atol=1e-9, rtol=0)


@pytest.mark.parametrize("outside", ["mask", "truncate"])
def test_the_gradient_of_a_batch_is_that_of_the_formula(outside: str):
    """Two teachers, rows of uneven length with a tool's result in them, and samplers' chances that
    are left out, bounded, or stray so far that their completion is left out."""
    written_B_T = torch.tensor(
        [
            [1, 1, 1, 1, 1, 1],
            [1, 1, 0, 0, 1, 1],  # a tool's result between two of its own messages
            [1, 1, 1, 0, 0, 0],
            [1, 1, 0, 0, 0, 0],
        ],
        dtype=torch.bool,
    )
    rows, columns = written_B_T.shape
    generator = torch.Generator().manual_seed(9)
    ids_B_T = torch.randint(VOCABULARY, (rows, columns), generator=generator)
    student = random_logits(rows, columns, VOCABULARY, seed=10, scale=1.0).requires_grad_()
    teachers = [random_logits(rows, columns, VOCABULARY, seed=seed, scale=1.0) for seed in (11, 12)]
    teacher_of_row = [0, 1, 1, 0]

    def chosen(logits_B_T_V: torch.Tensor) -> torch.Tensor:
        return logits_B_T_V.log_softmax(-1).gather(-1, ids_B_T[..., None]).squeeze(-1)

    current_B_T = chosen(student)
    previous_B_T = current_B_T.detach()
    teacher_B_T = torch.stack(
        [chosen(teachers[teacher])[row] for row, teacher in enumerate(teacher_of_row)]
    )
    # the ratios trainer / sampler
    ratios_B_T = torch.ones(rows, columns, dtype=torch.double)
    ratios_B_T[0, :3] = torch.tensor([0.4, 1.7, 6.0], dtype=torch.double)
    ratios_B_T[1, 4] = 0.9
    ratios_B_T[3] = 30.0  # above the limit of a completion
    sampled_B_T = previous_B_T - ratios_B_T.log()

    limits = ImportanceConfig.model_validate(
        {"token_low": 0.5, "token_high": 5.0, "outside": outside, "sequence_limit": 3.0}
    )
    advantages_B_T = distillation_advantages(teacher_B_T, previous_B_T, written_B_T, clip=1.0)
    weights = importance(previous_B_T, sampled_B_T, written_B_T, limits)
    losses = token_loss(
        current_B_T, previous_B_T, advantages_B_T, weights.weight, GrpoLossConfig(), None
    )
    tokens = written_B_T.sum()
    loss = losses.loss[written_B_T].sum() / tokens
    [gradient] = torch.autograd.grad(loss, student)

    # d(−w · A · exp(log π − log π_prox)) / d logits = −w · A · (one-hot − softmax), on-policy
    expected = torch.zeros_like(student)
    for row in range(3):  # the last row strays
        for column in range(columns):
            if not written_B_T[row, column]:
                continue
            ratio = ratios_B_T[row, column].item()
            if not 0.5 <= ratio <= 5.0:
                ratio = 0.0 if outside == "mask" else min(max(ratio, 0.5), 5.0)
            probabilities = student[row, column].detach().softmax(-1)
            token = int(ids_B_T[row, column])
            teacher_logits = teachers[teacher_of_row[row]][row, column]
            lead = teacher_logits.log_softmax(-1)[token] - probabilities[token].log()
            advantage = min(max(lead.item(), -1.0), 1.0)
            one_hot = torch.eye(VOCABULARY, dtype=torch.double)[token]
            expected[row, column] = -ratio * advantage * (one_hot - probabilities) / tokens
    assert expected[0, 0].any() == expected[0, 2].any() == (outside == "truncate")
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)
