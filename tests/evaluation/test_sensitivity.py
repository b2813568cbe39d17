"""Prompt sensitivity: the formulas, what is left out of them, and a whole evaluation."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from posttrain.chat.detect import CallDetection
from posttrain.errors import ConfigError
from posttrain.evaluation.run import Record, read_run
from posttrain.evaluation.sensitivity import mean_and_variance, sensitivity, sensitivity_rows
from posttrain.records import Message, Score
from posttrain.rollouts import Completion, Prompt
from tests.evaluation.scripted import ScriptedSampler, turn
from tests.evaluation.small_eval import run_script, write_recipe


def test_the_metric_its_floor_and_what_is_left_of_it():
    means, variances = np.array([0.4, 0.5, 0.6, 0.7]), np.full(4, 0.001)
    found = sensitivity(means, variances)
    assert found.sd == pytest.approx(np.sqrt(0.0125))  # ddof 0
    assert found.floor == pytest.approx(np.sqrt(0.00075))
    assert found.debiased == pytest.approx(np.sqrt(0.0125 - 0.00075))
    # the upper tail of chi-squared with 3 degrees of freedom at 50
    tail = math.erfc(5) + math.sqrt(100 / math.pi) * math.exp(-25)
    assert found.p == pytest.approx(tail)
    flat = sensitivity(np.array([0.5, 0.51, 0.5, 0.49]), variances)
    assert (flat.debiased, flat.low) == (0.0, 0.0)
    certain = sensitivity(means, np.zeros(4))
    assert certain.low == certain.high == certain.debiased == certain.sd
    assert sensitivity(means, None).floor is None


def test_the_variance_of_a_mean_is_of_sampling_alone():
    mean, variance = mean_and_variance([[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0]])
    assert mean == 0.5
    assert variance == pytest.approx((1 / 3) / 4 / 9)
    assert mean_and_variance([[1], [0]]) == (0.5, None)


@pytest.mark.parametrize("points", [0, 2])
def test_the_interval_covers_the_truth_and_the_raw_value_is_too_large(points: int):
    rng = np.random.default_rng(points)
    shape = np.linspace(-1, 1, 12)
    chances = rng.uniform(0.15, 0.85, 100)[:, None] + shape / shape.std() * points / 100
    found = []
    for _ in range(60):
        shares = rng.binomial(8, chances) / 8
        variances = (shares * (1 - shares) / 7).sum(axis=0) / 100**2
        found.append(sensitivity(shares.mean(axis=0), variances))
    # 95 % of 60 and less than this in one of a thousand cases
    assert sum(f.low <= points / 100 <= f.high for f in found) >= 51
    assert np.mean([f.sd for f in found]) > points / 100 + 0.003
    variance = np.mean([f.sd**2 - f.floor**2 for f in found])
    assert variance == pytest.approx((points / 100) ** 2, abs=6e-5)


def record(template: str, question: str, index: int, value: float | None, answer: str | None):
    prompt = Prompt(
        id=f"{question}/s/on/{template}",
        task=question,
        setting="s",
        messages=(Message("user", "?"),),
        source="t",
        template=template,
    )
    completion = Completion(prompt.id, index, (), "stop")
    return Record("m", prompt, completion, Score(value, answer, ""), CallDetection(()))


def test_a_question_that_one_template_leaves_unscored_is_left_out_of_all():
    records = [
        record(template, question, index, value, "7" if value else "8")
        for template, right in (("a", {"x", "y"}), ("b", {"x"}))
        for question in ("x", "y")
        for index in range(3)
        for value in [float(question in right)]
    ]
    [row] = sensitivity_rows(records)
    assert [one["mean"] for one in row["templates"]] == [1.0, 0.5]
    assert (row["sd"], row["questions"], row["left_out"]) == (0.25, 2, 0)
    # of 9 pairs each question 9 and 0 agree; within a template all do
    assert (row["consistency"], row["consistency_within"]) == (0.5, 1.0)
    hidden = [
        record("b", "y", r.completion.index, None, None)
        if (r.prompt.template, r.prompt.task) == ("b", "y")
        else r
        for r in records
    ]
    [row] = sensitivity_rows(hidden)
    assert [one["mean"] for one in row["templates"]] == [1.0, 1.0]
    assert (row["sd"], row["questions"], row["left_out"]) == (0.0, 1, 1)
    assert [one["unscored"] for one in row["templates"]] == [0, 3]


def test_answers_that_are_not_read_agree_with_none_and_right_ones_with_each_other():
    same = [record(t, "x", 0, 1.0, text) for t, text in (("a", "1/2"), ("b", "0.5"))]
    assert sensitivity_rows(same)[0]["consistency"] == 1.0
    unread = [record(t, "x", 0, 0.0, None) for t in ("a", "b")]
    assert sensitivity_rows(unread)[0]["consistency"] == 0.0


TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import match
from inspect_ai.solver import generate


@task
def products():
    chat = [ChatMessageSystem(content="Be brief."), ChatMessageUser(content="8*7?")]
    samples = [Sample(input="7*8?", target="56"), Sample(input=chat, target="56")]
    return Task(dataset=samples, solver=[generate()], scorer=match())
"""


def test_an_evaluation_measures_and_shows_it(tmp_path: Path, capsys):
    pytest.importorskip("inspect_ai")
    (tmp_path / "tasks.py").write_text(TASK)
    texts = {"short": "{question}", "long": "Please answer: {question}", "odd": "Hm. {question}"}
    templates = {"templates": [{"name": name, "text": text} for name, text in texts.items()]}
    recipe = write_recipe(
        tmp_path,
        prompts=[
            {"name": "sums", "format": "question", "path": str(tmp_path / "sums.jsonl"),
             "grader": "exact", **templates},
            {"name": "office", "format": "environment", "environment": "workplace",
             "generated": 3, "count": 2, **templates},
            {"name": "products", "format": "inspect", "task": f"{tmp_path / 'tasks.py'}@products",
             **templates},
        ],
        settings=[{"name": "s", "thinking": 0, "n": 4}],
        checkpoints={"sft": str(tmp_path / "checkpoint")},
    )  # fmt: skip

    def answer(request) -> str:
        wrong = request.messages[-1].content.startswith("Please") and request.seed % 4
        return turn("55" if wrong else "56", thinking=False)

    run_script(["--config", str(recipe)], [ScriptedSampler(answer)])
    out = tmp_path / "out"
    rows = {r["task"]: r for r in json.loads((out / "metrics.json").read_text())["sensitivity"]}
    row = rows["sums"]
    by_name = {one["template"]: one["mean"] for one in row["templates"]}
    assert by_name["short"] == by_name["odd"] == 1.0 > by_name["long"]
    assert row["sd"] == pytest.approx(np.std(list(by_name.values())))
    assert (row["questions"], rows["office"]["questions"]) == (12, 2)
    assert row["p"] < 0.01
    means = [one["mean"] for one in rows["products"]["templates"]]
    assert means[0] == means[2] == 1.0 > means[1]
    lines = list(csv.DictReader((out / "export/scores.csv").read_text().splitlines()))
    exported = {line["figure"]: line for line in lines if line["task"] == "sums"}
    assert float(exported["accuracy in template long"]["value"]) == by_name["long"]
    assert float(exported["sensitivity sd"]["value"]) == row["sd"]
    assert float(exported["sensitivity debiased"]["low"]) == row["low"]
    assert f"| 3 | {100 * row['sd']:.2f} |" in (out / "export/table.md").read_text()
    assert "Prompt sensitivity" in (out / "report.html").read_text()
    _, found = read_run(out)
    for prompt in (r.prompt for r in found["sft"]):
        user = next(m for m in prompt.messages if m.role == "user")
        assert user.content.startswith("Please") == (prompt.template == "long")
    # tasks of inspect are run again on their journals, in the same templates
    run_script(["rescore", str(out)])
    assert "0 scores and 0 verdicts changed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ({"format": "environment", "environment": "workplace", "generated": 1, "count": 2,
          "templates": "math"}, "bring their own"),
        ({"format": "inspect", "task": "x@y", "templates": "free"}, "bring their own"),
        ({"format": "question", "path": "x", "grader": "math",
          "augment": {"templates": "math", "share": 0.5}}, "augment is for training"),
    ],
)  # fmt: skip
def test_what_a_task_cannot_be_given_in_is_refused(tmp_path: Path, prompt, wanted: str):
    recipe = write_recipe(tmp_path, prompts=[{"name": "q", **prompt}], settings=[{"name": "s"}])
    with pytest.raises(ConfigError, match=wanted):
        run_script(["--config", str(recipe)])
