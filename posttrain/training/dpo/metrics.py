"""Means over a step's pairs, over all processes, and by category.

{"preference_loss": 0.6931, "sft_sum": 24.1, "sft_mean": 0.40, "margin": 0.0, "accuracy": 0.5,
 "chosen_logp": -24.1, "chosen_change": 0.0, "chosen_change_per_token": 0.0, …,
 "no_tools/margin": 0.0, "no_tools/accuracy": 0.5, "no_tools/chosen_change": 0.0, …}
"""

from __future__ import annotations

from typing import Any

import torch

from posttrain.pairs import CATEGORIES
from posttrain.training.dpo.loss import Scored, Terms

# one column a quantity; every one a sum over pairs
SUMS = (
    "pairs", "preference", "sft", "kl", "margin", "right", "chosen", "rejected",
    "chosen_change", "rejected_change", "chosen_tokens", "rejected_tokens",
)  # fmt: skip
TIE = 1e-6


class PairMetrics:
    """Sums since the last drain, by category. `kl`: whether there is a KL term to show."""

    def __init__(self, *, kl: bool) -> None:
        self._kl = kl
        self._sums = torch.zeros(len(CATEGORIES), len(SUMS), dtype=torch.float64)

    def add(
        self,
        terms: Terms,
        scored: Scored,
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
