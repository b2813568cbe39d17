"""The DPO loss of a micro-batch, scaled so that micro-batches and processes add up to one batch.

L = w_p · mean_pairs[−log σ(β(r_c − r_r))] + w_s · SFT(chosen) + w_k · KL,  r = log π − log π_ref

(Rafailov et al. 2023; weights and β as in the Nemotron 3 Nano report, Appendix C.) Each log π is a
sum over the tokens that the model sampled, in nats, float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from posttrain.config.dpo import LossConfig


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probabilities of n pairs, each [n]; and of all sampled chosen tokens in order, [t]."""

    chosen: torch.Tensor
    rejected: torch.Tensor
    chosen_tokens: torch.Tensor


@dataclass(frozen=True, slots=True)
class Terms:
    """What each pair adds, each [n]: preference loss, SFT loss (the sum over its chosen tokens),
    the KL term (likewise a sum; None without one) and β(r_c − r_r)."""

    preference: torch.Tensor
    sft: torch.Tensor
    kl: torch.Tensor | None
    margin: torch.Tensor


def score_pairs(
    log_probs: torch.Tensor, labels: torch.Tensor, segment: torch.Tensor, *, pairs: int
) -> Scored:
    """Gather token log-probabilities by pair and side.

    Args:
        log_probs: [rows, width - 1], of the labels from the second column on.
        labels: [rows, width], -100 where nothing is trained.
        segment: [rows, width], 2 × pair + side.
        pairs: in the micro-batch.
    """
    trained = labels[:, 1:] != -100
    at, values = segment[:, 1:][trained], log_probs[trained].double()
    sums = values.new_zeros(2 * pairs).index_add(0, at, values)
    chosen = at % 2 == 0
    # rows may hold pairs in any order; tokens of one pair always stand in theirs
    order = at[chosen].argsort(stable=True)
    return Scored(sums[0::2], sums[1::2], values[chosen][order])


def pair_terms(
    scored: Scored,
    *,
    reference: tuple[torch.Tensor, torch.Tensor],
    loss: LossConfig,
    reference_tokens: torch.Tensor | None = None,
    chosen_counts: torch.Tensor | None = None,
) -> Terms:
    """The terms of each pair.

    Args:
        reference: log-probabilities of chosen and rejected under the reference, each [n].
        reference_tokens: of the chosen tokens, [t]; needed where `loss.kl_weight` is set.
        chosen_counts: sampled tokens of each chosen, [n]; likewise.
    """
    chosen_change = scored.chosen - reference[0]
    rejected_change = scored.rejected - reference[1]
    margin = loss.beta * (chosen_change - rejected_change)
    kl = None
    if loss.kl_weight:
        assert reference_tokens is not None
        assert chosen_counts is not None
        # the chosen were sampled from the reference: an unbiased, non-negative estimate of
        # KL(reference ‖ policy) (Schulman's k3)
        log_ratio = scored.chosen_tokens - reference_tokens
        token = log_ratio.exp() - 1 - log_ratio
        pair = torch.arange(len(chosen_counts), device=token.device)
        at = pair.repeat_interleave(chosen_counts)
        kl = token.new_zeros(len(chosen_counts)).index_add(0, at, token)
    return Terms(preference=-F.logsigmoid(margin), sft=-scored.chosen, kl=kl, margin=margin)


def total_loss(terms: Terms, loss: LossConfig, *, mean_scale: float) -> torch.Tensor:
    """The micro-batch's loss; the mean over equal micro-batches is the loss of the batch.

    Args:
        mean_scale: turns a sum over the micro-batch's chosen tokens into its part of the mean over
            the batch's: micro-batches × processes ÷ chosen tokens of the batch.
    """
    total = loss.preference_weight * terms.preference.mean()
    if loss.sft_weight:
        total = total + loss.sft_weight * _normalised(terms.sft, loss, mean_scale)
    if terms.kl is not None:
        total = total + loss.kl_weight * _normalised(terms.kl, loss, mean_scale)
    return total


def _normalised(sums: torch.Tensor, loss: LossConfig, mean_scale: float) -> torch.Tensor:
    return sums.mean() if loss.sft_form == "sum" else sums.sum() * mean_scale
