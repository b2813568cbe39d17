"""A group's base rewards and its rollouts → rewards with every part of them told apart.

    with_lengths([3.5, 4.0], completions, LengthConfig())
    → ((3.75, 4.25), {"base": (3.5, 4.0), "reasoning_length": (0.25, -0.25), …})

Beside the parts stand the lengths themselves, in tokens whatever unit the reward is in.
"""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.config.judge import LengthConfig
from posttrain.rollouts import Completion
from reward.length import characters, length_adjustments
from reward.style import style_density

Values = tuple[float | None, ...]
PENALTY_UNITS = 100  # `absolute_penalty` is taken off for so many


def with_lengths(
    base: Sequence[float | None], completions: Sequence[Completion], config: LengthConfig
) -> tuple[Values, dict[str, Values]]:
    """Rewards, one a rollout, and their parts; None where `base` is None."""
    reasoning, answers = _lengths(completions, config)
    densities = None
    if config.style_coefficient:
        densities = [style_density(completion.answer) for completion in completions]
    adjusted = length_adjustments(
        base,
        reasoning,
        answers,
        reasoning_coefficient=config.reasoning_coefficient,
        answer_coefficient=config.answer_coefficient,
        reasoning_bonus=config.reasoning_bonus,
        answer_bonus=config.answer_bonus,
        quality_percentile=config.quality_percentile,
        truncated=[completion.truncated for completion in completions],
        style_densities=densities,
        style_coefficient=config.style_coefficient,
    )
    penalties = tuple(
        -config.absolute_penalty * (r + a) / PENALTY_UNITS if scored is not None else None
        for r, a, scored in zip(reasoning, answers, base, strict=True)
    )
    rewards = tuple(
        None if reward is None or penalty is None else reward + penalty
        for reward, penalty in zip(adjusted.rewards, penalties, strict=True)
    )
    parts: dict[str, Values] = {
        "base": tuple(base),
        "reasoning_length": tuple(adjusted.reasoning_length),
        "answer_length": tuple(adjusted.answer_length),
        "reasoning_bonus": tuple(adjusted.reasoning_bonus),
        "answer_bonus": tuple(adjusted.answer_bonus),
    }
    if config.style_coefficient:
        parts["style"] = tuple(adjusted.style)
    if config.absolute_penalty:
        parts["absolute_penalty"] = penalties
    parts["reasoning_tokens"] = tuple(float(c.reasoning_tokens) for c in completions)
    parts["answer_tokens"] = tuple(float(c.answer_tokens) for c in completions)
    return rewards, parts


def _lengths(
    completions: Sequence[Completion], config: LengthConfig
) -> tuple[list[float], list[float]]:
    """Lengths of the reasoning and of the answers, calls included; every step counts."""
    if config.unit == "tokens":
        return (
            [float(completion.reasoning_tokens) for completion in completions],
            [float(completion.answer_tokens) for completion in completions],
        )
    parsed = [[step.parsed for step in completion.steps] for completion in completions]
    return (
        [float(sum(characters(p.reasoning or "") for p in steps)) for steps in parsed],
        [float(sum(characters(p.answer) for p in steps)) for steps in parsed],
    )
