"""Accuracy by length and position: which questions a cell counts, and how the page shows it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from posttrain.evaluation.intervals import rate
from posttrain.evaluation.long_context import long_context_rows
from posttrain.pages.evaluation import long_context
from posttrain.records import Message, Score
from posttrain.report.console import open_console, print_sections
from posttrain.report.html import page_html
from posttrain.rollouts import Prompt
from posttrain.sampling.sampler import Request
from tests.data_builders.small_build import write_tokenizer
from tests.data_builders.synthesis import long_golds
from tests.data_builders.synthesis.small_synthesis import made, recipe_of
from tests.evaluation.scripted import ScriptedSampler
from tests.evaluation.small_eval import evaluate, write_recipe
from tests.sampling.scripted import END


def record(task: str, value: float | None, sft: str = "sft", **metadata: Any) -> Any:
    prompt = Prompt(task, task, "plain", (Message("user", "?"),), thinking=False, source="long")
    prompt = replace(prompt, metadata=json.dumps(metadata))
    return SimpleNamespace(checkpoint=sft, prompt=prompt, score=Score(value, None, ""))


def test_questions_count_at_their_length_and_in_each_part_that_they_need():
    records = [
        record(
            f"short-{k}", float(k < 6), family="needles", length=4000, positions=[0.1, 0.15, 0.9]
        )
        for k in range(10)
    ]
    records += [
        record(f"long-{k}", float(k < 3), family="multi_key", length=32000, positions=[k / 10])
        for k in range(10)
    ]
    records += [record("long-x", 1.0, family="needles", length=32000, positions=[0.999999])]
    records += [record("unscored", None, family="needles", length=4000, positions=[0.5])]
    records += [record("other", 1.0), record("partly", 1.0, length=3, positions=[0.5])]
    short, long = long_context_rows(records[::-1])
    assert (short["length"], long["length"]) == (4000, 32000)
    assert list(short["families"]) == ["needles"], "without a row for all of one family"
    assert short["families"]["needles"]["value"] == pytest.approx(0.6)
    expected = rate([(float(k < 6), k) for k in range(10)])
    assert expected is not None
    assert short["families"]["needles"]["low"] == pytest.approx(expected.low)
    questions = [part and part["questions"] for part in short["parts"]]
    assert questions == [10, None, None, None, 10], "once a part, though it needs two documents"
    assert list(long["families"]) == ["all", "needles", "multi_key"]
    assert long["families"]["all"]["questions"] == 11
    assert [part["value"] for part in long["parts"]] == [1.0, 0.5, 0.0, 0.0, pytest.approx(1 / 3)]


def test_written_questions_are_evaluated_by_length_and_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    families = ["single_needle", "variables"]
    make = {"kind": "long_documents", "families": families, "lengths": [2500, 4000], "count": 24}
    make |= {"tokenizer": str(write_tokenizer(tmp_path / "tokenizer")), "needed": 3}
    made(recipe_of(tmp_path / "long", make, {}), {}, monkeypatch)

    def finds_in_short_documents(request: Request) -> str:
        documents, question = long_golds.split(request.messages[-1].content)
        found = long_golds.answer(documents, question) or frozenset()
        names = ", ".join(sorted(found))
        if len("".join(documents)) > 2500:
            names = "none"
        return f"Answer: {f'[{names}]' if 'variables' in question else names}{END}"

    prompts = [{"name": "long", "format": "environment", "environment": "long_context"}]
    prompts[0]["path"] = str(tmp_path / "long/tasks.jsonl")
    settings = [{"name": "ruler", "thinking": 0}]
    recipe = write_recipe(tmp_path, prompts=prompts, settings=settings, n=1)
    sampler = ScriptedSampler(finds_in_short_documents)
    evaluate(recipe, samplers=[sampler, ScriptedSampler(finds_in_short_documents)])
    metrics = json.loads((tmp_path / "out/metrics.json").read_text())
    for row in metrics["long_context"]:
        accuracy = 1.0 if row["length"] == 2500 else 0.0
        assert set(row["families"]) == {"all", *families}
        for rate_row in (*row["families"].values(), *filter(None, row["parts"])):
            assert rate_row["value"] == accuracy
        assert row["families"]["all"]["questions"] == 12
    assert "position of what is needed" in (tmp_path / "out/report.html").read_text()


def test_samples_of_one_question_are_not_several_questions():
    row = {"family": "needles", "length": 4000, "positions": [0.5]}
    [cell] = long_context_rows([record("q", float(k % 2), **row) for k in range(8)])
    assert cell["parts"][2]["questions"] == 1
    assert cell["parts"][2]["samples"] == 8


def test_other_tasks_have_no_such_rows():
    assert long_context_rows([record("q", 1.0), record("p", 0.0, length=7)]) == []


@pytest.mark.parametrize(
    "change",
    [
        {"length": "4000"},
        {"length": None},
        {"length": True},
        {"length": 4000.5},
        {"length": [4000]},
        {"length": -4000},
        {"positions": []},
        {"positions": "0.5"},
        {"positions": 0.5},
        {"positions": {"0": 0.5}},
        {"positions": ["0.5"]},
        {"positions": [None]},
        {"positions": [-0.3]},
        {"positions": [0.5, 17]},
        {"positions": [float("nan")]},
        {"family": None},
        {"family": ["needles"]},
        {"family": ""},
    ],
)
def test_rows_that_mean_something_else_by_these_names_have_no_part_in_the_table(
    change: dict[str, Any],
):
    row: dict[str, Any] = {"family": "needles", "length": 4000, "positions": [0.5]}
    [cell] = long_context_rows([record("q", 1.0, **row), record("p", 0.0, **(row | change))])
    assert cell["families"]["needles"]["questions"] == 1
    assert [part and part["questions"] for part in cell["parts"]] == [None, None, 1, None, None]


def test_a_position_at_the_very_end_is_in_the_last_part():
    [cell] = long_context_rows([record("q", 1.0, family="mine", length=4000, positions=[1.0])])
    assert [part and part["questions"] for part in cell["parts"]] == [None] * 4 + [1]


def test_a_family_of_the_name_all_counts_once():
    rows = [{"family": name, "length": 4000, "positions": [0.5]} for name in ("all", "needles")]
    [cell] = long_context_rows([record(f"q{k}", 1.0, **row) for k, row in enumerate(rows)])
    assert cell["families"]["all"]["samples"] == 2


def test_the_page_has_a_table_and_a_shaded_map(capsys: pytest.CaptureFixture[str]):
    records: list[Any] = []
    for checkpoint in ("before", "after"):
        for length in (4000, 32000):
            for k in range(10):
                right = float(checkpoint == "after" or k < 5)
                row = {"family": "variables", "length": length, "positions": [k / 10]}
                records.append(record(f"{length}-{k}", right, checkpoint, **row))
    section = long_context(long_context_rows(records))
    html = page_html([section], title="Evaluation")
    assert html.count("4,000 tokens") == 4, "a table and a map of each checkpoint"
    assert '<span class="shade" style="--shade:100%">100.0' in html
    assert "50.0" in html
    print_sections(open_console(), [section])
    printed = capsys.readouterr().out
    assert "80 – 100 %" in printed
    assert "n = 2" in printed
