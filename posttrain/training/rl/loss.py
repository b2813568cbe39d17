"""Loss of each token of a micro-batch, and the importance weights that bound stale samples.

    ratio = exp(current − previous)
    loss  = max(−A · ratio, −A · clip(ratio, 1 − low, 1 + high)) · w  +  kl · k3
    w     = exp(previous − sampled), 0 outside the limits, 0 in a completion that strays too far

`previous` is the trainer's own log-probability under the policy that sampled, `sampled` the
sampler's. The sum over tokens is divided by the tokens of the *global* batch (paper, section 3.2;
DAPO, arXiv 2503.14476).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from posttrain.config.grpo import GrpoLossConfig, ImportanceConfig

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Importance:
    """Importance ratios between trainer and sampler.

    Attributes:
        ratio: `[rows, columns]`, exp(previous − sampled); 0 where not finite, 1 outside the mask.
        weight: `[rows, columns]`, factor of each token's loss.
        strayed: `[rows]`, mean over a row's tokens of exp |previous − sampled|; 1 without tokens.
        trusted: `[rows]`, False for a row that the limits of a completion leave out of the loss.
    """

    ratio: Tensor
    weight: Tensor
    strayed: Tensor
    trusted: Tensor


def importance(
    previous: Tensor, sampled: Tensor, mask: Tensor, config: ImportanceConfig | None
) -> Importance:
    """Importance weights of tokens, within the recipe's limits of a token and of a completion.

    Args:
        previous, sampled: log-probabilities `[rows, columns]` under trainer and sampler.
        mask: `[rows, columns]`, True for the tokens in the loss.
        config: limits of the ratios; None weighs every token with 1.
    """
    difference = torch.where(mask, previous - sampled, 0.0)
    # a ratio that overflows, or of a token that the sampler calls impossible, trusts nothing
    ratio = torch.nan_to_num(difference.exp(), nan=0.0, posinf=0.0)
    count = mask.sum(-1).clamp(min=1)
    deviation = torch.nan_to_num(difference.abs().exp(), nan=torch.inf)
    strayed = torch.where(mask, deviation, 0.0).sum(-1) / count
    strayed = torch.where(mask.any(-1), strayed, 1.0)
    if config is None:
        return Importance(ratio, torch.ones_like(ratio), strayed, torch.ones_like(count).bool())
    bounded = ratio.clamp(config.token_low, config.token_high)
    weight = torch.where(bounded == ratio, ratio, 0.0) if config.outside == "mask" else bounded
    # a token that the sampler calls impossible makes `strayed` infinite, which is above any limit
    trusted = strayed <= config.sequence_limit
    weight = torch.where(trusted[:, None], weight, 0.0)
    return Importance(ratio, weight, strayed, trusted)


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Loss of each token, `[rows, columns]`.

    Attributes:
        loss: Loss, importance weight included.
        clipped: True where the clipped ratio decides the loss.
        kl: k3 estimate of the KL from the reference; None without a reference.
    """

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
    """Clipped policy-gradient loss of every token; meaningless outside the mask.

    Args:
        current: log-probabilities `[rows, columns]` under the policy now, with graph.
        previous: log-probabilities `[rows, columns]` under the policy that sampled.
        advantages: `[rows, columns]`, or `[rows, 1]` for one advantage a row.
        weight: `weight` of `Importance`.
        reference: log-probabilities `[rows, columns]` under the initial policy; None: no KL term.
    """
    ratio = (current - previous).exp()
    clipped_ratio = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    plain = -advantages * ratio
    clipped = -advantages * clipped_ratio
    loss = torch.maximum(plain, clipped) * weight
    if reference is None:
        return TokenLoss(loss, clipped > plain, None)
    log_ratio = reference - current
    # times the ratio: its gradient is then that of the KL itself (DeepSeek-V3.2, section 3.1)
    kl = (log_ratio.exp() - log_ratio - 1) * ratio
    return TokenLoss(loss + config.kl * kl, clipped > plain, kl)


def ratio_rows(mask: Tensor, weights: Importance) -> list[dict[str, Any] | None]:
    """Stats of the importance ratios of each row; None for a row without tokens."""
    count = mask.sum(-1)
    mean = torch.where(mask, weights.ratio, 0.0).sum(-1) / count.clamp(min=1)
    low = torch.where(mask, weights.ratio, torch.inf).amin(-1)
    high = torch.where(mask, weights.ratio, -torch.inf).amax(-1)
    masked = (mask & (weights.weight == 0)).sum(-1)
    # one stack, since each `tolist` waits for the device
    columns = torch.stack([count, mean, low, high, masked, weights.strayed])
    rows: list[dict[str, Any] | None] = []
    for trusted, (tokens, row_mean, row_low, row_high, row_masked, row_strayed) in zip(
        weights.trusted.tolist(), columns.T.tolist(), strict=True
    ):
        if not tokens:
            rows.append(None)
            continue
        stats = {
            "mean": row_mean,
            "low": row_low,
            "high": row_high,
            "masked": int(row_masked),
            "strayed": row_strayed,
            "kept": trusted,
        }
        rows.append(stats)
    return rows


class TokenSums:
    """Sums in float64 over the tokens of an update, and over all processes when drained."""

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
        """Add a micro-batch of tensors `[rows, columns]`."""
        rows = mask.any(-1)
        # a ratio that is not finite counts as 0, and has no logarithm
        finite = mask & (weights.ratio > 0)
        columns = {
            "tokens": mask,
            "entropy": entropy * mask,
            "ratio": weights.ratio * mask,
            "masked_tokens": mask & weights.trusted[:, None] & (weights.weight == 0),
            "clipped": loss.clipped & mask,
            "rows": rows,
            "masked_rows": rows & ~weights.trusted,
            "strayed": weights.strayed * rows,
            "difference": torch.where(finite, weights.ratio.log().abs(), 0.0),
        }
        if loss.kl is not None:
            columns["kl"] = loss.kl * mask
        if reverse_kl is not None:
            columns["reverse_kl"] = reverse_kl * mask
        for name, column in columns.items():
            self._sums[name] = self._sums.get(name, 0) + column.detach().double().sum()

    def drain(self, accelerator: Any) -> dict[str, float]:
        """Means over all processes; resets the sums. Every process must call it."""
        sums = accelerator.reduce(torch.stack([*self._sums.values()]), "sum").tolist()
        total = dict(zip(self._sums, sums, strict=True))
        self._sums = {}
        tokens = max(total["tokens"], 1.0)
        rows = max(total["rows"], 1.0)
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
