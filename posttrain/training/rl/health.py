"""Signs that a run goes wrong, looked for after every batch of rollouts in the rows of the log.

check_health(rows, recipe.guard)  → ["truncated is 0.41 over the last 4 batches (warns at 0.3): …"]
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.config.grpo import GuardConfig, Limit, Overlong
from posttrain.errors import TrainingError

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Sign:
    """`key` of the log row; `relative`: to the first batches; `falls`: low values are bad."""

    name: str
    key: str
    advice: str
    relative: bool = False
    falls: bool = False


SIGNS = (
    _Sign(
        "zero_variance",
        "zero_variance",
        "groups whose rewards are all equal teach nothing: harder or easier prompts, more "
        "generations, a higher temperature, or a reward that tells answers apart",
    ),
    _Sign(
        "truncated",
        "truncated",
        "completions run to a limit: raise sampling.max_tokens, or strengthen the length control",
    ),
    _Sign(
        "unscored",
        "unscored",
        "completions get no reward: look at the judgements in rollouts/ and at the judge's server",
    ),
    _Sign(
        "masked",
        "masked_completions",
        "the engine that samples and the trainer disagree about the same tokens: train in float32 "
        "or bfloat16 without quantisation, and keep dropout off",
    ),
    _Sign(
        "entropy",
        "entropy",
        "the policy has stopped exploring: lower the learning rate, or set loss.kl above 0",
        relative=True,
        falls=True,
    ),
    _Sign(
        "length",
        "completion_tokens",
        "completions grow without end: strengthen the length control, or lower the learning rate",
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
        if sign.name in keeping_out and (share := _mean(rows, sign.key))
    )


def _value(sign: _Sign, rows: Rows, window: int) -> float | None:
    last = _mean(rows[-window:], sign.key)
    if not sign.relative or last is None:
        return last
    # a window that is also the first says nothing about change
    first = _mean(rows[:window], sign.key) if len(rows) > window else None
    return last / first if first else None


def _mean(rows: Rows, key: str) -> float | None:
    values = [row[key] for row in rows if key in row]
    return statistics.fmean(values) if values else None
