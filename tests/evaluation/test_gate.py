"""The gate: how often it stops an equal, a worse and a better checkpoint; what a rule is about."""

from __future__ import annotations

import numpy as np
import pytest

from posttrain.config.eval import GateConfig, GateRule
from posttrain.errors import ConfigError
from posttrain.evaluation.compare import gate_rows, passes
from tests.evaluation.test_compare import record

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


@pytest.mark.parametrize("rule", [{"figure": "acuracy"}, {"task": "logs"}, {"setting": "tools"}])
def test_a_rule_about_nothing_is_refused(rule):
    records = [record(n, 1.0) for n in range(5)]
    with pytest.raises(ConfigError):
        gate_rows(GateConfig(rules=(GateRule(**rule),)), records, records)
