"""Recovery of a teacher's lead: its value, its interval and when there is none."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from posttrain.errors import ConfigError
from posttrain.evaluation.recovery import recovery
from posttrain.sampling.sampler import Request
from tests.evaluation.scripted import ScriptedSampler, turn
from tests.evaluation.small_eval import evaluate, run_script, write_recipe


def test_the_value_is_the_ratio_of_the_means_and_lies_inside_its_interval():
    before = [0.0, 0.25, 0.5, 0.0, 0.25, 0.5]
    after = [0.5, 0.5, 0.75, 0.25, 0.75, 1.0]
    teacher = [1.0, 0.75, 1.0, 0.5, 1.0, 1.0]
    result = recovery(before, after, teacher)
    assert result is not None
    value, low, high = result
    assert value == pytest.approx((3.75 - 1.5) / (5.25 - 1.5))
    assert low < value < high
    narrower = recovery(before, after, teacher, quantile=0.5)
    assert narrower is not None
    assert low < narrower.low < value < narrower.high < high


def test_the_bounds_are_the_ratios_at_which_the_questions_stop_to_contradict():
    """Student's t of after − before − ρ (teacher − before) is the quantile at both bounds."""
    generator = np.random.default_rng(2)
    before, after, teacher = generator.normal([[0.0], [0.4], [1.0]], 0.5, (3, 12)).tolist()
    result = recovery(before, after, teacher)
    assert result is not None
    for bound in (result.low, result.high):
        differences = [
            a - b - bound * (t - b) for b, a, t in zip(before, after, teacher, strict=True)
        ]
        error = np.std(differences, ddof=1) / math.sqrt(12)
        assert abs(np.mean(differences)) / error == pytest.approx(2.200985, abs=1e-5)


def test_intervals_hold_the_true_ratio_as_often_as_they_say():
    generator = np.random.default_rng(7)
    held = 0
    resolved = 0
    for _ in range(600):
        chance = generator.beta(1, 2, 60)
        draws = generator.random((3, 60))
        before = draws[0] < chance
        after = draws[1] < 0.7 * chance + 0.3
        teacher = draws[2] < 0.4 * chance + 0.6
        result = recovery([*before * 1.0], [*after * 1.0], [*teacher * 1.0], quantile=0.9)
        if result is not None:
            resolved += 1
            held += result.low <= 0.5 <= result.high
    assert resolved > 580
    assert held / resolved == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize(
    ("before", "teacher"),
    [
        pytest.param([0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0], id="no lead"),
        pytest.param([0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0], id="a lead within the noise"),
        pytest.param([1.0, 0.9, 1.0, 0.9], [0.1, 0.1, 0.0, 0.1], id="a negative lead"),
        pytest.param(
            [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0], id="a negative lead without noise"
        ),
        pytest.param([0.0], [1.0], id="a single question"),
        pytest.param([], [], id="no question"),
    ],
)
def test_without_a_resolved_lead_there_is_no_recovery(before: list[float], teacher: list[float]):
    assert recovery(before, [0.5] * len(before), teacher) is None


def test_a_lead_that_does_not_vary_has_a_recovery():
    result = recovery([0.0, 0.1, 0.2], [0.25, 0.35, 0.45], [0.5, 0.6, 0.7])
    assert result is not None
    assert result == pytest.approx((0.5, 0.5, 0.5))


def test_scores_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="2 before, 1 after, 2 of the teacher"):
        recovery([0.0, 1.0], [1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="not finite"):
        recovery([0.0, 1.0], [1.0, math.nan], [1.0, 1.0])
    with pytest.raises(ValueError, match="quantile"):
        recovery([0.0, 1.0], [1.0, 1.0], [1.0, 1.0], quantile=95)


# ---- of an evaluation ----


def _answering(share: int) -> ScriptedSampler:
    """Sampler that answers this many quarters of the questions right."""

    def answer(request: Request) -> str:
        number = int(request.messages[-1].content.split()[1].rstrip(":"))
        return turn("56" if number % 4 < share else "55", thinking=request.thinking)

    return ScriptedSampler(answer)


def test_an_evaluation_has_the_recovery_of_the_tasks_that_have_a_teacher(tmp_path: Path):
    """The student answers half of the questions, later three quarters, its teacher all."""
    checkpoints = ("student", "distilled", "teacher")
    shares = dict(zip(checkpoints, (2, 3, 4), strict=True))
    folder = str(tmp_path / "checkpoint")
    recovery_keys = {"before": "student", "after": "distilled", "teachers": {"sums": "teacher"}}
    recipe = write_recipe(
        tmp_path,
        checkpoints=dict.fromkeys(checkpoints, folder),
        settings=[{"name": "plain", "thinking": 0.0, "n": 1}],
        recovery=recovery_keys,
    )
    evaluate(recipe, samplers=[_answering(shares[name]) for name in checkpoints])
    [row] = json.loads((tmp_path / "out" / "metrics.json").read_text())["recovery"]
    assert (row["task"], row["teacher"], row["questions"]) == ("sums", "teacher", 12)
    assert (row["before"], row["after"], row["teacher_mean"]) == (0.5, 0.75, 1.0)
    assert row["recovery"]["value"] == pytest.approx(0.5)
    page = (tmp_path / "out" / "report.html").read_text()
    assert ">Recovery<" in page
    # graded again, the run keeps the table
    run_script(["rescore", str(tmp_path / "out"), f"out={tmp_path / 'again'}"])
    [regraded] = json.loads((tmp_path / "again" / "metrics.json").read_text())["recovery"]
    assert regraded == row
    with pytest.raises(ConfigError, match=r"recovery\.teachers: there is no task 'summs'"):
        evaluate(recipe, 'recovery.teachers={"summs": "teacher"}', samplers=[])


def test_a_quantised_checkpoint_recovers_a_share_of_its_source(tmp_path: Path):
    """The source answers all questions right, the quantised checkpoint three quarters."""
    folder = str(tmp_path / "checkpoint")
    recipe = write_recipe(
        tmp_path,
        checkpoints={"source": folder, "fp8": folder},
        settings=[{"name": "plain", "thinking": 0.0, "n": 1}],
        recovery={"after": "fp8", "teachers": {"sums": "source"}},
    )
    evaluate(recipe, samplers=[_answering(4), _answering(3)])
    [row] = json.loads((tmp_path / "out" / "metrics.json").read_text())["recovery"]
    assert row["before"] is None
    assert row["recovery"]["value"] == pytest.approx(0.75)
    assert row["recovery"]["low"] < 0.75 < row["recovery"]["high"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "after / source" in page
    assert re.search(r">75\.0.% \(\d+\.\d.….\d+\.\d\)<", page)
    assert ">before<" not in page.split(">Recovery<")[1].split("</table>")[0]
