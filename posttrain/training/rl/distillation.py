"""Formulas of on-policy distillation, each a function of tensors that stands alone.

    A_t  = log π_T(y_t | s_t) − log π_prox(y_t | s_t)             distillation_advantages
    KL_t = Σ_v π_θ(v | s_t) · (log π_θ(v | s_t) − log π_T(v | s_t))   reverse_kl

Over the tokens that the student samples at a prefix, the mean of −A_t is KL_t and the mean of
−A_t · ∇ log π_θ(y_t | s_t) its gradient (Nemotron 3 Ultra, equations 1 and 2). Neither credits a
token with the prefixes that it leads to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from posttrain.sampling.sampler import ScoreOutput, ScoreRequest

Tensor = torch.Tensor
# logits of a chunk: a few buffers of 16 MiB in float32, whatever the batch and the vocabulary
_CHUNK_LOGITS = 1 << 22


def distillation_advantages(
    teacher: Tensor, proximal: Tensor, mask: Tensor, *, clip: float | None = None
) -> Tensor:
    """Advantage of each token that the student wrote, without gradient.

    Args:
        teacher: log-probabilities of the tokens under the teacher, `[rows, columns]`, in nats.
        proximal: log-probabilities under the student before the step, of the same shape.
        mask: boolean, True where the student wrote the token.
        clip: largest absolute advantage; None: no bound.

    Returns:
        `[rows, columns]`, teacher − proximal inside the mask and 0 outside, whatever stands there.

    Raises:
        ValueError: shapes differ, the mask is not boolean, clip is not positive, or a
            log-probability inside the mask is not finite.
    """
    if not teacher.shape == proximal.shape == mask.shape:
        raise ValueError(
            f"teacher {tuple(teacher.shape)}, proximal {tuple(proximal.shape)} and mask "
            f"{tuple(mask.shape)} must have one shape"
        )
    _check_mask(mask)
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be above 0, not {clip!r}")
    difference = teacher.detach() - proximal.detach()
    advantages = torch.where(mask, difference, torch.zeros_like(difference))
    if not torch.isfinite(advantages).all():
        raise ValueError("a log-probability inside the mask is not finite: mask its row out")
    return advantages if clip is None else advantages.clamp(-clip, clip)


def advantages_of_rollouts(
    requests: Sequence[ScoreRequest],
    *,
    teacher: Sequence[ScoreOutput],
    proximal: Sequence[ScoreOutput],
) -> list[tuple[float, ...]]:
    """Advantages of the masked tokens of each request, in order.

    Raises:
        ValueError: as `distillation_advantages`, or an output does not have a number for each
            masked token.
    """
    if not requests:
        return []
    columns = max(len(request.ids) for request in requests)
    mask_B_T = torch.zeros(len(requests), columns, dtype=torch.bool)
    # float64 holds the difference of two float32 numbers exactly
    teacher_B_T = torch.zeros(len(requests), columns, dtype=torch.double)
    proximal_B_T = torch.zeros_like(teacher_B_T)
    for row, request in enumerate(requests):
        mask_B_T[row, : len(request.mask)] = torch.tensor(request.mask)
        written_T = mask_B_T[row]
        for logps_B_T, output in ((teacher_B_T, teacher[row]), (proximal_B_T, proximal[row])):
            if len(output.logps) != int(written_T.sum()):
                raise ValueError(
                    f"{len(output.logps)} log-probabilities for {int(written_T.sum())} tokens"
                )
            logps_B_T[row, written_T] = torch.tensor(output.logps, dtype=torch.double)
    advantages_B_T = distillation_advantages(teacher_B_T, proximal_B_T, mask_B_T)
    return [
        tuple(row_T[written_T].tolist())
        for row_T, written_T in zip(advantages_B_T, mask_B_T, strict=True)
    ]


def reverse_kl(student_logits: Tensor, teacher_logits: Tensor, mask: Tensor) -> Tensor:
    """Exact KL(student ‖ teacher) at each position inside the mask, with gradient to the student.

    Computed in chunks of positions, forwards and backwards: beside the arguments, the result and
    the gradient, memory does not grow with rows, columns or vocabulary. Logits may be −inf (a token
    without probability) and of any size.

    Args:
        student_logits: `[rows, columns, vocabulary]`.
        teacher_logits: of the same shape; it gets no gradient.
        mask: boolean `[rows, columns]`; the result is 0 outside, without a look at the logits.

    Returns:
        `[rows, columns]` in nats, float64 where either argument is, else float32. inf where the
        student gives probability to a token to which the teacher gives none.

    Raises:
        ValueError: shapes differ, or the mask is not boolean.
    """
    if student_logits.shape != teacher_logits.shape or student_logits.shape[:-1] != mask.shape:
        raise ValueError(
            f"student {tuple(student_logits.shape)} and teacher {tuple(teacher_logits.shape)} must "
            f"have one shape, and mask {tuple(mask.shape)} that shape without the vocabulary"
        )
    _check_mask(mask)
    kl: Any = _ReverseKl.apply(student_logits, teacher_logits, mask)
    return kl


def _check_mask(mask: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean, not {mask.dtype}")


class _ReverseKl(torch.autograd.Function):
    """Forward and backward pass of `reverse_kl`.

    Autograd of the formula would keep several tensors of the logits' size; here each chunk is
    computed again on the way back.
    """

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
        dtype = torch.promote_types(torch.float32, student.dtype)
        dtype = torch.promote_types(dtype, teacher.dtype)
        kl = torch.zeros(mask.shape, dtype=dtype, device=student.device)
        for positions in _chunks(mask, student.shape[-1]):
            probs_N_V, log_ratio_N_V = _ratios(student[positions], teacher[positions], dtype)
            kl[positions] = (probs_N_V * log_ratio_N_V).sum(-1)
        ctx.save_for_backward(student, teacher, mask, kl)
        return kl

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator hides names
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, None, None]:
        (grad,) = grad_outputs
        student, teacher, mask, kl = ctx.saved_tensors
        grad_student = torch.zeros_like(student)
        # a position without a share in the loss gets no gradient, even where its KL is infinite
        for positions in _chunks(mask & (grad != 0), student.shape[-1]):
            probs_N_V, log_ratio_N_V = _ratios(student[positions], teacher[positions], kl.dtype)
            # d KL / d logit_v = π_θ(v) · (log-ratio of v − KL)
            slope_N_V = probs_N_V * (log_ratio_N_V - kl[positions][:, None])
            grad_student[positions] = (grad[positions][:, None] * slope_N_V).to(student.dtype)
        return grad_student, None, None


def _chunks(mask: Tensor, vocabulary: int) -> Iterator[tuple[Tensor, ...]]:
    """Indices of the positions inside the mask, so many at a time that their logits fit a chunk."""
    size = max(1, _CHUNK_LOGITS // vocabulary)
    for positions in mask.nonzero().split(size):
        if len(positions):
            yield positions.unbind(-1)


def _ratios(student: Tensor, teacher: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Probabilities of the student, and the log-ratio student / teacher, `[positions, vocabulary]`.

    The ratio is 0 where the student gives no probability, so that its product is 0 too.
    """
    student_logps_N_V = student.to(dtype).log_softmax(-1)
    teacher_logps_N_V = teacher.to(dtype).log_softmax(-1)
    possible_N_V = student_logps_N_V > -torch.inf
    log_ratio_N_V = torch.where(possible_N_V, student_logps_N_V - teacher_logps_N_V, 0.0)
    return student_logps_N_V.exp(), log_ratio_N_V
