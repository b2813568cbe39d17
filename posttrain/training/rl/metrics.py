"""Metrics of a step in `log.jsonl`, from all rollouts of the batch, and the signs in them of an
unhealthy run.

    {"reward": 3.4, "reward_std": 0.6, "part/base": 3.3, "truncated": 0.02, "zero_variance": 0.1,
     "count/judge_calls": 2048.0, "domain/math/pass_rate": 0.41, "entropy": 0.8, …}

Each mean is over the rollouts that have the figure: parts over those with the part, reasoning over
those with thinking on, rewards over the scored ones. `zero_variance` is a share of groups,
`loss_share` of the tokens in the whole batch's loss. Where a reward gives values for tokens, a
rollout's reward is their sum, `token_reward` their mean over tokens and `token_rewarded` the share
of such rollouts.
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
# Batches averaged at the start and at the end of a run, since a single one is noisy; a short run
# averages fewer, so that the two do not overlap
AVERAGED = 5
# batches whose mean a limit of the guard is compared with: one alone is noisy, and a run that goes
# wrong should not cost many more
WINDOW = 4
SHOWN = (
    "reward",
    "reward_std",
    "token_reward",
    "answer_tokens",
    "reasoning_tokens",
    "truncated",
    "zero_variance",
    "unscored",
    "entropy",
    "kl",
    "masked_tokens",
    "masked_completions",
)
# label, metric and format of each figure in a step's printed line
_STEP_FIGURES = (
    ("answer", "answer_tokens", ".0f"),
    ("reasoning", "reasoning_tokens", ".0f"),
    ("truncated", "truncated", ".0%"),
    ("zero variance", "zero_variance", ".0%"),
    ("unscored", "unscored", ".0%"),
    ("accuracy", "part/accuracy", ".2f"),
    ("entropy", "entropy", ".2f"),
)
_CARD_COLUMNS = ("reward", "pass_rate", "truncated", "unscored", "loss_share")


def group_stats(scored: ScoredGroup, *, overlong: Overlong) -> Stats:
    """Statistics of a group, small enough to be gathered over all processes."""
    completions = scored.group.completions
    rewards = scored.rewards
    in_loss = scored.in_loss(overlong)
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
        "trained": [n if index in in_loss else 0 for index, n in enumerate(tokens)],
    }


def batch_metrics(groups: Sequence[Stats]) -> dict[str, float]:
    """Means over a batch of rollouts, and over each of its domains."""
    rewards = _all_rollouts(groups, "rewards")
    scored = [reward for reward in rewards if reward is not None]
    row: dict[str, float] = {"rollouts": len(rewards), "unscored": 1 - len(scored) / len(rewards)}
    if scored:
        row |= {"reward": statistics.fmean(scored), "reward_std": statistics.pstdev(scored)}
    row |= _token_credit(groups)
    row["zero_variance"] = 1 - sum(group["informative"] for group in groups) / len(groups)
    for name in ("truncated", "failed"):
        row[name] = statistics.fmean(_all_rollouts(groups, name))
    thinking = [group for group in groups if group["thinking"]]
    if thinking:
        row["reasoning_tokens"] = statistics.fmean(_all_rollouts(thinking, "reasoning"))
    row["answer_tokens"] = statistics.fmean(_all_rollouts(groups, "answer"))
    row["completion_tokens"] = statistics.fmean(_all_rollouts(groups, "tokens"))
    for name in _names(group["parts"] for group in groups):
        values = _part_values(groups, name)
        if values:
            row[f"part/{name}"] = statistics.fmean(values)
    for name in _names(group["counts"] for group in groups):
        row[f"count/{name}"] = sum((group["counts"].get(name, 0) for group in groups), 0.0)
    trained = sum(_all_rollouts(groups, "trained"))
    for domain, domain_groups in by_domain(groups).items():
        if domain:
            for name, value in _domain_metrics(domain_groups, trained).items():
                row[f"domain/{domain}/{name}"] = value
    return row


def _token_credit(groups: Sequence[Stats]) -> dict[str, float]:
    """Mean value of a token, and share of rollouts whose tokens have values; {} without any."""
    counts = _all_rollouts(groups, "credited_tokens")
    rewards = _all_rollouts(groups, "rewards")
    totals = [reward for reward, count in zip(rewards, counts, strict=True) if count]
    if not totals:
        return {}
    return {
        "token_reward": math.fsum(totals) / sum(counts),
        "token_rewarded": len(totals) / len(counts),
    }


def _domain_metrics(groups: Sequence[Stats], trained: int) -> dict[str, float]:
    """Figures of a domain's groups; `trained` counts the tokens in the whole batch's loss."""
    rewards = _all_rollouts(groups, "rewards")
    scored = [reward for reward in rewards if reward is not None]
    figures = {
        "zero_variance": 1 - sum(group["informative"] for group in groups) / len(groups),
        "unscored": 1 - len(scored) / len(rewards),
    }
    reasons = Counter(failure.reason for failure in _all_rollouts(groups, "failures"))
    for reason, count in sorted(reasons.items()):
        figures[f"unscored_{reason}"] = count / len(rewards)
    figures["truncated"] = statistics.fmean(_all_rollouts(groups, "truncated"))
    figures["reasoning_tokens"] = statistics.fmean(_all_rollouts(groups, "reasoning"))
    figures["answer_tokens"] = statistics.fmean(_all_rollouts(groups, "answer"))
    if scored:
        figures["reward"] = statistics.fmean(scored)
    figures |= _token_credit(groups)
    passes = _part_values(groups, "pass")
    if passes:
        figures["pass_rate"] = statistics.fmean(passes)
    if trained:
        figures["loss_share"] = sum(_all_rollouts(groups, "trained")) / trained
    return figures


def by_domain(groups: Sequence[Stats]) -> dict[str, list[Stats]]:
    """Groups of each domain, domains in the order of their names."""
    groups_by_domain: dict[str, list[Stats]] = {}
    for domain in sorted({group["domain"] for group in groups}):
        groups_by_domain[domain] = [group for group in groups if group["domain"] == domain]
    return groups_by_domain


def verifier_seconds(groups: Sequence[Stats]) -> dict[str, dict[str, float]]:
    """Median and 95th percentile of a verification's seconds, by domain."""
    percentiles: dict[str, dict[str, float]] = {}
    for domain, domain_groups in by_domain(groups).items():
        seconds = sorted(_all_rollouts(domain_groups, "seconds"))
        if seconds:
            p50 = seconds[round(0.5 * (len(seconds) - 1))]
            p95 = seconds[round(0.95 * (len(seconds) - 1))]
            percentiles[domain] = {"p50": round(p50, 4), "p95": round(p95, 4)}
    return percentiles


def _all_rollouts(groups: Sequence[Stats], name: str) -> list[Any]:
    return [value for group in groups for value in group[name]]


def _part_values(groups: Sequence[Stats], part: str) -> list[float]:
    """Values of a part of the reward, of the rollouts that have it."""
    values: list[float] = []
    for group in groups:
        values += [value for value in group["parts"].get(part, ()) if value is not None]
    return values


def _names(mappings: Iterable[Mapping[str, Any]], prefix: str = "") -> list[str]:
    """All keys of the mappings that begin with a prefix, sorted."""
    names = {name for mapping in mappings for name in mapping}
    return sorted(name for name in names if name.startswith(prefix))


def run_stats(rows: Rows) -> dict[str, Any]:
    """Means over the first and over the last batches of a run, and sums of counts over all.

    Args:
        rows: rows of the log that have the metrics of a batch.
    """
    averaged = min(AVERAGED, max(1, len(rows) // 2))
    counts: dict[str, Any] = {}
    for name in _names(rows, "count/"):
        counts[name.removeprefix("count/")] = sum(row.get(name, 0) for row in rows)
    return {
        "averaged": averaged,
        "first": _run_means(rows[:averaged]),
        "last": _run_means(rows[-averaged:]),
        "counts": counts,
    }


def _run_means(rows: Rows) -> dict[str, float]:
    return _means(rows, (*SHOWN, *_names(rows, "part/")))


def domain_stats(rows: Rows, *, averaged: int) -> dict[str, Any]:
    """Means of each domain's figures over the first and over the last `averaged` batches."""
    stats: dict[str, Any] = {}
    for domain in sorted({key.split("/")[1] for key in _names(rows, "domain/")}):
        prefix = f"domain/{domain}/"
        stats[domain] = {}
        for part, part_rows in (("first", rows[:averaged]), ("last", rows[-averaged:])):
            means = _means(part_rows, _names(part_rows, prefix))
            stats[domain][part] = {name.removeprefix(prefix): means[name] for name in means}
    return stats


def _means(rows: Rows, names: Iterable[str]) -> dict[str, float]:
    """Means of the figures that any of the rows has."""
    means: dict[str, float] = {}
    for name in names:
        mean = _mean(rows, name)
        if mean is not None:
            means[name] = mean
    return means


def domain_table(stats: Mapping[str, Any]) -> list[str]:
    """Lines of the model card's table of domains, each figure as mean of first → last batches."""
    lines = [
        "",
        f"| domain | {' | '.join(column.replace('_', ' ') for column in _CARD_COLUMNS)} |",
        f"|---|{'---|' * len(_CARD_COLUMNS)}",
    ]
    for domain, domain_means in stats.items():
        cells: list[str] = []
        for column in _CARD_COLUMNS:
            start = domain_means["first"].get(column)
            end = domain_means["last"].get(column)
            cells.append("–" if start is None or end is None else f"{start:.3f} → {end:.3f}")
        lines.append(f"| {domain} | {' | '.join(cells)} |")
    return lines


def step_line(row: Mapping[str, Any]) -> str | None:
    """Main figures of a batch's row, to be printed; None for another row."""
    if "rollouts" not in row:
        return None
    reward = f"{row['reward']:.3f} ±{row['reward_std']:.2f}" if "reward" in row else "none"
    parts = [f"reward {reward}"]
    for label, name, number_format in _STEP_FIGURES:
        # 0 unscored is the normal case and not worth the room
        if name in row and (row[name] or name != "unscored"):
            parts.append(f"{label} {row[name]:{number_format}}")
    return "  ".join(parts)


def is_equal_to_teachers(row: Mapping[str, Any]) -> bool:
    """Return True if every rollout of the batch has values for its tokens, and all are 0."""
    return row.get("token_rewarded") == 1 and row["zero_variance"] == 1


@dataclass(frozen=True, slots=True)
class _Sign:
    """Sign of an unhealthy run.

    Attributes:
        name: Name of its limits in `GuardConfig`.
        advice: Likely cause and remedy.
        key: Key of the log's row; "" where it is the name.
        relative: True if the limits are relative to the mean of the first batches.
        falls: True if low values are bad.
    """

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


def check_health(rows: Rows, config: GuardConfig, *, at_end: bool = False) -> list[str]:
    """Check the newest batches for signs of an unhealthy run. Returns warnings.

    Args:
        rows: rows of all batches so far, the newest last.
        at_end: True if no batch follows; a run shorter than the window is then checked as a whole.

    Raises:
        TrainingError: a sign has reached its `stop`; the message has the remedy.
    """
    window = min(WINDOW, len(rows)) if at_end else WINDOW
    if len(rows) < window:
        return []
    warnings: list[str] = []
    for sign in SIGNS:
        limit: Limit = getattr(config, sign.name)
        value = _sign_value(sign, rows, window)
        if value is None:
            continue
        unit = " of what it was in the first ones" if sign.relative else ""
        batches = f"{window} batch{'es' if window > 1 else ''}"
        finding = f"{sign.name.replace('_', ' ')} is {value:.3g}{unit} over the last {batches}"
        if _reaches(value, limit.stop, falls=sign.falls):
            raise TrainingError(
                f"step {rows[-1]['step']}: {finding} (guard.{sign.name}.stop is {limit.stop:g})"
                f": {sign.advice}. To go on as it is, set guard.{sign.name}.stop: null and "
                "start again"
            )
        if _reaches(value, limit.warn, falls=sign.falls):
            warnings.append(f"{finding} (warns at {limit.warn:g}): {sign.advice}")
    return warnings


def _reaches(value: float, limit: float | None, *, falls: bool) -> bool:
    if limit is None:
        return False
    return value <= limit if falls else value >= limit


def why_untrained(rows: Rows, *, overlong: Overlong) -> str:
    """Say why no rollout was in the loss: shares unscored or truncated, each with its advice."""
    reasons = {"unscored"} if overlong == "train" else {"unscored", "truncated"}
    sentences: list[str] = []
    for sign in SIGNS:
        share = _mean(rows, sign.key or sign.name)
        if sign.name in reasons and share:
            sentences.append(f"{share:.0%} of the rollouts were {sign.name}: {sign.advice}")
    return "; ".join(sentences)


def _sign_value(sign: _Sign, rows: Rows, window: int) -> float | None:
    """Mean of a sign's figure over the newest batches, divided by that of the first if relative."""
    mean = _mean(rows[-window:], sign.key or sign.name)
    if not sign.relative or mean is None:
        return mean
    start = _mean(rows[:window], sign.key or sign.name)
    # where the newest window is also the first, it says nothing about change
    return mean / start if start and len(rows) > window else None


def _mean(rows: Rows, key: str) -> float | None:
    values = [row[key] for row in rows if key in row]
    return statistics.fmean(values) if values else None
