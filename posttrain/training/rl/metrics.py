"""What a step's row in `log.jsonl` says, from every rollout of the batch and every token trained.

    {"reward": 3.4, "reward_std": 0.6, "part/base": 3.3, "reasoning_tokens": 210.0, "truncated":
     0.02, "zero_variance": 0.1, "unscored": 0.0, "entropy": 0.8, "importance": 1.0,
     "masked_tokens": 0.0, "masked_completions": 0.0, "count/judge_calls": 2048.0, …}

Means are over what they are about: parts over the rollouts that have them, reasoning over those
asked to reason, entropy and ratios over the tokens in the loss. `run_stats` sums up a run's rows
for its manifest, `step_line` prints the few that are worth a look at every step.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.config.grpo import Overlong
from posttrain.training.rl.batch import ScoredGroup, in_loss

Stats = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
# a single batch is noisy: the first and the last so many are averaged, fewer in a short run, so
# that the two do not overlap
AVERAGED = 5
SHOWN = (
    "reward", "reward_std", "answer_tokens", "reasoning_tokens", "truncated", "zero_variance",
    "unscored", "entropy", "kl", "masked_tokens", "masked_completions",
)  # fmt: skip


def group_stats(scored: ScoredGroup, *, overlong: Overlong) -> Stats:
    """The numbers of one group: small enough to be shared by all processes."""
    completions, prompt = scored.group.completions, scored.group.prompt
    trained = [
        not scored.dropped and in_loss(completion, advantage, overlong=overlong)
        for completion, advantage in zip(completions, scored.advantages, strict=True)
    ]
    tokens = [
        sum(completion.sampled()[1]) if completion.finish != "failed" else 0
        for completion in completions
    ]
    return {
        "position": scored.position,
        "attempt": scored.attempt,
        "dropped": scored.dropped,
        "thinking": prompt.thinking,
        "rewards": list(scored.rewards.rewards),
        "parts": {name: list(values) for name, values in scored.rewards.parts.items()},
        "counts": dict(scored.rewards.counts),
        "requests": scored.rewards.requests,
        "failures": scored.rewards.failures,
        "domain": scored.rewards.domain,
        "seconds": scored.rewards.seconds,
        "informative": scored.informative,
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


def run_stats(rows: Rows) -> dict[str, Any]:
    """A run's rows of whole batches: the means of the first and of the last, and summed counts."""
    averaged = min(AVERAGED, max(1, len(rows) // 2))
    return {
        "averaged": averaged,
        "first": _means(rows[:averaged]),
        "last": _means(rows[-averaged:]),
        "counts": _sums(rows),
    }


def _means(rows: Rows) -> dict[str, float]:
    parts = sorted({name for row in rows for name in row if name.startswith("part/")})
    means: dict[str, float] = {}
    for name in (*SHOWN, *parts):
        values = [row[name] for row in rows if name in row]
        if values:
            means[name] = statistics.fmean(values)
    return means


def _sums(rows: Rows) -> dict[str, float]:
    names = sorted({name for row in rows for name in row if name.startswith("count/")})
    return {name.removeprefix("count/"): sum(row.get(name, 0) for row in rows) for name in names}


def step_line(row: Mapping[str, Any]) -> str | None:
    """The figures worth a look at every step; None for a row that is no batch's."""
    if "rollouts" not in row:
        return None
    reward = f"{row['reward']:.3f} ±{row['reward_std']:.2f}" if "reward" in row else "none"
    parts = [f"reward {reward}", f"answer {row['answer_tokens']:.0f}"]
    if "reasoning_tokens" in row:
        parts.append(f"reasoning {row['reasoning_tokens']:.0f}")
    parts += [f"truncated {row['truncated']:.0%}", f"zero variance {row['zero_variance']:.0%}"]
    if row["unscored"]:
        parts.append(f"unscored {row['unscored']:.0%}")
    if "part/accuracy" in row:
        parts.append(f"accuracy {row['part/accuracy']:.2f}")
    if "entropy" in row:
        parts.append(f"entropy {row['entropy']:.2f}")
    return "  ".join(parts)
