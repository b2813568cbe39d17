"""The DPO loss of a micro-batch, scaled so that micro-batches and processes add up to one batch.

L = w_p · mean_pairs[−log σ(β(r_c − r_r))] + w_s · SFT(chosen),  r = log π − log π_ref

(Rafailov et al. 2023; weights and β as in the Nemotron 3 Nano report, Appendix C.) Each log π is a
sum over the tokens that the model sampled, in nats, float64. Metrics are means over the pairs of a
step on all processes, in all and by category.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from posttrain.config.dpo import LossConfig, SftForm
from posttrain.records import CATEGORIES
from posttrain.tokens.encode import IGNORED

# quantities that are summed over pairs, a column each
SUMS: tuple[str, ...] = (
    "pairs",
    "preference",
    "sft",
    "margin",
    "right",
    "chosen",
    "rejected",
    "chosen_change",
    "rejected_change",
    "chosen_tokens",
    "rejected_tokens",
)
CATEGORY_METRICS = ("margin", "accuracy", "chosen_change", "rejected_change")
# margins below it are rounding errors of a tie
TIE = 1e-6
# ratio of the SFT term to the preference term from which a warning is printed; ours
OUTWEIGHED = 100


@dataclass(frozen=True, slots=True)
class ScoredPairs:
    """Log-probabilities of n pairs.

    Attributes:
        chosen: `[n]`, sum over the sampled tokens of each chosen.
        rejected: `[n]`, likewise for each rejected.
    """

    chosen: torch.Tensor
    rejected: torch.Tensor


def describe_loss(loss: LossConfig) -> str:
    """Formula of the loss for the plan and the card."""
    return (
        f"{loss.preference_weight:g} × −log σ({loss.beta:g} × margin) + {loss.sft_weight:g} × SFT "
        f"on chosen ({loss.sft_form} of its tokens)"
    )


def sft_outweighs(loss: LossConfig, sft: Mapping[SftForm, float]) -> str | None:
    """Warning where training would begin as SFT, with hardly any preference in its loss.

    Args:
        sft: the SFT term in either form before training, in nats.
    """
    # a preference loss begins at ln 2
    ratio = loss.sft_weight * sft[loss.sft_form] / (loss.preference_weight * math.log(2))
    if ratio < OUTWEIGHED:
        return None
    remedies: list[str] = []
    if loss.sft_form == "sum":
        mean_ratio = ratio * sft["mean"] / sft["sum"]
        remedies.append(f"loss.sft_form=mean makes it {mean_ratio:,.2g} times")
    remedies.append(f"loss.sft_weight={loss.sft_weight / ratio:.1g} weighs both alike")
    return f"the SFT term begins at {ratio:,.0f} times the preference term: {', '.join(remedies)}"


def score_pairs(
    log_probs: torch.Tensor, labels: torch.Tensor, segment: torch.Tensor, *, pairs: int
) -> ScoredPairs:
    """Sum token log-probabilities by pair and side.

    Args:
        log_probs: `[rows, width - 1]`, of the labels from the second column on.
        labels: `[rows, width]`, -100 where nothing is trained.
        segment: `[rows, width]`, 2 × pair + side.
        pairs: number of pairs in the micro-batch.
    """
    trained = labels[:, 1:] != IGNORED
    segments_T = segment[:, 1:][trained]
    logps_T = log_probs[trained].double()
    sums = logps_T.new_zeros(2 * pairs).index_add(0, segments_T, logps_T)
    return ScoredPairs(chosen=sums[0::2], rejected=sums[1::2])


def pair_terms(
    scored: ScoredPairs, *, reference: tuple[torch.Tensor, torch.Tensor], loss: LossConfig
) -> dict[str, torch.Tensor]:
    """Terms and metrics of each pair, `[n]` each, under the names of `SUMS`.

    Args:
        reference: log-probabilities of chosen and rejected under the reference, `[n]` each.

    Returns:
        The preference loss, the SFT loss (a sum over the chosen tokens), the margin β(r_c − r_r),
        and log-probabilities with their change.
    """
    reference_chosen, reference_rejected = reference
    chosen_change = scored.chosen - reference_chosen
    rejected_change = scored.rejected - reference_rejected
    margin = loss.beta * (chosen_change - rejected_change)
    return {
        "preference": -F.logsigmoid(margin),
        "sft": -scored.chosen,
        "margin": margin,
        "chosen": scored.chosen,
        "rejected": scored.rejected,
        "chosen_change": chosen_change,
        "rejected_change": rejected_change,
    }


def total_loss(
    terms: dict[str, torch.Tensor], loss: LossConfig, *, mean_scale: float
) -> torch.Tensor:
    """Loss of a micro-batch. Its mean over equal micro-batches is the loss of the batch.

    Args:
        mean_scale: micro-batches × processes ÷ chosen tokens of the batch. It turns a sum over the
            chosen tokens of the micro-batch into its part of the mean over those of the batch.
    """
    total = loss.preference_weight * terms["preference"].mean()
    if loss.sft_weight:
        sft_n = terms["sft"]
        sft = sft_n.mean() if loss.sft_form == "sum" else sft_n.sum() * mean_scale
        total = total + loss.sft_weight * sft
    return total


class PairMetrics:
    """Metrics of the pairs since the last reset, in all and by category."""

    def __init__(self) -> None:
        # [categories, SUMS]
        self._sums = torch.zeros(len(CATEGORIES), len(SUMS), dtype=torch.float64)

    def reset(self) -> None:
        """Set all sums to 0."""
        self._sums = torch.zeros_like(self._sums)

    def add(
        self,
        terms: dict[str, torch.Tensor],
        *,
        counts: tuple[torch.Tensor, torch.Tensor],
        category: torch.Tensor,
    ) -> None:
        """Add the pairs of one micro-batch.

        Args:
            terms: of `pair_terms`.
            counts: sampled tokens of chosen and rejected, `[n]` each.
            category: index of the category of each pair, `[n]`.
        """
        margin = terms["margin"]
        chosen_tokens, rejected_tokens = counts
        columns = {
            "pairs": torch.ones_like(margin),
            **terms,
            # a tie is half right; before the first step all are ties, but for rounding
            "right": (margin > TIE).double() + 0.5 * (margin.abs() <= TIE).double(),
            "chosen_tokens": chosen_tokens,
            "rejected_tokens": rejected_tokens,
        }
        rows = torch.stack([columns[name].detach().double() for name in SUMS], dim=1)
        self._sums = self._sums.to(rows.device).index_add(0, category, rows)

    def means(self, accelerator: Any) -> dict[str, float]:
        """Means over the pairs of all processes. Every process must call it."""
        sums_by_category = accelerator.reduce(self._sums.clone(), "sum").cpu()
        means = _means(sums_by_category.sum(0))
        for category, sums in zip(CATEGORIES, sums_by_category, strict=True):
            has_pairs = bool(sums[SUMS.index("pairs")])
            if has_pairs:
                category_means = _means(sums)
                for name in CATEGORY_METRICS:
                    means[f"{category}/{name}"] = category_means[name]
        return means


def _means(values: torch.Tensor) -> dict[str, float]:
    """Means over pairs, and over tokens where the name tells so, from the sums `[SUMS]`."""
    sums = dict(zip(SUMS, values.tolist(), strict=True))
    pairs = sums["pairs"]
    means = {
        "preference_loss": sums["preference"] / pairs,
        "margin": sums["margin"] / pairs,
        "accuracy": sums["right"] / pairs,
        "sft_sum": sums["sft"] / pairs,
        "sft_mean": sums["sft"] / sums["chosen_tokens"],
    }
    for side in ("chosen", "rejected"):
        change = sums[f"{side}_change"]
        means[f"{side}_logp"] = sums[side] / pairs
        means[f"{side}_change"] = change / pairs
        means[f"{side}_change_per_token"] = change / sums[f"{side}_tokens"]
    return means
