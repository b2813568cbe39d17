"""The loss of a micro-batch, token by token, and what keeps it from trusting stale samples.

    ratio = exp(current − previous)
    loss  = max(−A · ratio, −A · clip(ratio, 1 − low, 1 + high)) · w  +  kl · k3
    w     = exp(previous − sampled), 0 outside the limits, 0 in a completion that strays too far

`previous` is the trainer's own log-probability under the policy that sampled, `sampled` the
sampler's. The sum over tokens is divided by the tokens of the *global* batch (paper, section 3.2;
DAPO, arXiv 2503.14476).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from posttrain.config.grpo import GrpoLossConfig, ImportanceConfig

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Importance:
    """Ratios between trainer and sampler.

    Attributes:
        ratio: `[rows, columns]`, exp(previous − sampled); 0 where not finite, 1 outside the mask.
        weight: `[rows, columns]`, what the loss is multiplied by.
        strayed: `[rows]`, mean over a row's tokens of exp |previous − sampled|; 1 without tokens.
        kept: `[rows]`, False for a row that is left out.
    """

    ratio: Tensor
    weight: Tensor
    strayed: Tensor
    kept: Tensor


def importance(
    previous: Tensor, sampled: Tensor, mask: Tensor, config: ImportanceConfig | None
) -> Importance:
    """Importance sampling, per token and per completion."""
    difference = torch.where(mask, previous - sampled, 0.0)
    ratio = torch.nan_to_num(difference.exp(), nan=0.0, posinf=0.0)
    count = mask.sum(-1).clamp(min=1)
    apart = torch.nan_to_num(difference.abs().exp(), nan=torch.inf)
    strayed = torch.where(mask, apart, 0.0).sum(-1) / count
    strayed = torch.where(mask.any(-1), strayed, 1.0)
    if config is None:
        return Importance(ratio, torch.ones_like(ratio), strayed, torch.ones_like(count).bool())
    bounded = ratio.clamp(config.token_low, config.token_high)
    weight = torch.where(bounded == ratio, ratio, 0.0) if config.outside == "mask" else bounded
    kept = (strayed <= config.sequence_limit) & _near(difference.sum(-1), count, config)
    weight = torch.where(kept[:, None], weight, 0.0)
    return Importance(ratio, weight, strayed, kept)


def _near(difference: Tensor, count: Tensor, config: ImportanceConfig) -> Tensor:
    """`[rows]`: whether a completion's ratios, taken as one, are inside the recipe's bounds, from
    the differences summed over its `count` tokens."""
    geometric = difference / count
    near = torch.isfinite(difference)
    if config.geometric_low is not None:
        near &= geometric >= math.log(config.geometric_low)
    if config.geometric_high is not None:
        near &= geometric <= math.log(config.geometric_high)
    if config.product_high is not None:
        near &= difference <= math.log(config.product_high)
    return near


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """`[rows, columns]`: the loss of each token, whether clipping decided it, k3 (None: no KL)."""

    loss: Tensor
    clipped: Tensor
    kl: Tensor | None


def token_loss(
    current: Tensor,
    previous: Tensor,
    advantages: Tensor,
    weight: Tensor,
    config: GrpoLossConfig,
    reference: Tensor | None,
) -> TokenLoss:
    """The loss of every token; what lies outside the mask is meaningless.

    Args:
        current, previous, reference: log-probabilities `[rows, columns]`, now with graph, under the
            policy that sampled, and under the initial one (None: no KL term).
        advantages: `[rows, columns]`; `[rows, 1]` gives every token of a row the same.
        weight: of `importance`.
    """
    ratio = (current - previous).exp()
    bounded = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    free, held = -advantages * ratio, -advantages * bounded
    loss = torch.maximum(free, held) * weight
    if reference is None:
        return TokenLoss(loss, held > free, None)
    apart = reference - current
    # times the ratio: its gradient is then that of the KL itself (DeepSeek-V3.2, section 3.1)
    kl = (apart.exp() - apart - 1) * ratio
    return TokenLoss(loss + config.kl * kl, held > free, kl)


def ratio_rows(mask: Tensor, weights: Importance) -> list[dict[str, Any] | None]:
    """Stats of each row's ratios; None for a row without tokens."""
    count = mask.sum(-1)
    total = torch.where(mask, weights.ratio, 0.0).sum(-1)
    low = torch.where(mask, weights.ratio, torch.inf).amin(-1)
    high = torch.where(mask, weights.ratio, -torch.inf).amax(-1)
    masked = (mask & (weights.weight == 0)).sum(-1)
    columns = torch.stack([count, total / count.clamp(min=1), low, high, masked, weights.strayed])
    kept = weights.kept.tolist()
    return [
        {"mean": mean, "low": lowest, "high": highest, "masked": int(zeros), "strayed": strayed}
        | {"kept": kept[k]}
        if tokens
        else None
        for k, (tokens, mean, lowest, highest, zeros, strayed) in enumerate(columns.T.tolist())
    ]


class TokenSums:
    """Sums over a step's tokens, in float64, over all processes once drained."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(
        self,
        mask: Tensor,
        entropy: Tensor,
        weights: Importance,
        loss: TokenLoss,
        reverse_kl: Tensor | None = None,
    ) -> None:
        """Add a micro-batch; tensors `[rows, columns]`."""
        rows = mask.any(-1)
        columns = {
            "tokens": mask,
            "entropy": entropy * mask,
            "ratio": weights.ratio * mask,
            "masked_tokens": mask & weights.kept[:, None] & (weights.weight == 0),
            "clipped": loss.clipped & mask,
            "rows": rows,
            "masked_rows": rows & ~weights.kept,
            "strayed": weights.strayed * rows,
            # of ratios that are finite
            "difference": torch.where(mask & (weights.ratio > 0), weights.ratio.log().abs(), 0.0),
        }
        if loss.kl is not None:
            columns["kl"] = loss.kl * mask
        if reverse_kl is not None:
            columns["reverse_kl"] = reverse_kl * mask
        for name, column in columns.items():
            self._sums[name] = self._sums.get(name, 0) + column.detach().double().sum()

    def drain(self, accelerator: Any) -> dict[str, float]:
        """The means over all processes; starts anew. Every process must call it."""
        sums = accelerator.reduce(torch.stack([*self._sums.values()]), "sum").tolist()
        total = dict(zip(self._sums, sums, strict=True))
        self._sums = {}
        tokens, rows = max(total["tokens"], 1.0), max(total["rows"], 1.0)
        means = {
            "loss_tokens": total["tokens"],
            "importance": total["ratio"] / tokens,
            "logp_difference": total["difference"] / tokens,
            "masked_tokens": total["masked_tokens"] / tokens,
            "masked_completions": total["masked_rows"] / rows,
            "strayed": total["strayed"] / rows,
            "clipped": total["clipped"] / tokens,
        }
        if total["tokens"]:
            means["entropy"] = total["entropy"] / tokens
        for name in ("kl", "reverse_kl"):
            if name in total:
                means[name] = total[name] / tokens
        return means
