"""Several runs in one page: their recipes, their curves, their evaluations."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from posttrain.errors import ConfigError
from posttrain.evaluation.compare import compare_runs, read_checkpoint
from posttrain.pages.overlay import write_overlay
from posttrain.runs import Counts, Run
from tests.data_builders.small_build import script
from tests.evaluation.scripted import ScriptedSampler
from tests.evaluation.small_eval import answer, evaluate, tamed, write_recipe
from tests.pages.conftest import LOG, STATS, write_rows
from tests.pages.reading import cells, section, sections

RECIPE = {"trainer": {"learning_rate": 0.1, "seed": 1}, "sources": [{"name": "a"}, {"name": "b"}]}


def write_sft(out: Path, rate: float, *, finished: bool = True) -> Path:
    config = {**RECIPE, "trainer": {"learning_rate": rate, "seed": 1}}
    run = Run.open(out, kind="checkpoint", config=config)
    files = {"log.jsonl": write_rows(out / "log.jsonl", LOG)}
    if finished:
        run.finish(counts=Counts(40, 40), files=files, stats=STATS)
    return out


def test_runs_of_one_kind_share_charts_and_differ_in_named_keys(tmp_path: Path):
    paths = [write_sft(tmp_path / name / "sft", rate) for name, rate in (("a", 0.1), ("b", 0.2))]
    paths.append(write_sft(tmp_path / "c" / "sft", 0.1, finished=False))
    target = tmp_path / "page.html"
    script("report").main([*map(str, paths), "--out", str(target)])
    page = target.read_text()
    assert sections(page) == ["Figures", "Training", "Runs", "Recipes"]
    assert cells(page, "c/sft")[1:] == ["checkpoint", "not finished", "20"]
    assert cells(page, "trainer.learning_rate")[1:] == ["0.1", "0.2", "0.1"]
    assert "trainer.seed" not in section(page, "Recipes")
    assert cells(page, "training loss")[1].startswith("4.000 → 2.000")
    assert cells(page, "held-out loss")[1].startswith("2.500 → 2.500")
    charts = section(page, "Training").split("<svg")[1:]
    # training loss, held-out loss over both groups, learning rate, gradient norm: a line a run
    assert len(charts) == 4
    for chart in charts:
        assert re.findall(r"<title>(./sft)</title>", chart) == ["c/sft", "b/sft", "a/sft"]
    line = r'<title>a/sft</title><path d="M [\d.]+ ([\d.]+) +L [\d.]+ ([\d.]+)'
    (held_out,) = re.findall(line, charts[1])
    assert held_out[0] == held_out[1]  # 2.5 both times


@pytest.mark.parametrize("names", [["a", "a"], list("abcdefg")])
def test_too_many_runs_or_one_twice_are_refused(tmp_path: Path, names: list[str]):
    with pytest.raises(ConfigError, match=r"up to 6 different runs"):
        write_overlay([tmp_path / name for name in names], out=tmp_path / "page.html")


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`one` and `two`: the same questions, answered by models of other habits."""
    folder = tmp_path_factory.mktemp("overlay")
    recipe = write_recipe(folder)
    for name, first in (("one", answer), ("two", tamed)):
        samplers = [ScriptedSampler(first), ScriptedSampler(tamed)]
        evaluate(recipe, f"out={folder / name}", "--limit", "4", samplers=samplers)
    return folder


def test_evaluations_stand_side_by_side_with_paired_changes(evaluations: Path, tmp_path: Path):
    one, two = evaluations / "one", evaluations / "two"
    page = write_overlay([one, two], out=tmp_path / "page.html").read_text()
    part = section(page, "Before and after")
    head = re.findall(r"<th[^>]*>(.*?)</th>", part)
    assert [h for h in head if h.startswith("two:")] == ["two:sft", "two:dpo"] * 2
    rows = compare_runs(read_checkpoint(f"{one}:sft"), read_checkpoint(f"{two}:sft"))
    (both,) = [
        r for r in rows if (r["task"], r["setting"], r["thinking"]) == ("all", "no_tools", "on")
    ]
    change = both["rates"]["hallucination"]["difference"]
    assert change < 0
    shown = re.sub(r"<[^>]+>", " ", section(page, "Differences")).replace("\N{NO-BREAK SPACE}", " ")
    assert re.search(
        rf"one:sft → two:sft +all +no_tools +on +undeclared calls .*?−{abs(100 * change):.2f} ",
        shown,
    )
    assert "not compared" not in part


def test_other_questions_are_not_compared(evaluations: Path, tmp_path: Path):
    other = tmp_path / "other"
    shutil.copytree(evaluations / "two", other)
    lock = json.loads((other / "lock.json").read_text())
    lock["prompts"] = dict.fromkeys(lock["prompts"], "0" * 64)
    (other / "lock.json").write_text(json.dumps(lock))
    manifest = json.loads((other / "manifest.json").read_text())
    names = {file["path"]: file["rows"] for file in manifest["files"]}
    (other / "manifest.json").unlink()
    run = Run(other, "evaluation", manifest["config"], manifest["config_digest"])
    run.finish(counts=Counts(72, 72), files=names, stats=manifest["stats"])
    page = write_overlay([evaluations / "one", other], out=tmp_path / "page.html").read_text()
    part = section(page, "Before and after")
    assert "other is not compared question by question: the runs have different prompts" in part
    assert "other:sft" not in section(page, "Differences")
