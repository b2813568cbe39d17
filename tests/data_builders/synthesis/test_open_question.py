"""Open questions: the gold is reached without options, nothing is given away, intent is judged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from data_builders.synthesis.open_question import same_answer
from posttrain.errors import DataError
from posttrain.pages.synthesis import figures_of
from posttrain.sampling.sampler import Request
from reward.environments.judged import EquivalenceEnvironment
from reward.environments.math_and_choice import MathEnvironment
from tests.data_builders.synthesis.small_synthesis import (
    made,
    read_rows,
    recipe_of,
    server,
    write_rows,
)
from tests.sampling.scripted import END, Scripted

ROWS = [
    {"question": "Which of these is the capital of Peru?", "A": "Lima", "B": "Oslo", "answer": "A"},
    {"question": "What is 6 times 7?", "A": "42", "B": "48", "answer": "A"},
]


def recipe(tmp_path: Path, *, judge: bool = True, **make):
    path = str(write_rows(tmp_path / "rows.jsonl", ROWS))
    sources = [{"name": "mc", "path": path, "options": ["A", "B"]}]
    roles = ["rewriter", "solver", *(["judge"] if judge else [])]
    kind = {"kind": "open_question", "sources": sources, "attempts": 2, **make}
    return recipe_of(tmp_path / "out", kind, {role: server(role) for role in roles})


def rewriter(request: Request, _: random.Random) -> str:
    text = request.messages[0].content
    if text.startswith("Say the question"):
        return ("Name Peru's capital." if "Peru" in text else "Multiply 6 by 7.") + END
    return ("Name the capital of Peru." if "Peru" in text else "How much is 6 times 7?") + END


def solver(request: Request, _: random.Random) -> str:
    peru = "Peru" in request.messages[0].content
    return f"\\boxed{{{'the city of Lima' if peru else '42'}}}{END}"


def judge(request: Request, _: random.Random) -> str:
    text = request.messages[0].content
    if "state the right answer" in text:
        return f'{{"equal": {"true" if "city of Lima" in text else "false"}}}{END}'
    good = "ferries" not in text and "Is it" not in text
    return f'{{"same": {str(good).lower()}}}{END}'


def test_rows_and_tasks_have_the_gold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    samplers = {
        "rewriter": Scripted(rewriter),
        "solver": Scripted(solver),
        "judge": Scripted(judge),
    }
    rows, manifest = made(recipe(tmp_path, paraphrases=1), samplers, monkeypatch)
    assert {row["metadata"]["gold"] for row in rows} == {"Lima", "42"}
    assert not any("Oslo" in row["messages"][0]["content"] for row in rows)
    tasks = read_rows(tmp_path / "out/tasks.jsonl")
    assert [task["environment"] for task in tasks].count("equivalence") == 2
    for task in tasks:
        environment = EquivalenceEnvironment() if task["gold"] == "Lima" else MathEnvironment()
        assert environment.prompt(task).gold == task["gold"]
    planted = manifest.stats["planted"]
    assert planted["rows"] == sum(planted["dropped"].values()) == 2


def test_a_judge_that_finds_any_answer_equal_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def lenient(request: Request, rng: random.Random) -> str:
        """Reads the question, and says yes to every answer."""
        if "state the right answer" in request.messages[0].content:
            return f'{{"equal": true}}{END}'
        return judge(request, rng)

    def wrong(request: Request, _: random.Random) -> str:
        return f"\\boxed{{Oslo}}{END}"

    rows = [{**ROWS[0], "question": f"Which is the capital of Peru, {n}?"} for n in range(12)]
    config = recipe(tmp_path)
    write_rows(tmp_path / "rows.jsonl", rows)
    samplers = {
        "rewriter": Scripted(rewriter),
        "solver": Scripted(wrong),
        "judge": Scripted(lenient),
    }
    _, manifest = made(config, samplers, monkeypatch)
    planted = manifest.stats["planted"]
    assert 0 < sum(planted["dropped"].values()) < planted["rows"] == 12
    page = "".join(map(str, figures_of(manifest.stats)))
    assert "judge: equal: the judge said yes to all of 24" in page


@pytest.mark.parametrize(
    ("write", "solve", "reason"),
    [
        (lambda r, _: END, solver, "empty_answer 2"),
        (lambda r, _: "so " * 3000, solver, "truncated 2"),
        (lambda r, _: f"Which of the following is right?{END}", solver, "asks_for_options 2"),
        (lambda r, _: f"Is Lima or 42 it?{END}", solver, "answer_given_away 2"),
        (rewriter, lambda r, _: f"\\boxed{{7}}{END}", "not_answerable 2"),
        (rewriter, lambda r, _: END, "not_answerable 2"),
    ],
)
def test_bad_writers_and_solvers_give_no_row(
    write, solve, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    samplers = {"rewriter": Scripted(write), "solver": Scripted(solve)}
    with pytest.raises(DataError, match=reason):
        made(recipe(tmp_path, judge=False), samplers, monkeypatch)


def test_a_paraphrase_that_changes_a_number_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def careless(request: Request, rng: random.Random) -> str:
        text = rewriter(request, rng)
        return text.replace("Multiply 6 by 7", "Multiply 6 by 8")

    samplers = {
        "rewriter": Scripted(careless),
        "solver": Scripted(solver),
        "judge": Scripted(judge),
    }
    made(recipe(tmp_path, paraphrases=1), samplers, monkeypatch)
    tasks = read_rows(tmp_path / "out/tasks.jsonl")
    assert [task["gold"] for task in tasks].count("42") == 1


def test_numbers_are_compared_as_numbers():
    assert same_answer("42.0", "42")
    assert not same_answer("42", "24")
    assert same_answer("Lima.", "lima")
    assert not same_answer("", "lima")
