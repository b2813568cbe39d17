"""The DPO loss of a micro-batch, scaled so that micro-batches and processes add up to one batch.

L = w_p · mean_pairs[−log σ(β(r_c − r_r))] + w_s · SFT(chosen) + w_k · KL,  r = log π − log π_ref

(Rafailov et al. 2023; weights and β as in the Nemotron 3 Nano report, Appendix C.) Each log π is a
sum over the tokens that the model sampled, in nats, float64. The log's figures are means over a
step's pairs, over all processes, and by category."""

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

# one column a quantity; every one a sum over pairs
SUMS: tuple[str, ...] = (
    "pairs", "preference", "sft", "kl", "margin", "right", "chosen", "rejected",
    "chosen_change", "rejected_change", "chosen_tokens", "rejected_tokens",
)  # fmt: skip
OF_CATEGORY = ("margin", "accuracy", "chosen_change", "rejected_change")
TIE = 1e-6
OUTWEIGHED = 100  # times the preference term, from which the SFT term is warned of; ours


@dataclass(frozen=True, slots=True)
class ScoredPairs:
    """Log-probabilities of n pairs, each [n]; and of all sampled chosen tokens in order, [t]."""

    chosen: torch.Tensor
    rejected: torch.Tensor
    chosen_tokens: torch.Tensor


def describe_loss(loss: LossConfig) -> str:
    """One line for the plan."""
    kl = f" + {loss.kl_weight:g} × KL(reference ‖ policy) on chosen" if loss.kl_weight else ""
    return (
        f"{loss.preference_weight:g} × −log σ({loss.beta:g} × margin) + {loss.sft_weight:g} × SFT "
        f"on chosen ({loss.sft_form} of its tokens){kl}"
    )


def sft_outweighs(loss: LossConfig, sft: Mapping[SftForm, float]) -> str | None:
    """A warning where training begins as SFT, the preference being a hundredth of the loss or less;
    `sft`: the term of either form before training, in nats."""
    ratio = loss.sft_weight * sft[loss.sft_form] / (loss.preference_weight * math.log(2))
    if ratio < OUTWEIGHED:
        return None
    ways = [f"loss.sft_weight={loss.sft_weight / ratio:.1g} weighs both alike"]
    if loss.sft_form == "sum":
        ways.insert(0, f"loss.sft_form=mean makes it {ratio * sft['mean'] / sft['sum']:,.2g} times")
    return f"the SFT term begins at {ratio:,.0f} times the preference term: {', '.join(ways)}"


def score_pairs(
    log_probs: torch.Tensor, labels: torch.Tensor, segment: torch.Tensor, *, pairs: int
) -> ScoredPairs:
    """Gather token log-probabilities by pair and side.

    Args:
        log_probs: [rows, width - 1], of the labels from the second column on.
        labels: [rows, width], -100 where nothing is trained.
        segment: [rows, width], 2 × pair + side.
        pairs: in the micro-batch.
    """
    trained = labels[:, 1:] != IGNORED
    at, values = segment[:, 1:][trained], log_probs[trained].double()
    sums = values.new_zeros(2 * pairs).index_add(0, at, values)
    chosen = at % 2 == 0
    # rows may hold pairs in any order; tokens of one pair always stand in theirs
    order = at[chosen].argsort(stable=True)
    return ScoredPairs(sums[0::2], sums[1::2], values[chosen][order])


def pair_terms(
    scored: ScoredPairs,
    *,
    reference: tuple[torch.Tensor, torch.Tensor],
    loss: LossConfig,
    reference_tokens: torch.Tensor | None = None,
    chosen_counts: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """What each pair adds, each [n], under the names of `SUMS`.

    Args:
        reference: log-probabilities of chosen and rejected under the reference, each [n].
        reference_tokens: of the chosen tokens, [t]; needed where `loss.kl_weight` is set.
        chosen_counts: sampled tokens of each chosen, [n]; likewise.

    Returns:
        The preference loss, the SFT loss (the sum over the chosen tokens), with a weight the KL
        term (likewise a sum), β(r_c − r_r), and log-probabilities with their change.
    """
    chosen_change = scored.chosen - reference[0]
    rejected_change = scored.rejected - reference[1]
    margin = loss.beta * (chosen_change - rejected_change)
    terms = {
        "preference": -F.logsigmoid(margin),
        "sft": -scored.chosen,
        "margin": margin,
        "chosen": scored.chosen,
        "rejected": scored.rejected,
        "chosen_change": chosen_change,
        "rejected_change": rejected_change,
    }
    if loss.kl_weight:
        assert reference_tokens is not None
        assert chosen_counts is not None
        # the chosen were sampled from the reference: an unbiased, non-negative estimate of
        # KL(reference ‖ policy) (Schulman's k3)
        log_ratio = scored.chosen_tokens - reference_tokens
        token = log_ratio.exp() - 1 - log_ratio
        pair = torch.arange(len(chosen_counts), device=token.device)
        at = pair.repeat_interleave(chosen_counts)
        terms["kl"] = token.new_zeros(len(chosen_counts)).index_add(0, at, token)
    return terms


def total_loss(
    terms: dict[str, torch.Tensor], loss: LossConfig, *, mean_scale: float
) -> torch.Tensor:
    """The micro-batch's loss; the mean over equal micro-batches is the loss of the batch.

    Args:
        mean_scale: turns a sum over the micro-batch's chosen tokens into its part of the mean over
            the batch's: micro-batches × processes ÷ chosen tokens of the batch.
    """
    total = loss.preference_weight * terms["preference"].mean()
    for name, weight in (("sft", loss.sft_weight), ("kl", loss.kl_weight)):
        if weight:
            sums = terms[name]
            mean = sums.mean() if loss.sft_form == "sum" else sums.sum() * mean_scale
            total = total + weight * mean
    return total


class PairMetrics:
    """Sums over pairs by category, `[categories, SUMS]`. `kl`: whether there is such a term."""

    def __init__(self, *, kl: bool) -> None:
        self._kl = kl
        self._sums = torch.zeros(len(CATEGORIES), len(SUMS), dtype=torch.float64)

    def reset(self) -> None:
        """Start anew."""
        self._sums = torch.zeros_like(self._sums)

    def add(
        self,
        terms: dict[str, torch.Tensor],
        *,
        counts: tuple[torch.Tensor, torch.Tensor],
        category: torch.Tensor,
    ) -> None:
        """Add the pairs of one micro-batch; `counts` are their sampled tokens, each [n]."""
        margin = terms["margin"]
        columns = {
            "pairs": torch.ones_like(margin),
            "kl": torch.zeros_like(margin),
            **terms,
            # a tie is half right; before the first step all are ties, but for rounding
            "right": (margin > TIE).double() + 0.5 * (margin.abs() <= TIE).double(),
            "chosen_tokens": counts[0],
            "rejected_tokens": counts[1],
        }
        rows = torch.stack([columns[name].detach().double() for name in SUMS], dim=1)
        self._sums = self._sums.to(rows.device).index_add(0, category, rows)

    def means(self, accelerator: Any) -> dict[str, float]:
        """The means over all processes; every process must call it."""
        by_category = accelerator.reduce(self._sums.clone(), "sum").cpu()
        means = _means(by_category.sum(0))
        if not self._kl:
            del means["kl_sum"], means["kl_mean"]
        for name, sums in zip(CATEGORIES, by_category, strict=True):
            if sums[0]:
                own = _means(sums)
                means |= {f"{name}/{key}": own[key] for key in OF_CATEGORY}
        return means


def _means(row: torch.Tensor) -> dict[str, float]:
    sums = dict(zip(SUMS, row.tolist(), strict=True))
    pairs = sums["pairs"]
    means = {
        "preference_loss": sums["preference"] / pairs,
        "margin": sums["margin"] / pairs,
        "accuracy": sums["right"] / pairs,
    }
    for term in ("sft", "kl"):
        means[f"{term}_sum"] = sums[term] / pairs
        means[f"{term}_mean"] = sums[term] / sums["chosen_tokens"]
    for side in ("chosen", "rejected"):
        change = sums[f"{side}_change"]
        means[f"{side}_logp"] = sums[side] / pairs
        means[f"{side}_change"] = change / pairs
        means[f"{side}_change_per_token"] = change / sums[f"{side}_tokens"]
    return means
