"""What a step's row in `log.jsonl` says, from every rollout of the batch and every token trained.

    {"reward": 3.4, "reward_std": 0.6, "part/base": 3.3, "truncated": 0.02, "zero_variance": 0.1,
     "count/judge_calls": 2048.0, "domain/math/pass_rate": 0.41, "entropy": 0.8, …}

Means are over what they are about: parts over the rollouts that have them, reasoning over those
asked to reason, rewards over the scored ones; `zero_variance` is a share of groups, `loss_share` of
the tokens in the whole batch's loss.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from posttrain.config.grpo import Overlong
from posttrain.training.rl.batch import ScoredGroup

Stats = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
# a single batch is noisy: the first and the last so many are averaged, fewer in a short run, so
# that the two do not overlap
AVERAGED = 5
SHOWN = (
    "reward", "reward_std", "answer_tokens", "reasoning_tokens", "truncated", "zero_variance",
    "unscored", "entropy", "kl", "masked_tokens", "masked_completions",
)  # fmt: skip
_LINE = (
    ("answer", "answer_tokens", ".0f"), ("reasoning", "reasoning_tokens", ".0f"),
    ("truncated", "truncated", ".0%"), ("zero variance", "zero_variance", ".0%"),
    ("unscored", "unscored", ".0%"), ("accuracy", "part/accuracy", ".2f"),
    ("entropy", "entropy", ".2f"),
)  # fmt: skip
_CARD = ("reward", "pass_rate", "truncated", "unscored", "loss_share")


def group_stats(scored: ScoredGroup, *, overlong: Overlong) -> Stats:
    """The numbers of one group: small enough to be shared by all processes."""
    completions, rewards = scored.group.completions, scored.rewards
    trained = scored.in_loss(overlong)
    tokens = [
        0 if completion.finish == "failed" else sum(completion.sampled()[1])
        for completion in completions
    ]
    return {
        "position": scored.position,
        "attempt": scored.attempt,
        "dropped": scored.dropped,
        "thinking": scored.group.prompt.thinking,
        "rewards": list(rewards.rewards),
        "parts": {name: list(values) for name, values in rewards.parts.items()},
        "counts": dict(rewards.counts),
        "requests": rewards.requests,
        "failures": rewards.failures,
        "domain": rewards.domain,
        "seconds": rewards.seconds,
        "informative": scored.informative,
        "truncated": [completion.truncated for completion in completions],
        "failed": [completion.finish == "failed" for completion in completions],
        "reasoning": [completion.reasoning_tokens for completion in completions],
        "answer": [completion.answer_tokens for completion in completions],
        "tokens": tokens,
        "prompt_tokens": [len(completion.prompt_ids or ()) for completion in completions],
        "trained": [n if k in trained else 0 for k, n in enumerate(tokens)],
    }


def batch_metrics(groups: Sequence[Stats]) -> dict[str, float]:
    """Means over a whole batch of rollouts, then those of its domains."""
    rewards = _all(groups, "rewards")
    scored = [reward for reward in rewards if reward is not None]
    row: dict[str, float] = {"rollouts": len(rewards), "unscored": 1 - len(scored) / len(rewards)}
    if scored:
        row |= {"reward": statistics.fmean(scored), "reward_std": statistics.pstdev(scored)}
    row["zero_variance"] = 1 - sum(one["informative"] for one in groups) / len(groups)
    for name in ("truncated", "failed"):
        row[name] = statistics.fmean(_all(groups, name))
    if thinking := [one for one in groups if one["thinking"]]:
        row["reasoning_tokens"] = statistics.fmean(_all(thinking, "reasoning"))
    row["answer_tokens"] = statistics.fmean(_all(groups, "answer"))
    row["completion_tokens"] = statistics.fmean(_all(groups, "tokens"))
    for name in _names(one["parts"] for one in groups):
        if values := _part(groups, name):
            row[f"part/{name}"] = statistics.fmean(values)
    for name in _names(one["counts"] for one in groups):
        row[f"count/{name}"] = sum((one["counts"].get(name, 0) for one in groups), 0.0)
    trained = sum(_all(groups, "trained"))
    for name, own in by_domain(groups).items():
        if name:
            row |= {f"domain/{name}/{k}": v for k, v in _domain_metrics(own, trained).items()}
    return row


def _domain_metrics(groups: Sequence[Stats], trained: int) -> dict[str, float]:
    rewards = _all(groups, "rewards")
    scored = [reward for reward in rewards if reward is not None]
    kinds = Counter(failure.reason for failure in _all(groups, "failures"))
    figures = {
        "zero_variance": 1 - sum(group["informative"] for group in groups) / len(groups),
        "unscored": 1 - len(scored) / len(rewards),
        **{f"unscored_{kind}": count / len(rewards) for kind, count in sorted(kinds.items())},
        "truncated": statistics.fmean(_all(groups, "truncated")),
        "reasoning_tokens": statistics.fmean(_all(groups, "reasoning")),
        "answer_tokens": statistics.fmean(_all(groups, "answer")),
    }
    if scored:
        figures["reward"] = statistics.fmean(scored)
    if passes := _part(groups, "pass"):
        figures["pass_rate"] = statistics.fmean(passes)
    if trained:
        figures["loss_share"] = sum(_all(groups, "trained")) / trained
    return figures


def by_domain(groups: Sequence[Stats]) -> dict[str, list[Stats]]:
    """The groups of each domain, in the order of their names."""
    names = sorted({group["domain"] for group in groups})
    return {name: [g for g in groups if g["domain"] == name] for name in names}


def verifier_seconds(groups: Sequence[Stats]) -> dict[str, dict[str, float]]:
    """Median and 95th percentile of a verification's seconds, by domain."""
    percentiles: dict[str, dict[str, float]] = {}
    for name, own in by_domain(groups).items():
        if seconds := sorted(_all(own, "seconds")):
            p50, p95 = (seconds[round(share * (len(seconds) - 1))] for share in (0.5, 0.95))
            percentiles[name] = {"p50": round(p50, 4), "p95": round(p95, 4)}
    return percentiles


def _all(groups: Sequence[Stats], name: str) -> list[Any]:
    return [value for one in groups for value in one[name]]


def _part(groups: Sequence[Stats], name: str) -> list[float]:
    return [v for one in groups for v in one["parts"].get(name, ()) if v is not None]


def _names(mappings: Iterable[Mapping[str, Any]], start: str = "") -> list[str]:
    return sorted({name for mapping in mappings for name in mapping if name.startswith(start)})


def run_stats(rows: Rows) -> dict[str, Any]:
    """A run's rows of whole batches: the means of the first and of the last, and summed counts."""
    averaged = min(AVERAGED, max(1, len(rows) // 2))
    return {
        "averaged": averaged,
        "first": _means(rows[:averaged]),
        "last": _means(rows[-averaged:]),
        "counts": _sums(rows),
    }


def domain_stats(rows: Rows, *, averaged: int) -> dict[str, Any]:
    """Each domain's figures: means of the first and of the last batches."""
    first, last, stats = rows[:averaged], rows[-averaged:], dict[str, Any]()
    for name in sorted({key.split("/")[1] for key in _names(rows, "domain/")}):
        start = f"domain/{name}/"
        stats[name] = {"first": _means(first, start), "last": _means(last, start)}
    return stats


def _means(rows: Rows, domain: str = "") -> dict[str, float]:
    """Of the names in `SHOWN` and the parts; with a prefix: of all names that begin with it."""
    names = _names(rows, domain) if domain else (*SHOWN, *_names(rows, "part/"))
    values = {name: [row[name] for row in rows if name in row] for name in names}
    return {k.removeprefix(domain): statistics.fmean(own) for k, own in values.items() if own}


def _sums(rows: Rows) -> dict[str, float]:
    return {
        name.removeprefix("count/"): sum(row.get(name, 0) for row in rows)
        for name in _names(rows, "count/")
    }


def domain_table(stats: Mapping[str, Any]) -> list[str]:
    """Lines of the model card: what came from which domain, first → last batches."""

    def cell(own: Mapping[str, Any], key: str) -> str:
        first, last = (own[part].get(key) for part in ("first", "last"))
        return "–" if first is None or last is None else f"{first:.3f} → {last:.3f}"

    return [
        "",
        f"| domain | {' | '.join(key.replace('_', ' ') for key in _CARD)} |",
        f"|---|{'---|' * len(_CARD)}",
        *[f"| {n} | {' | '.join(cell(own, key) for key in _CARD)} |" for n, own in stats.items()],
    ]


def step_line(row: Mapping[str, Any]) -> str | None:
    """The figures worth a look at every step; None for a row that is no batch's."""
    if "rollouts" not in row:
        return None
    reward = f"{row['reward']:.3f} ±{row['reward_std']:.2f}" if "reward" in row else "none"
    parts = (f"{key} {row[name]:{form}}" for key, name, form in _LINE if name in row)
    return "  ".join((f"reward {reward}", *parts))
