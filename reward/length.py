"""Group-relative length control: shorter than the group is better, by how much is the group's own.

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
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posttrain.config.judge import LengthConfig
from posttrain.rollouts import Completion

Values = list[float | None]


@dataclass(frozen=True, slots=True)
class Adjusted:
    """Rewards and, by part, what was added to the base; a value a response, None: unscored."""

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
    style_densities: Sequence[float] | None = None,
    style_coefficient: float = 0.0,
) -> Adjusted:
    """The rewards of one group after length control. Lengths are in any one unit, e.g. tokens.

    Args:
        base: base rewards; None, unscored, is in no minimum, maximum, mean or percentile.
        reasoning_lengths, answer_lengths: not negative. An answer of length 0 is missing: it takes
            no part in the answers' weights, style and bonus. Reasoning of length 0 counts as short,
            but wins no bonus.
        reasoning_coefficient, answer_coefficient: c_r and c_a; 0 turns that part off.
        reasoning_bonus, answer_bonus: for the shortest that is not empty, the first of equal ones,
            if its base reward is at or above the percentile; otherwise for nobody.
        quality_percentile: 0 to 100, linear between the two nearest base rewards.
        truncated: the responses that a limit cut off: their answers are treated as missing.
        style_densities: marks a character (`style_density`), needed for a `style_coefficient`;
            centred as the lengths are, among the answers that are there.

    Fewer than two scored responses are not adjusted.

    Raises:
        ValueError: lists of different lengths, a value not finite, a negative length or density, a
            percentile outside 0 to 100, a style coefficient without densities.
    """
    densities = [0.0] * len(base) if style_densities is None else style_densities
    cut = [False] * len(base) if truncated is None else truncated
    coefficients = {
        "reasoning_coefficient": reasoning_coefficient,
        "answer_coefficient": answer_coefficient,
        "reasoning_bonus": reasoning_bonus,
        "answer_bonus": answer_bonus,
        "style_coefficient": style_coefficient,
    }
    for name, value in coefficients.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")
    if not 0 <= quality_percentile <= 100:
        raise ValueError(f"quality_percentile must be in 0 to 100, got {quality_percentile}")
    if style_coefficient and style_densities is None:
        raise ValueError("style_coefficient needs style_densities")
    for i, reward in enumerate(base):
        if reward is not None and not math.isfinite(reward):
            raise ValueError(f"base[{i}] is {reward}: an unscored response is None")
    columns: dict[str, Sequence[float]] = {
        "reasoning_lengths": reasoning_lengths,
        "answer_lengths": answer_lengths,
        "style_densities": densities,
        "truncated": cut,
    }
    for name, values in columns.items():
        if len(values) != len(base):
            raise ValueError(f"{len(base)} base rewards but {len(values)} {name}")
        for i, value in enumerate(values):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}[{i}] is {value}: it must be finite and not negative")

    known = {i: reward for i, reward in enumerate(base) if reward is not None}
    scored = list(known)
    answered = [i for i in scored if answer_lengths[i] > 0 and not cut[i]]
    reasoned = [i for i in scored if reasoning_lengths[i] > 0]
    passing: set[int] = set()
    if len(scored) > 1:
        gate = float(np.percentile([*known.values()], quality_percentile))
        passing = {i for i, reward in known.items() if reward >= gate}
    parts = {
        "reasoning_length": _centred(reasoning_lengths, scored, reasoning_coefficient),
        "answer_length": _centred(answer_lengths, answered, answer_coefficient),
        "reasoning_bonus": _bonus(reasoning_lengths, reasoned, passing, reasoning_bonus),
        "answer_bonus": _bonus(answer_lengths, answered, passing, answer_bonus),
        "style": _centred(densities, answered, style_coefficient),
    }
    spread: dict[str, Values] = {
        name: [part.get(i, 0.0) if i in known else None for i in range(len(base))]
        for name, part in parts.items()
    }
    rewards: Values = [
        None if reward is None else math.fsum([reward, *(p.get(i, 0.0) for p in parts.values())])
        for i, reward in enumerate(base)
    ]
    return Adjusted(rewards, spread)


def _centred(
    values: Sequence[float], members: Sequence[int], coefficient: float
) -> dict[int, float]:
    """Index → c · (w − mean(w)) of the members; nothing where all are equal."""
    taken = [values[i] for i in members]
    if not taken or min(taken) == max(taken):
        return {}
    lowest, span = min(taken), max(taken) - min(taken)
    weights = [1 - (value - lowest) / span for value in taken]
    mean = math.fsum(weights) / len(weights)
    return {i: coefficient * (w - mean) for i, w in zip(members, weights, strict=True)}


def _bonus(
    lengths: Sequence[float], members: Sequence[int], passing: set[int], bonus: float
) -> dict[int, float]:
    """Of the shortest member alone: if it does not pass, there is no bonus."""
    if not members:
        return {}
    shortest = min(members, key=lambda i: (lengths[i], i))
    return {shortest: bonus} if shortest in passing else {}


Column = tuple[float | None, ...]


def with_lengths(
    base: Sequence[float | None], completions: Sequence[Completion], config: LengthConfig
) -> tuple[Column, dict[str, Column]]:
    """Rewards, one a rollout, and their parts; None where `base` is None."""
    reasoning, answers = _lengths(completions, config)
    densities = [style_density(c.answer) for c in completions] if config.style_coefficient else None
    adjusted = length_adjustments(
        base,
        reasoning,
        answers,
        truncated=[completion.truncated for completion in completions],
        style_densities=densities,
        **config.model_dump(exclude={"unit"}),
    )
    parts: dict[str, Column] = {"base": tuple(base)}
    parts |= {name: tuple(values) for name, values in adjusted.parts.items()}
    if not config.style_coefficient:
        del parts["style"]
    parts["reasoning_tokens"] = tuple(float(c.reasoning_tokens) for c in completions)
    parts["answer_tokens"] = tuple(float(c.answer_tokens) for c in completions)
    return tuple(adjusted.rewards), parts


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
    # as NVIDIA's code measures them, without the white space around
    return (
        [float(sum(len((p.reasoning or "").strip()) for p in steps)) for steps in parsed],
        [float(sum(len(p.answer.strip()) for p in steps)) for steps in parsed],
    )


# a fence that is never closed runs to the end, as Markdown has it
_CODE = re.compile(
    r"^[ \t]*(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})[^\n]*"
    r"(?:\n.*?)??(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_MARKS = (
    re.compile(r"^ {0,3}#{1,6}[ \t]+\S", re.MULTILINE),
    re.compile(r"^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+\S", re.MULTILINE),
    re.compile(r"\*\*(?=\S)[^*\n]+\*\*|(?<!\w)__(?=\S)[^_\n]+__(?!\w)"),
    re.compile(
        "[\U0001f1e6-\U0001f1ff\U0001f300-\U0001f64f\U0001f680-\U0001f6ff"
        "\U0001f900-\U0001f9ff\U0001fa70-\U0001faff\u2600-\u27bf\u2b50\u2b55]"
    ),
)


def style_density(text: str) -> float:
    """Marks per character outside fenced code, white space around it not counted; 0 of nothing.
    Each emoji character counts: a flag is two, a sequence as many as it is made of."""
    prose = _CODE.sub("", text).strip()
    if not prose:
        return 0.0
    return sum(1 for mark in _MARKS for _ in mark.finditer(prose)) / len(prose)
