"""What a step's row in `log.jsonl` says, from every rollout of the batch and every token trained.

    {"reward": 3.4, "reward_std": 0.6, "part/base": 3.3, "reasoning_tokens": 210.0, "truncated":
     0.02, "zero_variance": 0.1, "unscored": 0.0, "entropy": 0.8, "importance": 1.0,
     "masked_tokens": 0.0, "masked_completions": 0.0, "count/judge_calls": 2048.0, …}

Means are over what they are about: parts over the rollouts that have them, reasoning over those
asked to reason, entropy and ratios over the tokens in the loss.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from posttrain.config.grpo import Overlong
from posttrain.training.rl.batch import ScoredGroup, in_loss
from posttrain.training.rl.loss import Importance, TokenLoss

Stats = dict[str, Any]


def group_stats(scored: ScoredGroup, *, overlong: Overlong) -> Stats:
    """The numbers of one group: small enough to be shared by all processes."""
    completions, prompt = scored.group.completions, scored.group.prompt
    trained = [
        in_loss(completion, advantage, overlong=overlong)
        for completion, advantage in zip(completions, scored.advantages, strict=True)
    ]
    tokens = [
        sum(completion.sampled()[1]) if completion.finish != "failed" else 0
        for completion in completions
    ]
    return {
        "position": scored.position,
        "thinking": prompt.thinking,
        "rewards": list(scored.rewards.rewards),
        "parts": {name: list(values) for name, values in scored.rewards.parts.items()},
        "counts": dict(scored.rewards.counts),
        "asked": scored.rewards.asked,
        "failures": scored.rewards.failures,
        "informative": any(scored.advantages),
        "truncated": [completion.truncated for completion in completions],
        "failed": [completion.finish == "failed" for completion in completions],
        "reasoning": [completion.reasoning_tokens for completion in completions],
        "answer": [completion.answer_tokens for completion in completions],
        "tokens": tokens,
        "prompt_tokens": [len(completion.prompt_ids or ()) for completion in completions],
        "trained": [n if kept else 0 for n, kept in zip(tokens, trained, strict=True)],
    }


def batch_metrics(groups: Sequence[Stats]) -> dict[str, float]:
    """Means over a whole batch of rollouts."""
    rewards = _all(groups, "rewards")
    scored = [reward for reward in rewards if reward is not None]
    row: dict[str, float] = {"rollouts": len(rewards), "unscored": 1 - len(scored) / len(rewards)}
    if scored:
        row |= {"reward": statistics.fmean(scored), "reward_std": statistics.pstdev(scored)}
    row["zero_variance"] = 1 - sum(one["informative"] for one in groups) / len(groups)
    for name in ("truncated", "failed"):
        row[name] = statistics.fmean(_all(groups, name))
    reasoning = [n for one in groups if one["thinking"] for n in one["reasoning"]]
    if reasoning:
        row["reasoning_tokens"] = statistics.fmean(reasoning)
    row["answer_tokens"] = statistics.fmean(_all(groups, "answer"))
    row["completion_tokens"] = statistics.fmean(_all(groups, "tokens"))
    return row | _parts(groups) | _counts(groups)


def _all(groups: Sequence[Stats], name: str) -> list[Any]:
    return [value for one in groups for value in one[name]]


def _parts(groups: Sequence[Stats]) -> dict[str, float]:
    parts: dict[str, list[float]] = defaultdict(list)
    for one in groups:
        for name, values in one["parts"].items():
            parts[name] += [value for value in values if value is not None]
    return {
        f"part/{name}": statistics.fmean(values) for name, values in sorted(parts.items()) if values
    }


def _counts(groups: Sequence[Stats]) -> dict[str, float]:
    counts: dict[str, float] = defaultdict(float)
    for one in groups:
        for name, value in one["counts"].items():
            counts[name] += value
    return {f"count/{name}": value for name, value in sorted(counts.items())}


# one number each; every one a sum over the tokens, or the rows, in the loss
_SUMS = (
    "tokens", "entropy", "ratio", "masked_tokens", "clipped", "kl", "rows", "masked_rows",
    "strayed",
)  # fmt: skip


class TokenSums:
    """Sums over a step's tokens, in float64, over all processes once drained."""

    def __init__(self, *, kl: bool) -> None:
        self._kl = kl
        self._sums = torch.zeros(len(_SUMS), dtype=torch.float64)

    def add(self, mask: torch.Tensor, entropy: torch.Tensor, weights: Importance, loss: TokenLoss):
        """Add a micro-batch; tensors `[rows, columns]`."""
        kl = torch.zeros_like(entropy) if loss.kl is None else loss.kl
        masked = mask & weights.kept[:, None] & (weights.weight == 0)
        rows = mask.any(-1)
        columns: Iterable[torch.Tensor] = (
            mask,
            entropy * mask,
            weights.ratio * mask,
            masked,
            loss.clipped & mask,
            kl * mask,
            rows,
            rows & ~weights.kept,
            weights.strayed * rows,
        )
        sums = torch.stack([column.detach().double().sum() for column in columns])
        self._sums = self._sums.to(sums.device) + sums

    def drain(self, accelerator: Any) -> dict[str, float]:
        """The means over all processes; starts anew. Every process must call it."""
        sums = accelerator.reduce(self._sums, "sum").tolist()
        self._sums = torch.zeros_like(self._sums)
        total = dict(zip(_SUMS, sums, strict=True))
        tokens, rows = max(total["tokens"], 1.0), max(total["rows"], 1.0)
        means = {
            "loss_tokens": total["tokens"],
            "importance": total["ratio"] / tokens,
            "masked_tokens": total["masked_tokens"] / tokens,
            "masked_completions": total["masked_rows"] / rows,
            "strayed": total["strayed"] / rows,
            "clipped": total["clipped"] / tokens,
        }
        if total["tokens"]:
            means["entropy"] = total["entropy"] / tokens
        return means | ({"kl": total["kl"] / tokens} if self._kl else {})
