"""The filter against loops: made-up loops that drift, honest kinds, and texts that were read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_builders.filters.repetition import find_repetitions, rules_on
from data_builders.filters.suspects import suspects
from data_builders.filters.words import split_texts
from posttrain.config.filters import RepetitionFilter
from tests.data_builders.loops import Plan, counted, honest_kinds, planted
from tests.data_builders.spoken import labels, spoken

LIMITS = RepetitionFilter()


def prose(count: int, seed: int) -> str:
    """Sentences without sense of some hundred words of their own."""
    rng = random.Random(seed)
    pool = [
        f"{a}{b}{c}" for a in "bcdfgklmprst" for b in ("an", "el", "ior", "uta") for c in "aeos"
    ]
    return " ".join(
        " ".join(rng.choices(pool, k=rng.randint(8, 16))).capitalize() + "." for _ in range(count)
    )


def formulas(count: int, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(
        rf"Since $x_{{{rng.randint(1, 99)}}}^{rng.randint(2, 9)} + {rng.choice('abcdefgh')} \le "
        rf"\frac{{{rng.choice('pqrstuvw')}}}{{{rng.randint(2, 99)}}}$, {rng.choice('klmn')} holds."
        for _ in range(count)
    )


def found(texts: list[str]) -> float:
    loops = find_repetitions(texts, LIMITS)
    return sum(loop is not None for loop in loops) / len(texts)


# rounds whose words change, come and go: the share of loops that must be found at least; long rounds
# with a word in twenty changed look like honest steps with other numbers, and half of them pass
@pytest.mark.parametrize(
    ("cycle", "drift", "least"),
    [(3, 0.05, 0.8), (10, 0.05, 0.9), (30, 0.0, 1.0), (30, 0.05, 0.5), (100, 0.02, 0.8)],
)
def test_loops_that_drift_are_found_wherever_they_stand(cycle: int, drift: float, least: float):
    rng = random.Random(0)
    texts = [
        planted(
            prose(150, seed),
            Plan(cycle, drift, position=seed % 5 / 4, share=(0.2, 0.5, 0.9)[seed % 3]),
            rng,
        )
        for seed in range(20)
    ]
    assert found(texts) >= least


def test_formulas_said_again_to_the_letter_are_found():
    texts = [
        planted(formulas(150, seed), Plan(cycle, 0.0, rounds=8), random.Random(seed))
        for seed, cycle in enumerate((12, 30, 60, 100))
    ]
    assert found(texts) == 1


def test_numbers_that_count_hide_no_loop():
    assert found([counted("the sum is still not equal to ten, so I go on.", 40)]) == 1
    two = "".join(
        f"{k}. {'Identify' if k % 2 else 'Define'} the risks of the project.\n"
        for k in range(1, 37)
    )
    assert found([two]) == 1


@pytest.mark.parametrize("seed", range(3))
def test_honest_kinds_stay(seed: int):
    kinds = honest_kinds(random.Random(seed))
    loops = find_repetitions(list(kinds.values()), LIMITS)
    assert {kind: loop for kind, loop in zip(kinds, loops, strict=True) if loop} == {}
    assert found([prose(300, seed), formulas(200, seed)]) == 0


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 999),
    cycle=st.sampled_from([3, 7, 20, 45, 110]),
    drift=st.sampled_from([0.0, 0.03, 0.06, 0.1, 0.14]),
    rounds=st.integers(6, 12),
    words=st.sampled_from([80, 160, 500]),
    plain=st.booleans(),
)
def test_whatever_a_rule_finds_the_first_pass_has_suspected(
    seed: int, cycle: int, drift: float, rounds: int, words: int, plain: bool
):
    plan = Plan(cycle, drift, words=words, rounds=rounds, position=0.5)
    text = planted((prose if plain else formulas)(60, seed), plan, random.Random(seed))
    split = split_texts([text])
    if rules_on(split, LIMITS) is not None:
        assert suspects(split, LIMITS) == [0]


def test_texts_that_were_read(shared: Path):
    """Of the labelled real texts no honest one is dropped, and most loops are."""
    by_label: dict[str, list[bool]] = {"loop": [], "honest": []}
    read = labels()
    for name in ("pandalm_human", "open_instruct_human_eval_pairs", "reasoning_gym_graded"):
        texts = [t for t in spoken(shared, name) if (name, t.row, t.part) in read]
        loops = find_repetitions([t.text for t in texts], LIMITS)
        for text, loop in zip(texts, loops, strict=True):
            by_label.setdefault(read[name, text.row, text.part], []).append(loop is not None)
    assert not any(by_label["honest"])
    assert len(by_label["honest"]) >= 200
    assert sum(by_label["loop"]) >= 0.75 * len(by_label["loop"])


def test_a_texts_verdict_depends_on_it_alone(shared: Path):
    texts = [text.text for text in spoken(shared, "reasoning_ma_inline")]
    alone = [find_repetitions([text], LIMITS)[0] for text in texts]
    assert find_repetitions(texts, LIMITS) == alone
    assert sum(loop is not None for loop in alone) == 3


@pytest.mark.parametrize("offset", range(0, 260, 37))
def test_blanks_are_counted_to_the_character(offset: int):
    before, after = "word " * 100 + "x" * (offset + 1), "and on" * 30
    for blanks in (" ", " \n", "\n"):
        run = blanks * (LIMITS.blanks // len(blanks))
        [long, short] = find_repetitions([before + run + after, before + run[1:] + after], LIMITS)
        assert long is not None
        assert (long.rule, long.start, long.end) == ("blanks", len(before), len(before + run))
        assert short is None or short.rule != "blanks"
