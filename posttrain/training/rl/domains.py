"""A step's figures domain by domain, over all processes; {} for a run without domains.

    {"domain/math/reward": 0.41, "domain/math/pass_rate": 0.41, "domain/math/zero_variance": 0.2,
     "domain/math/unscored": 0.01, "domain/math/unscored_timeout": 0.01, …}

Also truncated, reasoning_tokens, answer_tokens and loss_share. Means are over a domain's rollouts,
reward and pass rate over the scored ones; `zero_variance` is a share of its groups, `loss_share` is
one of the tokens in the whole batch's loss.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.training.rl.metrics import Stats

PREFIX = "domain/"


def by_domain(groups: Sequence[Stats]) -> dict[str, list[Stats]]:
    """The groups of each domain, in the order of their names."""
    names = sorted({group["domain"] for group in groups})
    return {name: [g for g in groups if g["domain"] == name] for name in names}


def domain_metrics(groups: Sequence[Stats]) -> dict[str, float]:
    """The figures of every named domain."""
    trained = sum(sum(group["trained"]) for group in groups)
    return {
        f"{PREFIX}{name}/{key}": value
        for name, own in by_domain(groups).items()
        if name
        for key, value in _figures(own, trained).items()
    }


def _figures(groups: Sequence[Stats], trained: int) -> dict[str, float]:
    rewards = [reward for group in groups for reward in group["rewards"]]
    scored = [reward for reward in rewards if reward is not None]
    passes = [p for group in groups for p in group["parts"].get("pass", ()) if p is not None]
    kinds = Counter(failure.reason for group in groups for failure in group["failures"])
    figures = {
        "zero_variance": 1 - sum(group["informative"] for group in groups) / len(groups),
        "unscored": 1 - len(scored) / len(rewards),
        **{f"unscored_{kind}": count / len(rewards) for kind, count in sorted(kinds.items())},
        "truncated": statistics.fmean(v for group in groups for v in group["truncated"]),
        "reasoning_tokens": statistics.fmean(v for group in groups for v in group["reasoning"]),
        "answer_tokens": statistics.fmean(v for group in groups for v in group["answer"]),
    }
    if scored:
        figures["reward"] = statistics.fmean(scored)
    if passes:
        figures["pass_rate"] = statistics.fmean(passes)
    if trained:
        figures["loss_share"] = sum(sum(group["trained"]) for group in groups) / trained
    return figures


def verifier_seconds(groups: Sequence[Stats]) -> dict[str, dict[str, float]]:
    """Median and 95th percentile of a verification's seconds, by domain."""
    found: dict[str, dict[str, float]] = {}
    for name, own in by_domain(groups).items():
        seconds = sorted(value for group in own for value in group["seconds"])
        if seconds:
            p50, p95 = (seconds[round(share * (len(seconds) - 1))] for share in (0.5, 0.95))
            found[name] = {"p50": round(p50, 4), "p95": round(p95, 4)}
    return found


def domain_stats(rows: Sequence[Mapping[str, float]], *, averaged: int) -> dict[str, Any]:
    """Of a run's log rows: each domain's figures, means of the first and of the last batches."""
    names = sorted({key.split("/")[1] for row in rows for key in row if key.startswith(PREFIX)})
    return {
        name: {"first": _means(rows[:averaged], name), "last": _means(rows[-averaged:], name)}
        for name in names
    }


def _means(rows: Sequence[Mapping[str, float]], name: str) -> dict[str, float]:
    start = f"{PREFIX}{name}/"
    keys = sorted({key for row in rows for key in row if key.startswith(start)})
    return {
        key.removeprefix(start): statistics.fmean(row[key] for row in rows if key in row)
        for key in keys
    }


_CARD = ("reward", "pass_rate", "truncated", "unscored", "loss_share")


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
