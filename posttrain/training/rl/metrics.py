"""What a step's row in `log.jsonl` says, from every rollout of the batch and every token trained,
and the signs in those rows that a run goes wrong.

    {"reward": 3.4, "reward_std": 0.6, "part/base": 3.3, "truncated": 0.02, "zero_variance": 0.1,
     "count/judge_calls": 2048.0, "domain/math/pass_rate": 0.41, "entropy": 0.8, …}

Means are over what they are about: parts over the rollouts that have them, reasoning over those
asked to reason, rewards over the scored ones; `zero_variance` is a share of groups, `loss_share` of
the tokens in the whole batch's loss. Where tokens have values of their own, a rollout's reward is
their sum, `token_reward` their mean over tokens and `token_rewarded` the share of such rollouts.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.config.grpo import GuardConfig, Limit, Overlong
from posttrain.errors import TrainingError
from posttrain.training.rl.batch import ScoredGroup

Stats = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
# a single batch is noisy: the first and the last so many are averaged, fewer in a short run, so
# that the two do not overlap
AVERAGED = 5
SHOWN = (
    "reward", "reward_std", "token_reward", "answer_tokens", "reasoning_tokens", "truncated",
    "zero_variance", "unscored", "entropy", "kl", "masked_tokens", "masked_completions",
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
        "rewards": rewards.totals,
        "credited_tokens": [
            len(credit) if isinstance(credit, tuple) else 0 for credit in rewards.rewards
        ],
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
    row |= _token_credit(groups)
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


def _token_credit(groups: Sequence[Stats]) -> dict[str, float]:
    """Mean value of a token, and the share of rollouts whose tokens have values; {} without any."""
    counts = _all(groups, "credited_tokens")
    totals = [total for total, n in zip(_all(groups, "rewards"), counts, strict=True) if n]
    if not totals:
        return {}
    return {
        "token_reward": math.fsum(totals) / sum(counts),
        "token_rewarded": len(totals) / len(counts),
    }


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
    figures |= _token_credit(groups)
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
    means = {name.removeprefix(domain): _mean(rows, name) for name in names}
    return {name: mean for name, mean in means.items() if mean is not None}


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
    shown = (one for one in _LINE if one[1] in row and (row[one[1]] or one[1] != "unscored"))
    parts = (f"{key} {row[name]:{form}}" for key, name, form in shown)
    return "  ".join((f"reward {reward}", *parts))


def is_equal_to_teachers(row: Mapping[str, Any]) -> bool:
    """Tell whether tokens have values of their own in the whole batch, and every one is 0."""
    return row.get("token_rewarded") == 1 and row["zero_variance"] == 1


@dataclass(frozen=True, slots=True)
class _Sign:
    """`key`: of the row, else the name; `relative`: to the first batches; `falls`: low is bad."""

    name: str
    advice: str
    key: str = ""
    relative: bool = False
    falls: bool = False


SIGNS = (
    _Sign(
        "zero_variance",
        "groups whose rewards are all equal teach nothing: harder or easier prompts, more "
        "generations, a higher temperature, or a reward that tells answers apart",
    ),
    _Sign(
        "truncated",
        "completions run to a limit: raise sampling.max_tokens, or strengthen the length control",
    ),
    _Sign(
        "unscored",
        "completions get no reward: look at the judgements in rollouts/ and at the judge's server",
    ),
    _Sign(
        "masked",
        "the engine that samples and the trainer disagree about the same tokens: train in float32 "
        "or bfloat16 without quantisation, and keep dropout off",
        key="masked_completions",
    ),
    _Sign(
        "entropy",
        "the policy has stopped exploring: lower the learning rate, or set loss.kl above 0",
        relative=True,
        falls=True,
    ),
    _Sign(
        "length",
        "completions grow without end: strengthen the length control, or lower the learning rate",
        key="completion_tokens",
        relative=True,
    ),
)


def check_health(rows: Rows, config: GuardConfig, *, last: bool = False) -> list[str]:
    """Warnings, from the rows of all batches so far, the newest last.

    Args:
        last: no batch follows: a run shorter than the window is looked at as a whole.

    Raises:
        TrainingError: a sign has reached its `stop`; the message names what to do.
    """
    window = min(config.window, len(rows)) if last else config.window
    if len(rows) < window:
        return []
    warnings: list[str] = []
    for sign in SIGNS:
        limit: Limit = getattr(config, sign.name)
        value = _value(sign, rows, window)
        if value is None:
            continue
        unit = " of what it was in the first ones" if sign.relative else ""
        batches = f"{window} batch{'es' if window > 1 else ''}"
        finding = f"{sign.name.replace('_', ' ')} is {value:.3g}{unit} over the last {batches}"
        stop, warn = (
            at is not None and (value <= at if sign.falls else value >= at)
            for at in (limit.stop, limit.warn)
        )
        if stop:
            raise TrainingError(
                f"step {rows[-1]['step']}: {finding} (guard.{sign.name}.stop is {limit.stop:g})"
                f": {sign.advice}. To go on as it is, set guard.{sign.name}.stop: null and "
                "start again"
            )
        if warn:
            warnings.append(f"{finding} (warns at {limit.warn:g}): {sign.advice}")
    return warnings


def why_untrained(rows: Rows, *, overlong: Overlong) -> str:
    """What kept every rollout out of the loss, as shares of all of them, and what to do."""
    keeping_out = {"unscored"} if overlong == "train" else {"unscored", "truncated"}
    return "; ".join(
        f"{share:.0%} of the rollouts were {sign.name}: {sign.advice}"
        for sign in SIGNS
        if sign.name in keeping_out and (share := _mean(rows, sign.key or sign.name))
    )


def _value(sign: _Sign, rows: Rows, window: int) -> float | None:
    parts = (rows[:window], rows[-window:])
    first, last = (_mean(part, sign.key or sign.name) for part in parts)
    if not sign.relative or last is None:
        return last
    # a window that is also the first says nothing about change
    return last / first if first and len(rows) > window else None


def _mean(rows: Rows, key: str) -> float | None:
    values = [row[key] for row in rows if key in row]
    return statistics.fmean(values) if values else None
