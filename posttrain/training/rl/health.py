"""Signs that a run goes wrong, looked for after every batch of rollouts.

    guard = HealthGuard(recipe.guard)
    guard.check(rows)   → ["truncated is 0.41 over the last 4 batches (warns at 0.3): …"]

It looks at the rows of the log, which a resumed run has too; it keeps nothing itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.config.grpo import GuardConfig, Limit, Overlong
from posttrain.errors import TrainingError


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


class HealthGuard:
    """Compares the last batches with the recipe's limits."""

    def __init__(self, config: GuardConfig) -> None:
        self.config = config

    def check(self, rows: Sequence[Mapping[str, Any]], *, last: bool = False) -> list[str]:
        """Warnings, from the rows of all batches so far, the newest last.

        Args:
            last: no batch follows: a run shorter than the window is looked at as a whole.

        Raises:
            TrainingError: a sign has reached its `stop`; the message names what to do.
        """
        window = min(self.config.window, len(rows)) if last else self.config.window
        if len(rows) < window:
            return []
        warnings: list[str] = []
        for sign in SIGNS:
            limit: Limit = getattr(self.config, sign.name)
            value = _value(sign, rows, window)
            if value is None:
                continue
            finding = _finding(sign, value, window)
            if limit.stop is not None and _reached(sign, value, limit.stop):
                raise TrainingError(
                    f"step {rows[-1]['step']}: {finding} (guard.{sign.name}.stop is {limit.stop:g})"
                    f": {sign.advice}. To go on as it is, set guard.{sign.name}.stop: null and "
                    "start again"
                )
            if limit.warn is not None and _reached(sign, value, limit.warn):
                warnings.append(f"{finding} (warns at {limit.warn:g}): {sign.advice}")
        return warnings


def why_untrained(rows: Sequence[Mapping[str, Any]], *, overlong: Overlong) -> str:
    """What kept every rollout out of the loss, as shares of all of them, and what to do."""
    keeping_out = {"unscored"} if overlong == "train" else {"unscored", "truncated"}
    return "; ".join(
        f"{share:.0%} of the rollouts were {sign.name}: {sign.advice}"
        for sign in SIGNS
        if sign.name in keeping_out and (share := _mean(rows, sign.key))
    )


def _value(sign: _Sign, rows: Sequence[Mapping[str, Any]], window: int) -> float | None:
    last = _mean(rows[-window:], sign.key)
    if not sign.relative or last is None:
        return last
    # a window that is also the first says nothing about change
    first = _mean(rows[:window], sign.key) if len(rows) > window else None
    return last / first if first else None


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if key in row]
    return statistics.fmean(values) if values else None


def _reached(sign: _Sign, value: float, limit: float) -> bool:
    return value <= limit if sign.falls else value >= limit


def _finding(sign: _Sign, value: float, window: int) -> str:
    unit = " of what it was in the first ones" if sign.relative else ""
    name = sign.name.replace("_", " ")
    return f"{name} is {value:.3g}{unit} over the last {window} batch{'es' if window > 1 else ''}"
