"""Two policies' answers before a scripted judge: who wins, in both orders, with nothing lost."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from posttrain.errors import ConfigError
from posttrain.evaluation.win_rate import Duel, win_rows
from posttrain.rollouts import Completion, ParsedCompletion, Step
from posttrain.runs import read_artifact
from posttrain.sampling.sampler import Request
from tests.data_builders.small_build import script
from tests.evaluation import small_eval
from tests.evaluation.scripted import ScriptedSampler, prompt, turn
from tests.evaluation.test_judges import verdict
from tests.sampling.scripted import END, FAIL, Scripted, opening

_SHOWN = re.compile(r"\[A1\](.*)\[/A1\]\n\[A2\](.*)\[/A2\]", re.DOTALL)


def duel(
    *preferred: int | None, n: int = 0, answers: tuple[str, str] = ("old", "new"), source: str = "s"
) -> Duel:
    """A duel of 10 tokens against 5, judged so in the two orders."""
    asked = replace(prompt(n), source=source, setting="u")
    parsed = ParsedCompletion(None, "", (), (), True)
    before, after = (
        Completion(asked.id, 0, (Step("", parsed, "stop", 0, k, 1),), "stop") for k in (10, 5)
    )
    return Duel(asked, 0, before, after, answers, tuple({"preferred": one} for one in preferred))


@pytest.mark.parametrize(
    ("before_first", "after_first", "outcome", "disagree"),
    [
        (2, 1, 1.0, False),  # the new answer, wherever it stands
        (1, 2, 0.0, False),
        (1, 1, 0.5, True),  # the first, whoever stands there
        (2, 2, 0.5, True),
        (0, 0, 0.5, False),
        (2, 0, 0.5, False),
        (None, 1, None, None),
        (2, None, None, None),
    ],
)
def test_the_outcome_of_two_orders(
    before_first: int | None, after_first: int | None, outcome: float | None, disagree: bool | None
):
    found = duel(before_first, after_first)
    assert (found.outcome, found.disagree) == (outcome, disagree)


@pytest.mark.parametrize(
    ("answers", "outcome"), [(("old", " \n"), 0.0), (("", "new"), 1.0), (("", " "), 0.5)]
)
def test_no_answer_loses_to_one_without_a_judge(answers: tuple[str, str], outcome: float):
    silent = duel(answers=answers)
    assert (silent.decided, silent.outcome) == (outcome, outcome)
    (row,) = win_rows([silent, duel(2, 1, n=1)])
    assert row["unjudged"] == 0
    assert row["score"]["samples"] == 2


def test_rates_by_hand():
    duels = [duel(2, 1, n=0), duel(2, 1, n=1), duel(1, 2, n=2), duel(1, 1, n=3), duel(None, 1, n=4)]
    duels.append(duel(n=5, answers=("new", "new "), source="v"))
    rows = {row["unit"].partition(".")[0]: row for row in win_rows(duels)}
    found = {name: rows["s"][name]["value"] for name in ("win", "tie", "loss", "score", "disagree")}
    assert found == {"win": 0.5, "tie": 0.25, "loss": 0.25, "score": 0.625, "disagree": 0.25}
    assert (rows["s"]["duels"], rows["s"]["unjudged"]) == (5, 1)
    assert (rows["all"]["same"], rows["all"]["score"]["value"]) == (1, 0.6)
    assert rows["s"]["tokens"]["difference"] == -5
    assert rows["v"]["disagree"] is None


def prefers_new(request: Request, rng: random.Random) -> str:
    first, _ = _SHOWN.findall(request.messages[-1].content)[-1]
    return f"</think>{verdict(5, 1, 1) if 'new' in first else verdict(1, 5, 6)}{END}"


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three policies that answer the same 12 questions in both modes, two of them alike."""
    folder = tmp_path_factory.mktemp("evaluated")
    names = ("old", "new", "alike")
    recipe = small_eval.write_recipe(
        folder,
        checkpoints={name: str(folder / "checkpoint") for name in names},
        max_failure_rate=0.1,
        settings=[{"name": "no_tools", "thinking": "both"}],
    )

    def answering(text: str) -> ScriptedSampler:
        """Fails on one question, if it is new."""

        def answer(request: Request) -> str:
            if text == "new" and "sums 7:" in request.messages[-1].content:
                return FAIL
            return turn(f"{text} {request.seed}", thinking=request.thinking)

        return ScriptedSampler(answer)

    samplers = [answering(text) for text in ("the old", "new", "the old")]
    small_eval.evaluate(recipe, "--task", "sums", samplers=samplers)
    return folder


def compare(folder: Path, out: Path, **keys: Any) -> Scripted:
    """`posttrain win_rate --config …` with a judge that prefers what is new."""
    raw = {
        "out": str(out),
        "before": f"{folder / 'out'}:old",
        "after": f"{folder / 'out'}:new",
        "judge": {
            "models": [
                {"backend": {"kind": "transformers"}, "checkpoint": "judge", "layout": "compact"}
            ],
            "retries": 0,
        },
        **keys,
    }
    path = out.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(raw))
    sampler, module = Scripted(prefers_new), script("win_rate")

    with patch("posttrain.sampling.open.opened_sampler", opening(lambda _: sampler)):
        module.main(["--config", str(path)])
    return sampler


def rows(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "metrics.json").read_text())["rows"]


def test_the_better_policy_wins_in_both_orders(evaluated: Path, tmp_path: Path):
    judge = compare(evaluated, tmp_path / "out")
    found = {row["unit"]: row for row in rows(tmp_path / "out")}
    assert set(found) == {"sums.no_tools on", "sums.no_tools off", "all"}
    assert (found["all"]["duels"], found["all"]["questions"]) == (44, 11)
    assert found["all"]["score"]["value"] == found["all"]["win"]["value"] == 1.0
    assert sum(map(len, judge.calls)) == 88
    manifest = read_artifact(tmp_path / "out", kind="win_rate")
    assert (manifest.counts.rows_in, manifest.counts.dropped) == (48, {"failed": 4})
    assert [p.digest for p in manifest.parents] == [read_artifact(evaluated / "out").digest]
    lines = [json.loads(line) for line in (tmp_path / "out/duels.jsonl").open()]
    assert all(line["after_first"]["verdict"] == [5, 1, 1] for line in lines)
    assert "orders disagree" in (tmp_path / "out/report.html").read_text()


def test_the_same_answers_are_a_tie_that_nobody_is_asked_about(evaluated: Path, tmp_path: Path):
    judge = compare(evaluated, tmp_path / "out", after=f"{evaluated / 'out'}:alike", prompts=5)
    row = rows(tmp_path / "out")[-1]
    assert (row["same"], row["tie"]["value"]) == (10, 1.0)
    assert sum(map(len, judge.calls)) == 0
    # fewer prompts are counted
    manifest = read_artifact(tmp_path / "out")
    assert (manifest.counts.kept, manifest.counts.dropped) == (10, {"not_chosen": 38})


def test_what_both_sides_were_given_is_compared_and_nothing_else(evaluated: Path, tmp_path: Path):
    """A run of fewer prompts and samples will do; one under the same names with a budget not."""
    setting = {"name": "no_tools", "thinking": 1.0}
    for name, settings in (
        ("fewer", [setting]),
        ("budget", [setting | {"reasoning_budget": 9}]),
        ("foreign", [setting | {"name": "other"}]),
    ):
        recipe = small_eval.write_recipe(
            tmp_path, settings=settings, checkpoints={"new": str(tmp_path / "checkpoint")}
        )
        limit, out = ("--task", "sums", "--limit", "4"), f"out={tmp_path / name}"
        sampler = ScriptedSampler(lambda request: turn(f"new {request.seed}"))
        small_eval.evaluate(recipe, *limit, out, "n=1", samplers=[sampler])
    compare(evaluated, tmp_path / "w", after=str(tmp_path / "fewer"))
    counts = read_artifact(tmp_path / "w").counts
    assert (counts.kept, counts.dropped) == (4, {"one_side": 44})
    for after, why in (("budget", "is another one in"), ("foreign", r"no two answers.*'one_side': 52"),
                       (evaluated / "out", "several checkpoints")):  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            compare(evaluated, tmp_path / "x", after=str(tmp_path / after))
