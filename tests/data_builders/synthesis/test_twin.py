"""Twins: golds recomputed by code, by moved options, or by solvers who agree; never the original."""

from __future__ import annotations

import random
import re
from fractions import Fraction
from pathlib import Path

import pytest
from sympy import Rational, sympify

from data_builders.synthesis.steps import Discarded
from data_builders.synthesis.twin import with_other_names
from data_builders.synthesis.twin_program import other_values, program_of, shown
from posttrain.errors import DataError
from posttrain.sampling.sampler import Request
from reward.environments.math_and_choice import MathEnvironment, MultipleChoiceEnvironment
from tests.data_builders.synthesis.small_synthesis import (
    made,
    read_rows,
    recipe_of,
    server,
    write_rows,
)
from tests.sampling.scripted import END, FAIL, Scripted

CLIPS = {
    "question": "Jane sold 48 clips in April, and half as many in May. How many in all?",
    "answer": "May: 48/2 = <<48/2=24>>24.\nIn all: <<48+24=72>>72.\n#### 72",
}
TIP = {
    "question": "Tom's meal costs $40 and he adds a tip of 20%. How much does he pay?",
    "answer": "Tip: <<40*.2=8>>8. Total <<40+8=48>>48.\n#### 48",
}
WRITTEN = {"question": "Ann has three cows and buys two. How many?", "answer": "#### 5"}


def confirmed(question: str, row: dict) -> str:
    """The gold of a twin by another way: its numbers read from its text, its steps by sympy."""
    numbers = [Rational(n.replace(",", "")) for n in re.findall(r"\d[\d,]*(?:\.\d+)?", question)]
    names = {f"q{k}": number for k, number in enumerate(numbers)}
    result = Rational(0)
    for k, step in enumerate(row["metadata"]["program"]):
        result = sympify(step, locals=names, rational=True)
        names[f"s{k}"] = result
    return str(result)


def twins_of(rows: list[dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **others):
    samplers = others.pop("samplers", {})
    keys = others.pop("keys", {})
    models = {role: server(role) for role in samplers}
    fields = others.pop("fields", {})
    path = write_rows(tmp_path / "tasks.jsonl", rows)
    make = {"kind": "twin", "sources": [{"name": "t", "path": str(path), **fields}], **others}
    _, manifest = made(recipe_of(tmp_path / "out", make, models, **keys), samplers, monkeypatch)
    return read_rows(tmp_path / "out/tasks.jsonl"), manifest


def test_golds_of_programs_are_confirmed_by_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tasks, manifest = twins_of([CLIPS, TIP], tmp_path, monkeypatch, variants=4)
    originals = {
        t["metadata"]["variant_of"]: t for t in tasks if t["metadata"]["arm"] == "original"
    }
    twins = [task for task in tasks if task["metadata"]["arm"] == "variant"]
    assert len(originals) == 2
    assert len(twins) >= 6
    for task in twins:
        original = originals[task["metadata"]["variant_of"]]
        assert task["question"] != original["question"]
        assert task["gold"] != original["gold"]
        question = task["question"].partition("\n\nGive the final")[0]
        assert confirmed(question, task) == task["gold"]
        assert MathEnvironment().prompt(task).gold == task["gold"]
        assert "Jane" not in question
        assert "Tom's" not in question
    assert manifest.stats["figures"]["variants by"] == {"gold by program": 2}


@pytest.mark.parametrize(
    ("question", "answer", "reason"),
    [
        ("He works from 8 to 12.", "<<4*3=12>>\n#### 12", "unexplained_number"),
        ("He has 6 hats and 3 rows of 2 more.", "<<3*2=6>><<6+6=12>>\n#### 12", "ambiguous"),
        ("He has 44 cats in 3 rows.", "<<44/3=14.67>>\n#### 14.67", "rounded_calculation"),
        ("He has 44 cats.", "<<44+44=89>>\n#### 89", "rounded_calculation"),
        ("He has 7 cats.", "Seven.\n#### 7", "no_program"),
        ("He has 44 cats.", "<<44+44=88>>\n#### 13", "no_program"),
        ("What is the largest of 7 and 9?", "<<9-0=9>>\n#### 9", "depends_on_a_choice"),
        ("Two cats and two dogs.", "<<2+2=4>>\n#### 4", "nothing_to_change"),
        ("He runs up and down 2 stairs.", "<<2*2=4>>\n#### 4", "ambiguous_number"),
        # 40 liters, of 8 and 20 %, were computed in the head
        ("Of 40 tanks 20% hold 8 liters.", "<<40*40=1600>>\n#### 1600", "ambiguous_number"),
        ("He lifts 5 pounds and a 25-pound bell.", "<<5*5=25>><<5+25=30>>\n#### 30", "ambiguous"),
        ("He worked 18 hours at 3 times 8 dollars.", "<<18*24=432>>\n#### 432", "ambiguous"),
        ("She was 20, 8 years before. He is 12th of 40.", "<<40-12=28>>\n#### 28", "ambiguous"),
        # ten of the 20, or the ten of a bag
        ("Half of 20 boys take 3 bags of 10.", "<<3*10=30>>\n#### 30", "ambiguous_number"),
        # results that the solution's prose alone has, equal to a number or a word of the question
        ("20% of 35 fail, 40% wait.", "100-20-40 = 40% <<40/100*35=14>>\n#### 14", "ambiguous"),
        ("He worked 18 hours.", "12*2 = 24, 24-18=<<24-18=6>>6\n#### 6", "ambiguous_number"),
        ("Of 30 pupils half ran and the other 15 swam.", "<<30-15=15>>\n#### 15", "depends_on_a"),
    ],
)
def test_what_code_cannot_compute_again_has_no_program(question: str, answer: str, reason: str):
    with pytest.raises(Discarded) as raised:
        program_of(question, answer)
    assert raised.value.reason.startswith(reason)


@pytest.mark.parametrize(
    ("question", "answer", "changeable"),
    [
        ("He pours 512 ounces, 128 ounces in a gallon.", "<<512/128=4>>\n#### 4", [512]),
        ("Each of 40 spiders has 8 eyes.", "<<40*8=320>>\n#### 320", [40]),
        ("He pays 13 dollars with a $20 bill.", "<<20-13=7>>\n#### 7", [13]),
        ("He had 40 ounces; a pint equals 16 ounces.", "<<40-16=24>>\n#### 24", [40]),
        ("Ann, Bo and Cy had 54 sweets for the 3 of them.", "<<54/3=18>>\n#### 18", [54]),
        ("Of those 4 months 90 days were dry.", "<<90/4=22.5>>\n#### 22.5", [90]),
        ("He paid 20 of 70 dollars with 20s.", "<<70-20=50>>\n#### 50", [70]),
        ("His 9-to-5 job took 90 days and 9 nights.", "<<90+9=99>>\n#### 99", [90]),
    ],
)
def test_facts_and_numbers_that_return_stay(question: str, answer: str, changeable: list[int]):
    assert [v.value for v in program_of(question, answer).variables] == changeable


def test_nothing_whole_is_divided_inside_of_a_step():
    program = program_of("Half of 20 boys and of 60 girls swim.", "<<20/2+60/2=40>>\n#### 40")
    for seed in range(50):
        assert all(value % 2 == 0 for value in other_values(program, random.Random(seed)).values())


def test_no_score_of_a_test_is_above_a_hundred():
    program = program_of("She got 94 and 100 in two tests.", "<<(94+100)/2=97>>\n#### 97")
    for seed in range(50):
        assert max(other_values(program, random.Random(seed)).values()) <= 100


def test_a_fraction_stays_one():
    program = program_of("He runs 1.5 times 40 miles.", "<<1.5*40=60>>\n#### 60")
    for seed in range(50):
        assert other_values(program, random.Random(seed))["q0"].denominator > 1


def test_new_numbers_keep_order_sign_and_whole_results():
    question = "Of 90 pupils 30 % swim, and 9 of the swimmers dive. How many do not dive?"
    program = program_of(question, "<<90*30/100=27>><<27-9=18>>\n#### 18")
    for seed in range(50):
        values = other_values(program, random.Random(seed))
        total, percent, divers = (values[v.name] for v in program.variables)
        assert divers < percent < total
        assert percent < 100
        results = program.run(values)
        assert all(result > 0 and result.denominator == 1 for result in results)
        assert results[-1] == total * percent / 100 - divers
        assert shown(divers) in program.question_with(values)


def test_new_numbers_are_as_long_as_the_old_ones_where_there_are_such():
    """Longer numbers are harder, and a drop on them is none of a model that knows the answers."""
    program = program_of("Start with 4. Add 3. Add 9. What is it?", "<<4+3=7>><<7+9=16>>\n#### 16")
    for seed in range(50):
        values = other_values(program, random.Random(seed))
        assert [len(shown(result)) for result in program.run(values)] == [1, 2]
        assert max(values.values()) <= 9


def test_numbers_are_written_as_the_old_ones_are():
    program = program_of("He pays $1,200 for 8 chairs.", "<<1200/8=150>>\n#### 150")
    text = program.question_with({"q0": Fraction(2400), "q1": Fraction(6)})
    assert text == "He pays $2,400 for 6 chairs."


def test_names_change_together():
    text = with_other_names("Tom gave Anna's dog to Tom.", random.Random(0))
    first, _, rest = text.partition(" gave ")
    assert first != "Tom"
    assert rest.endswith(f" to {first}.")
    assert "Anna" not in text


LETTERED = {"question": "Largest?", "A": "1", "B": "2", "C": "3", "D": "4"}
LISTED = {"question": "Largest?", "choices": ["1", "2", "3", "4"]}


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ({**LETTERED, "answer": "D"}, ["A", "B", "C", "D"]),
        ({**LISTED, "answer": 3}, ["choices"]),
        ({**LISTED, "answer": "4"}, ["choices"]),
    ],
)
def test_options_move_and_the_gold_with_them(
    row: dict, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fields = {"options": options}
    tasks, _ = twins_of([row], tmp_path, monkeypatch, variants=3, fields=fields)
    original, *twins = tasks
    assert original["gold"] == "D"
    assert twins
    for task in twins:
        options = task["metadata"]["options"]
        assert options[task["gold"]] == "4"
        assert task["gold"] != "D"
        assert f"{task['gold']}. 4" in task["question"]
        assert MultipleChoiceEnvironment().prompt(task).gold == task["gold"]


def writer(request: Request, _: random.Random) -> str:
    return f"Ann has four cows and buys five. How many?{END}"


def solver(request: Request, rng: random.Random) -> str:
    return f"\\boxed{{{'9' if 'five' in request.messages[0].content else '5'}}}{END}"


def test_twins_of_a_model_need_solvers_who_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    samplers = {"rewriter": Scripted(writer), "solver": Scripted(solver)}
    tasks, manifest = twins_of([WRITTEN], tmp_path, monkeypatch, samplers=samplers)
    assert [task["gold"] for task in tasks] == ["5", "9"]
    assert tasks[1]["metadata"]["synthesis"]["checks"][-1] == "agreement of solvers"
    assert manifest.stats["planted"] == {"rows": 1, "dropped": {"equal_to_original": 1}}


@pytest.mark.parametrize(
    ("write", "solve", "reason"),
    [
        (lambda r, _: END, solver, "empty_answer"),
        (lambda r, _: WRITTEN["question"] + END, solver, "equal_to_original"),
        (lambda r, _: r.messages[0].content + END, solver, "echoed_prompt"),
        (lambda r, _: "and " * 3000, solver, "truncated"),
        (writer, lambda r, g: f"\\boxed{{{g.randrange(10**6)}}}{END}", "solvers_disagree"),
        (writer, lambda r, _: f"It is nine.{END}", "solver_gives_no_box"),
    ],
)
def test_bad_writers_and_solvers_give_no_twin(
    write, solve, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    samplers = {"rewriter": Scripted(write), "solver": Scripted(solve)}
    with pytest.raises(DataError, match=reason):
        twins_of([WRITTEN], tmp_path, monkeypatch, samplers=samplers)


@pytest.mark.parametrize(("rate", "reason"), [(1.0, None), (0.0, "difficulty")])
def test_difficulty_stays_within_the_band(
    rate: float, reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def reference(request: Request, rng: random.Random) -> str:
        if "48" in request.messages[0].content:
            return f"\\boxed{{72}}{END}"
        number = int(re.findall(r"\d+", request.messages[0].content)[0])
        return f"\\boxed{{{number + number // 2 if rate else 0}}}{END}"

    samplers = {"reference": Scripted(reference)}
    if reason is None:
        tasks, _ = twins_of([CLIPS], tmp_path, monkeypatch, samplers=samplers)
        assert len(tasks) == 2
        return
    with pytest.raises(DataError, match=reason):
        twins_of([CLIPS], tmp_path, monkeypatch, samplers=samplers)


def test_a_failed_request_of_the_reference_says_nothing_of_difficulty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def reference(request: Request, rng: random.Random) -> str:
        return FAIL if "48" in request.messages[0].content else f"It is nine.{END}"

    samplers = {"reference": Scripted(reference)}
    with pytest.raises(DataError, match="request_failed"):
        twins_of([CLIPS], tmp_path, monkeypatch, samplers=samplers, keys={"max_failure_rate": 0.5})
