"""Differences between two checkpoints: signs, tests, intervals, and what they leave out."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from scipy import stats

from posttrain.config.eval import GateConfig, GateRule
from posttrain.errors import ConfigError
from posttrain.evaluation.compare import (
    Changes,
    gate_rows,
    length_difference,
    paired_rows,
    passes,
    rate_difference,
)
from posttrain.evaluation.intervals import Clustered, by_question
from tests.evaluation.coverage import Cell, gate_verdicts, measure_change, width_exists
from tests.evaluation.scripted import record


def clustered(values: Iterable[float], questions: Iterable[object]) -> Clustered:
    return by_question([*zip(values, questions, strict=True)])


def test_a_change_of_many_samples_has_the_interval_of_student():
    # 30 questions × 64 samples: what is added to be safe with few samples weighs nothing here
    rng = np.random.default_rng(3)
    before = rng.binomial(64, 0.6, 30) / 64
    after = rng.binomial(64, 0.5, 30) / 64
    changes = Changes(before, after, samples=64)
    low, high = changes.interval()
    error = changes.each.std(ddof=1) / 30**0.5
    half = stats.t.ppf(0.975, 29) * error
    assert high - low == pytest.approx(2 * half, rel=0.1)
    expected = stats.ttest_1samp(changes.each, 0.0).pvalue
    assert 0.2 * expected < changes.p < 5 * expected


@pytest.mark.parametrize("samples", [1, 4, 64])
@pytest.mark.parametrize("shares", [(0.0, 0.0), (1.0, 1.0), (1.0, 0.0)])
def test_a_change_of_which_all_questions_agree_is_not_known_exactly(samples, shares):
    before, after = (np.full(20, share) for share in shares)
    changes = Changes(before, after, samples=samples)
    low, high = changes.interval()
    assert low < after[0] - before[0] + 1e-9
    assert 0 < high - low < 0.2
    assert (changes.p < 0.05) == (before[0] != after[0])


def test_one_question_says_nothing_of_a_length_and_nearly_nothing_of_a_share():
    one = np.array([1.0])
    assert Changes(0 * one, one).interval() == (-np.inf, np.inf)
    assert Changes(0 * one, one).p == 1.0
    assert Changes(0 * one, one, samples=1).interval() == (-1.0, 1.0)


@pytest.mark.parametrize(
    "cell",
    [Cell(10, 16, "mixed"), Cell(30, 1, "easy"), Cell(30, 64, "mixed"), Cell(100, 4, "hard")],
)
def test_intervals_hold_the_truth_and_tests_find_it_nearly_as_often_as_student(cell: Cell):
    found = measure_change(cell, -0.05, trials=400)
    assert found.agree
    assert 0.92 <= found.coverage <= 0.995
    assert found.power >= found.student_power - 0.06


def test_of_five_questions_with_a_sample_no_width_covers_as_often_as_it_should():
    assert width_exists(Cell(5, 1, "hard"), 0.0, trials=1000) == (False, False)
    assert width_exists(Cell(30, 64, "mixed"), -0.05, trials=1000) == (True, True)


def test_a_true_loss_fails_the_gate_where_samples_are_many():
    verdicts = gate_verdicts(Cell(30, 64, "easy"), -0.10, margin=0.02, trials=100)
    assert verdicts["fail"] >= 90
    equal = gate_verdicts(Cell(30, 64, "easy"), 0.0, margin=0.02, trials=100)
    assert equal["fail"] <= 5


def test_rate_difference_with_several_samples():
    several = clustered([0.0, 1.0] * 8, [k // 2 for k in range(16)])
    sure = clustered([1.0, 1.0] * 8, [k // 2 for k in range(16)])
    found = rate_difference(several, sure)
    assert (found.a, found.b, found.difference) == (0.5, 1.0, 0.5)
    assert 0.3 < found.low < 0.5 < found.high
    assert found.p < 1e-4


def test_questions_in_another_order_are_matched_by_name():
    a = clustered([0.0, 1.0, 1.0], ["x", "y", "z"])
    b = clustered([1.0, 1.0, 1.0], ["z", "x", "w"])
    found = rate_difference(a, b)
    assert (found.questions, found.a, found.b) == (2, 0.5, 1.0)


def test_length_difference():
    a = clustered([float(k) for k in range(50)], range(50))
    b = clustered([float(k + 3) for k in range(50)], range(50))
    found = length_difference(a, b)
    assert found.difference == pytest.approx(3.0)
    assert found.low == pytest.approx(3.0)
    assert found.p < 0.001


def test_rows_hold_what_applies_to_both():
    a = [record(k, 0.0, called=k < 5) for k in range(20)]
    b = [record(k, None if k == 0 else 1.0, name="dpo") for k in range(20)]
    (row,) = paired_rows(a, b)
    assert (row["a"], row["b"], row["task"], row["thinking"]) == ("sft", "dpo", "maths", "on")
    assert row["rates"]["accuracy"]["questions"] == 19
    assert row["rates"]["hallucination"]["difference"] == pytest.approx(-0.25)
    assert 0.01 < row["rates"]["hallucination"]["p"] < 0.05
    assert "called_tool" not in row["rates"]


# -- the gate --------------------------------------------------------------------------------------

QUESTIONS, SAMPLES = 100, 1


def runs(rng, *, shift: float):
    """Two checkpoints on the same questions, whose difficulties differ; the second is moved."""
    chances = rng.beta(1, 1, QUESTIONS)
    sides = []
    for chance, name in ((chances, "a"), (np.clip(chances + shift, 0, 1), "b")):
        drawn = rng.random((SAMPLES, QUESTIONS)) < chance
        sides.append([
            record(q, float(drawn[i, q]), index=i, name=name)
            for q in range(QUESTIONS) for i in range(SAMPLES)
        ])  # fmt: skip
    return sides


@pytest.fixture(scope="module")
def simulated():
    rng = np.random.default_rng(17)
    shifts = {"equal": 0.0, "worse": -0.3}
    return {name: [runs(rng, shift=shift) for _ in range(25)] for name, shift in shifts.items()}


def test_an_equal_checkpoint_passes_and_a_worse_one_fails(simulated):
    gate = GateConfig(rules=(GateRule(margin=0.0), GateRule(figure="hallucination")))
    passed = {
        name: sum(passes(gate, gate_rows(gate, a, b)) for a, b in pairs)
        for name, pairs in simulated.items()
    }
    assert passed["equal"] >= 22
    assert passed["worse"] == 0


def test_verdicts_follow_from_the_bounds(simulated):
    a, b = simulated["worse"][0]
    (row,) = gate_rows(GateConfig(rules=(GateRule(margin=0.0),)), a, b)
    assert (row.verdict, row.task, row.questions) == ("fail", "maths", QUESTIONS)
    assert row.low < row.change < row.high < 0
    wide = GateConfig(rules=(GateRule(margin=0.5),))
    assert [r.verdict for r in gate_rows(wide, a, b)] == ["pass"]
    between = GateConfig(rules=(GateRule(margin=-row.change),), inconclusive="fail")
    rows = gate_rows(between, a, b)
    assert [r.verdict for r in rows] == ["inconclusive"]
    assert not passes(between, rows)
    assert passes(between.model_copy(update={"inconclusive": "pass"}), rows)


def test_more_of_a_bad_thing_is_worse():
    a = [record(n, 1.0) for n in range(60)]
    b = [record(n, 1.0, called=n < 30, name="b") for n in range(60)]
    gate = GateConfig(rules=(GateRule(figure="hallucination", margin=0.05),))
    (row,) = gate_rows(gate, a, b)
    assert row.verdict == "fail"
    (better,) = gate_rows(gate, b, a)
    assert better.verdict == "pass"


@pytest.mark.parametrize(
    ("lost", "verdict"), [(0, "pass"), (1, "pass"), (3, "fail"), (100, "fail")]
)
def test_what_our_side_failed_on_fails_the_gate_above_its_limit(lost: int, verdict: str):
    gate = GateConfig(rules=(GateRule(margin=0.3),))
    whole = [record(n, 1.0) for n in range(100)]
    holes = [record(n, None if n < lost else 1.0, name="b") for n in range(100)]
    for a, b in ((whole, holes), (holes, whole)):
        (row,) = gate_rows(gate, a, b)
        assert (row.verdict, row.unscored) == (verdict, lost / 100)
    assert passes(gate.model_copy(update={"max_unscored": 0.99}), gate_rows(gate, whole, whole))
    (pair,) = paired_rows(whole, holes)
    assert pair["unscored"] == {"a": 0, "b": lost}


@pytest.mark.parametrize("rule", [{"figure": "acuracy"}, {"task": "logs"}, {"setting": "tools"}])
def test_a_rule_about_nothing_is_refused(rule):
    records = [record(n, 1.0) for n in range(5)]
    with pytest.raises(ConfigError):
        gate_rows(GateConfig(rules=(GateRule(**rule),)), records, records)
