"""Group-relative length control: a response shorter than others of its group gets a higher reward.

    R_i = base_i + c_r · w̃_i(reasoning) + c_a · w̃_i(answer) + bonuses,  w̃_i = w_i − mean(w),
    w_i = 1 − (l_i − l_min) / (l_max − l_min)                       (paper 3.3.2, equations 4 to 6)

The bonuses, for the shortest reasoning and the shortest answer, are given only to a response whose
base reward reaches a percentile of the group's. Where this differs from NVIDIA's public code: the
percentile is numpy's linear one (theirs, by index, lets one response fewer pass at 16); a missing
or cut-off answer earns no length weight (theirs counts it as the shortest of all); unscored
responses take no part (theirs are scored 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posttrain.config.judge import LengthConfig
from posttrain.rollouts import Completion

Values = list[float | None]


@dataclass(frozen=True, slots=True)
class Adjusted:
    """Rewards after length control.

    Attributes:
        rewards: reward of each response, None where unscored.
        parts: part → what it added to each response's base reward, None where unscored.
    """

    rewards: Values
    parts: dict[str, Values]


def length_adjustments(
    base: Sequence[float | None],
    reasoning_lengths: Sequence[float],
    answer_lengths: Sequence[float],
    *,
    reasoning_coefficient: float = 0.5,
    answer_coefficient: float = 0.5,
    reasoning_bonus: float = 0.5,
    answer_bonus: float = 0.5,
    quality_percentile: float = 80,
    truncated: Sequence[bool] | None = None,
) -> Adjusted:
    """Apply length control to one group's rewards. Lengths are in any one unit, e.g. tokens.

    Args:
        base: base rewards; None, unscored, is in no minimum, maximum, mean or percentile.
        reasoning_lengths, answer_lengths: not negative. An answer of length 0 is missing: it takes
            no part in the answers' weights and bonus. Reasoning of length 0 counts as short,
            but wins no bonus.
        reasoning_coefficient, answer_coefficient: c_r and c_a; 0 turns that part off.
        reasoning_bonus, answer_bonus: for the shortest that is not empty, the first of equal ones,
            if its base reward is at or above the percentile; otherwise for nobody.
        quality_percentile: 0 to 100, linear between the two nearest base rewards.
        truncated: the responses that a limit cut off: their answers are treated as missing.

    Fewer than two scored responses are not adjusted.

    Raises:
        ValueError: lists of different lengths, a value not finite, a negative length, a
            percentile outside 0 to 100.
    """
    cut_off = [False] * len(base) if truncated is None else truncated
    coefficients = {
        "reasoning_coefficient": reasoning_coefficient,
        "answer_coefficient": answer_coefficient,
        "reasoning_bonus": reasoning_bonus,
        "answer_bonus": answer_bonus,
    }
    for name, value in coefficients.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")
    if not 0 <= quality_percentile <= 100:
        raise ValueError(f"quality_percentile must be in 0 to 100, got {quality_percentile}")
    for i, reward in enumerate(base):
        if reward is not None and not math.isfinite(reward):
            raise ValueError(f"base[{i}] is {reward}: an unscored response is None")
    columns: dict[str, Sequence[float]] = {
        "reasoning_lengths": reasoning_lengths,
        "answer_lengths": answer_lengths,
        "truncated": cut_off,
    }
    for name, values in columns.items():
        if len(values) != len(base):
            raise ValueError(f"{len(base)} base rewards but {len(values)} {name}")
        for i, value in enumerate(values):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}[{i}] is {value}: it must be finite and not negative")

    scored_rewards = {i: reward for i, reward in enumerate(base) if reward is not None}
    scored = list(scored_rewards)
    # an answer that is missing or cut off is no short one, and would win the bonus
    answered = [i for i in scored if answer_lengths[i] > 0 and not cut_off[i]]
    reasoned = [i for i in scored if reasoning_lengths[i] > 0]
    passing: set[int] = set()
    # a lone response would be its own percentile, and win both bonuses
    if len(scored) > 1:
        threshold = float(np.percentile([*scored_rewards.values()], quality_percentile))
        passing = {i for i, reward in scored_rewards.items() if reward >= threshold}
    additions_by_part = {
        "reasoning_length": _centred_weights(reasoning_lengths, scored, reasoning_coefficient),
        "answer_length": _centred_weights(answer_lengths, answered, answer_coefficient),
        "reasoning_bonus": _bonus_of_shortest(
            reasoning_lengths, reasoned, passing, reasoning_bonus
        ),
        "answer_bonus": _bonus_of_shortest(answer_lengths, answered, passing, answer_bonus),
    }
    parts: dict[str, Values] = {}
    for name, additions in additions_by_part.items():
        parts[name] = [
            additions.get(i, 0.0) if i in scored_rewards else None for i in range(len(base))
        ]
    rewards: Values = [None] * len(base)
    for i, reward in scored_rewards.items():
        additions = [part.get(i, 0.0) for part in additions_by_part.values()]
        rewards[i] = math.fsum([reward, *additions])
    return Adjusted(rewards, parts)


def _centred_weights(
    values: Sequence[float], members: Sequence[int], coefficient: float
) -> dict[int, float]:
    """Centred weight c · (w − mean(w)) of each member, by index; {} where all values are equal."""
    member_values = [values[i] for i in members]
    if not member_values or min(member_values) == max(member_values):
        return {}
    lowest = min(member_values)
    span = max(member_values) - lowest
    weights = [1 - (value - lowest) / span for value in member_values]
    mean = math.fsum(weights) / len(weights)
    return {i: coefficient * (weight - mean) for i, weight in zip(members, weights, strict=True)}


def _bonus_of_shortest(
    lengths: Sequence[float], members: Sequence[int], passing: set[int], bonus: float
) -> dict[int, float]:
    """Bonus of the shortest member, by index; {} where its base reward does not pass.

    No other member gets it then: a longer answer is not to be preferred.
    """
    if not members:
        return {}
    shortest = min(members, key=lambda i: (lengths[i], i))  # the first of equal ones
    return {shortest: bonus} if shortest in passing else {}


Column = tuple[float | None, ...]


def with_lengths(
    base: Sequence[float | None], completions: Sequence[Completion], config: LengthConfig
) -> tuple[Column, dict[str, Column]]:
    """Add the length parts to a group's base rewards.

    Returns the reward of each rollout and the parts that it is made of, by name; None where `base`
    is None.
    """
    reasoning_lengths, answer_lengths = _measure_lengths(completions, config)
    adjusted = length_adjustments(
        base,
        reasoning_lengths,
        answer_lengths,
        truncated=[completion.truncated for completion in completions],
        **config.model_dump(exclude={"unit"}),
    )
    parts: dict[str, Column] = {"base": tuple(base)}
    parts |= {name: tuple(values) for name, values in adjusted.parts.items()}
    parts["reasoning_tokens"] = tuple(float(c.reasoning_tokens) for c in completions)
    parts["answer_tokens"] = tuple(float(c.answer_tokens) for c in completions)
    return tuple(adjusted.rewards), parts


def _measure_lengths(
    completions: Sequence[Completion], config: LengthConfig
) -> tuple[list[float], list[float]]:
    """Lengths of each rollout's reasoning and answer; every step counts.

    In tokens an answer includes its tool calls, in characters it does not.
    """
    reasoning_lengths: list[float] = []
    answer_lengths: list[float] = []
    for completion in completions:
        if config.unit == "tokens":
            reasoning_lengths.append(float(completion.reasoning_tokens))
            answer_lengths.append(float(completion.answer_tokens))
            continue
        # as NVIDIA's code measures them, without the white space around
        steps = [step.parsed for step in completion.steps]
        reasoning_lengths.append(float(sum(len((step.reasoning or "").strip()) for step in steps)))
        answer_lengths.append(float(sum(len(step.answer.strip()) for step in steps)))
    return reasoning_lengths, answer_lengths
