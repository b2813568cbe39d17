"""Length control against the paper's equations, by hand and in exact fractions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.length import Values, length_adjustments

PARTS = ("reasoning_length", "answer_length", "reasoning_bonus", "answer_bonus")


def slow(base: Values, reasoning: Sequence[int], answers: Sequence[int]) -> list[float | None]:
    """The final reward with the paper's constants, in exact fractions."""
    scored = [i for i, b in enumerate(base) if b is not None]
    total = {i: Fraction(base[i] or 0) for i in scored}
    ranked = sorted(total.values())
    for lengths, members in ((reasoning, scored), (answers, [i for i in scored if answers[i]])):
        taken = [Fraction(lengths[i]) for i in members]
        if len(set(taken)) > 1:
            raw = [1 - (x - min(taken)) / (max(taken) - min(taken)) for x in taken]
            for i, w in zip(members, raw, strict=True):
                total[i] += (w - sum(raw) / len(raw)) / 2
        there = [i for i in members if lengths[i]]
        if len(ranked) > 1 and there:  # the gate by interpolation between ranks
            place = Fraction(4, 5) * (len(ranked) - 1)
            low = math.floor(place)
            high = min(low + 1, len(ranked) - 1)
            gate = ranked[low] + (place - low) * (ranked[high] - ranked[low])
            shortest = min(there, key=lambda i: (lengths[i], i))
            total[shortest] += Fraction(1, 2) * (Fraction(base[shortest] or 0) >= gate)
    return [float(total[i]) if i in total else None for i in range(len(base))]


@st.composite
def groups(draw: st.DrawFn) -> tuple[Values, list[int], list[int]]:
    n = draw(st.integers(0, 16))
    # quarters make every gate exact, so that a tie with it is decided alike
    base = st.none() | st.integers(2, 20).map(lambda k: k / 4)
    few = st.integers(0, 4) | st.integers(0, 5000)
    draws = (draw(st.lists(of, min_size=n, max_size=n)) for of in (base, few, few))
    return tuple(draws)


def test_four_responses_by_hand():
    # reasoning: w = 1, 3/4, 1/2, 0, mean 9/16; answers: w = 0, 1, 1/2, 1/2, mean 1/2
    # gate: rank 0.8 · 3 = 2.4, between 4 and 5: 4.4. The shortest reasoning is response 0's (5.0,
    # wins); the shortest answer is response 1's (3.0, below the gate: nobody wins)
    found = length_adjustments([5.0, 3.0, 4.0, 2.0], [100, 200, 300, 500], [90, 10, 50, 50])
    assert found.parts["reasoning_length"] == [7 / 32, 3 / 32, -1 / 32, -9 / 32]
    assert found.parts["answer_length"] == [-0.25, 0.25, 0, 0]
    assert found.parts["reasoning_bonus"] == [0.5, 0, 0, 0]
    assert found.parts["answer_bonus"] == [0, 0, 0, 0]
    assert found.rewards == [5.46875, 3.34375, 3.96875, 1.71875]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(groups())
def test_as_the_slow_reading_zero_sum_and_parts_add_up(group: tuple[Values, list[int], list[int]]):
    found = length_adjustments(*group)
    assert found.rewards == pytest.approx(slow(*group), abs=1e-12)
    for column in (found.parts["reasoning_length"], found.parts["answer_length"]):
        assert math.fsum(x for x in column if x is not None) == pytest.approx(0, abs=1e-12)
    for i, b in enumerate(group[0]):
        parts = [found.parts[name][i] for name in PARTS]
        if b is None:
            assert [found.rewards[i], *parts] == [None] * 5
        else:
            assert found.rewards[i] == pytest.approx(b + sum(parts), abs=1e-12)


def test_the_gate_is_numpys_and_not_by_index():
    base = [float(k) for k in range(16)]  # rank 0.8 · 15 = 12: four responses pass
    assert np.percentile(base, 80) == 12
    for place, bonus in ((12, 0.5), (11, 0.0)):
        lengths = [9] * 16
        lengths[place] = 5
        found = length_adjustments(base, lengths, lengths)
        assert found.parts["reasoning_bonus"][place] == found.parts["answer_bonus"][place] == bonus
        assert sum(filter(None, found.parts["reasoning_bonus"])) == bonus


def test_a_cut_answer_is_treated_as_missing_and_its_reasoning_as_any():
    given = ([4.0, 4.0, 4.0], [90, 30, 30], [3, 20, 60])
    cut = length_adjustments(*given, truncated=[True, False, False])
    assert cut == length_adjustments(*given[:2], [0, 20, 60])
    assert cut.parts["reasoning_length"][0] == pytest.approx(-1 / 3)
    assert length_adjustments(*given).parts["answer_bonus"] == [0.5, 0, 0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reasoning_lengths": [1, 2]}, "3 base rewards but 2 reasoning_lengths"),
        ({"base": [1.0, math.nan, 2.0]}, r"base\[1\] is nan"),
        ({"reasoning_lengths": [1, -1, 2]}, r"reasoning_lengths\[1\] is -1"),
        ({"quality_percentile": 101}, "0 to 100"),
        ({"reasoning_bonus": math.inf}, "reasoning_bonus must be finite"),
        ({"answer_bonus": math.nan}, "^answer_bonus must be finite"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(changed: dict[str, Any], message: str):
    columns: dict[str, Any] = dict.fromkeys(("reasoning_lengths", "answer_lengths"), (1, 2, 3))
    with pytest.raises(ValueError, match=message):
        length_adjustments(**{"base": [1.0, 2.0, 3.0], **columns, **changed})
