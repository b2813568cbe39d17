"""More than a third of the completions truncated, or without the format: said before any figure."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from posttrain.records import Message, Score
from posttrain.rollouts import Prompt
from posttrain.runs import read_artifact
from posttrain.sampling.alerts import alert, alert_texts, worst
from posttrain.sampling.sampler import Request
from reward.graders.base import lacks_format
from tests.evaluation.scripted import ScriptedSampler
from tests.evaluation.small_eval import evaluate
from tests.evaluation.small_eval import write_recipe as write_eval
from tests.sampling.scripted import END, Scripted
from tests.sampling.small_stage import sample, write_recipe


def test_a_third_is_not_more_than_a_third():
    assert alert("a", completions=30, truncated=10, unformatted=0) is None
    assert alert("a", completions=0, truncated=0, unformatted=0) is None
    row = alert("a", completions=30, truncated=6, unformatted=5)
    assert row is not None
    assert alert_texts([row]) == [
        "a: 36.7% of 30 completions are no answers: 6 truncated (raise sampling.max_tokens), "
        "5 without an answer in the form that is asked for"
    ]
    other = alert("b", completions=4, truncated=4, unformatted=0)
    assert other is not None
    assert worst([row, other]) == other


def test_tasks_of_a_checkpoint_with_equal_figures_share_a_sentence():
    def row(where: str, truncated: int) -> dict[str, Any]:
        return {"where": where, "completions": 4, "truncated": truncated, "unformatted": 0}

    rows = [row("sft, a", 4), row("sft, b", 3), row("sft, c", 4), row("dpo, a", 4)]
    remedy = "truncated (raise sampling.max_tokens)"
    assert alert_texts(rows) == [
        f"sft, a, c: 100.0% of 4 completions are no answers: 4 {remedy} each",
        f"sft, b: 75.0% of 4 completions are no answers: 3 {remedy}",
        f"dpo, a: 100.0% of 4 completions are no answers: 4 {remedy}",
    ]


@pytest.mark.parametrize(
    ("question", "right", "wrong"),
    [
        ("Put it in \\boxed{}.", "so \\boxed{5}", "so 5"),
        ("Write <answer>…</answer>.", "<answer>5</answer>", "5"),
        ("End with #### and the number.", "#### 5", "5"),
        ("End with 'Answer: X'.", "Answer: 5", "5"),
        ("Return valid JSON.", '{"n": 5}', "5"),
        ("End with \\boxed{} or ####.", "#### 5", "it is 5"),
    ],
)
def test_what_shows_no_sign_of_the_format(question: str, right: str, wrong: str):
    prompt = Prompt("p", "t", "s", (Message("user", question),))
    assert not lacks_format(prompt, right)
    assert lacks_format(prompt, wrong)
    plain = Prompt("p", "t", "s", (Message("user", "How many?"),))
    assert not lacks_format(plain, wrong)


def test_a_score_knows_that_there_is_no_answer():
    for words in ("no answer: empty", "wrong: no answer found; …", "not in the format: no box"):
        assert Score(0.0, None, words).unanswered
    assert not Score(0.0, "5", "not the gold 6").unanswered


def plain_answer(request: Request, rng: random.Random) -> str:
    return f"hm</think>{rng.randrange(100)}{END}" if request.thinking else f"5{END}"


def test_samples_say_first_what_lacks_the_format(tmp_path: Path, capsys):
    # a source's own template asks for a box
    path = write_recipe(tmp_path, settings=[{"name": "no_tools"}])
    sample(path, sampler=Scripted(plain_answer))
    words = (
        "no_tools: 100.0% of 36 completions are no answers: "
        "36 without an answer in the form that is asked for"
    )
    closing = capsys.readouterr().out.split("36 of 36 completions")[1].splitlines()[1:]
    assert closing[0] == words
    manifest = json.loads((tmp_path / "out/manifest.json").read_text("utf-8"))
    assert next(iter(manifest["stats"])) == "alerts"
    page = (tmp_path / "out/report.html").read_text("utf-8").replace("\N{NO-BREAK SPACE}", " ")
    first = page.index('<div class="tile">')
    tile = "<b>100.0 %</b><span>of the completions are no answers</span>"
    assert page[first:].startswith(f'<div class="tile">{tile}')
    assert page.index("To know first") < page.index("<h2>Samples</h2>")


def test_samples_in_order_say_nothing(tmp_path: Path):
    def boxed(request: Request, rng: random.Random) -> str:
        return plain_answer(request, rng).replace("5", "\\boxed{5}")

    path = write_recipe(tmp_path, settings=[{"name": "no_tools", "thinking": 0}])
    sample(path, sampler=Scripted(boxed))
    stats = read_artifact(tmp_path / "out", verify=False).stats
    assert "alerts" not in stats
    assert "To know first" not in (tmp_path / "out/report.html").read_text("utf-8")


def test_an_evaluation_says_first_what_was_truncated(tmp_path: Path, capsys):
    answers = lambda request: "on and on and on"  # noqa: E731 - it never ends its turn
    path = write_eval(tmp_path, sampling={"max_tokens": 2})
    evaluate(path, samplers=[ScriptedSampler(answers), ScriptedSampler(answers)])
    words = (
        "sft, sums.no_tools, products.no_tools: 100.0% of 48 completions are no answers: "
        "48 truncated (raise sampling.max_tokens) each"
    )
    closing = capsys.readouterr().out.split("To know first\n")[1]
    assert closing.startswith(words)
    metrics = json.loads((tmp_path / "out/metrics.json").read_text())
    assert next(iter(metrics)) == "alerts"
    assert (tmp_path / "out/export/table.md").read_text().startswith(words)
    page = (tmp_path / "out/report.html").read_text("utf-8").replace("\N{NO-BREAK SPACE}", " ")
    assert page[page.index('<div class="tile">') :].startswith(
        '<div class="tile"><b>100.0 %</b><span>of the completions are no answers</span>'
    )
