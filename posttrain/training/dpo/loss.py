"""The DPO loss of a micro-batch, scaled so that micro-batches and processes add up to one batch.

L = w_p · mean_pairs[−log σ(β(r_c − r_r))] + w_s · SFT(chosen) + w_k · KL,  r = log π − log π_ref

(Rafailov et al. 2023; weights and β as in the Nemotron 3 Nano report, Appendix C.) Each log π is a
sum over the tokens that the model sampled, in nats, float64.

The log's figures are means over a step's pairs, over all processes, and by category:

{"preference_loss": 0.6931, "sft_sum": 24.1, "sft_mean": 0.40, "margin": 0.0, "accuracy": 0.5,
 "chosen_logp": -24.1, "chosen_change": 0.0, "chosen_change_per_token": 0.0, …,
 "no_tools/margin": 0.0, "no_tools/accuracy": 0.5, "no_tools/chosen_change": 0.0, …}
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from posttrain.config.dpo import LossConfig
from posttrain.records import CATEGORIES
from posttrain.tokens.encode import IGNORED

# one column a quantity; every one a sum over pairs
SUMS = (
    "pairs", "preference", "sft", "kl", "margin", "right", "chosen", "rejected",
    "chosen_change", "rejected_change", "chosen_tokens", "rejected_tokens",
)  # fmt: skip
TIE = 1e-6
OUTWEIGHED = 100  # times the preference term, from which the SFT term is warned of; ours


@dataclass(frozen=True, slots=True)
class ScoredPairs:
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


def describe_loss(loss: LossConfig) -> str:
    """One line for the plan."""
    kl = f" + {loss.kl_weight:g} × KL(reference ‖ policy) on chosen" if loss.kl_weight else ""
    return (
        f"{loss.preference_weight:g} × −log σ({loss.beta:g} × margin) + {loss.sft_weight:g} × SFT "
        f"on chosen ({loss.sft_form} of its tokens){kl}"
    )


def sft_outweighs(loss: LossConfig, *, chosen_sum: float, chosen_mean: float) -> str | None:
    """A warning where training begins as SFT, the preference being a hundredth of the loss or less.

    Args:
        chosen_sum, chosen_mean: the SFT term of either form before training, in nats.
    """
    ratio = loss.sft_weight * (chosen_sum if loss.sft_form == "sum" else chosen_mean)
    ratio /= loss.preference_weight * math.log(2)
    if ratio < OUTWEIGHED:
        return None
    ways = [f"loss.sft_weight={loss.sft_weight / ratio:.1g} weighs both alike"]
    if loss.sft_form == "sum":
        ways.insert(0, f"loss.sft_form=mean makes it {ratio * chosen_mean / chosen_sum:,.2g} times")
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


class PairMetrics:
    """Sums since the last drain, by category. `kl`: whether there is a KL term to show."""

    def __init__(self, *, kl: bool) -> None:
        self._kl = kl
        self._sums = torch.zeros(len(CATEGORIES), len(SUMS), dtype=torch.float64)

    def add(
        self,
        terms: Terms,
        scored: ScoredPairs,
        *,
        reference: tuple[torch.Tensor, torch.Tensor],
        counts: tuple[torch.Tensor, torch.Tensor],
        category: torch.Tensor,
    ) -> None:
        """Add the pairs of one micro-batch; `counts` are their sampled tokens, each [n]."""
        ones = torch.ones_like(terms.margin)
        columns = [
            ones,
            terms.preference,
            terms.sft,
            torch.zeros_like(ones) if terms.kl is None else terms.kl,
            terms.margin,
            # a tie is half right; before the first step all are ties, but for rounding
            (terms.margin > TIE).double() + 0.5 * (terms.margin.abs() <= TIE).double(),
            scored.chosen,
            scored.rejected,
            scored.chosen - reference[0],
            scored.rejected - reference[1],
            counts[0],
            counts[1],
        ]
        rows = torch.stack([column.detach().double() for column in columns], dim=1)
        self._sums = self._sums.to(rows.device).index_add(0, category, rows)

    def drain(self, accelerator: Any) -> dict[str, float]:
        """The means over all processes; starts anew. Every process must call it."""
        means = self.peek(accelerator)
        self._sums = torch.zeros_like(self._sums)
        return means

    def peek(self, accelerator: Any) -> dict[str, float]:
        """As `drain`, but nothing starts anew."""
        by_category = accelerator.reduce(self._sums.clone(), "sum").cpu()
        named = [(name, _named(row)) for name, row in zip(CATEGORIES, by_category, strict=True)]
        total = _named(by_category.sum(0))
        means = _means(total)
        if self._kl:
            means["kl_sum"] = total["kl"] / total["pairs"]
            means["kl_mean"] = total["kl"] / total["chosen_tokens"]
        for name, sums in named:
            if sums["pairs"]:
                means |= {
                    f"{name}/{key}": _means(sums)[key]
                    for key in ("margin", "accuracy", "chosen_change", "rejected_change")
                }
        return means


def _named(row: torch.Tensor) -> dict[str, float]:
    return {name: float(value) for name, value in zip(SUMS, row.tolist(), strict=True)}


def _means(sums: dict[str, float]) -> dict[str, float]:
    pairs = sums["pairs"]
    means = {
        "preference_loss": sums["preference"] / pairs,
        "sft_sum": sums["sft"] / pairs,
        "sft_mean": sums["sft"] / sums["chosen_tokens"],
        "margin": sums["margin"] / pairs,
        "accuracy": sums["right"] / pairs,
        "chosen_logp": sums["chosen"] / pairs,
        "rejected_logp": sums["rejected"] / pairs,
    }
    for side in ("chosen", "rejected"):
        change = sums[f"{side}_change"]
        means[f"{side}_change"] = change / pairs
        means[f"{side}_change_per_token"] = change / sums[f"{side}_tokens"]
    return means
