"""The page of a chain: roles from manifests, effects as the records have them, a diagram of links."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from posttrain.errors import DataError
from posttrain.evaluation.compare import length_difference, rate_difference
from posttrain.evaluation.intervals import by_question
from posttrain.evaluation.metrics import values_of
from posttrain.evaluation.run import read_run
from posttrain.lineage import trace
from posttrain.pages import effects as pages_effects
from posttrain.pages.chain import first_effects, is_chain, write_chain
from posttrain.pages.effects import (
    alert_tiles,
    alerts_of,
    arms_of,
    chain_effects,
    family_effects,
)
from posttrain.report.diagram import MOST, rows_of, shortest
from posttrain.runs import SECONDS, Counts, Run, open_run, parent_of, read_artifact
from posttrain.sampling.sampler import Request
from tests.data_builders.small_build import script
from tests.evaluation.scripted import ScriptedSampler, turn
from tests.evaluation.small_eval import answer, evaluate, tamed, write_recipe
from tests.pages.reading import Reader, cells, section, sections


def artifact(out: Path, kind: str, *parents: Path, files=(), stats=None, config=None) -> Path:
    stage = Run.open(out, kind=kind, config=config or {})
    found = [parent_of(p, relative_to=out, manifest=read_artifact(p)) for p in parents]
    names = dict.fromkeys(files)
    stage.finish(counts=Counts(4, 4), files=names, parents=found, stats=stats or {"of": out.name})
    return out


def difference(a: float, b: float) -> dict:
    change = {"a": a, "b": b, "difference": b - a, "low": b - a - 0.1, "high": b - a + 0.1}
    return {**change, "p": 0.01, "test": "t", "questions": 30}


def judged(
    folder: Path, order: list[str], models: dict[str, Path], *, alert: dict[str, Any] | None = None
) -> Path:
    """An evaluation of judges in some order, the first compared with the others."""
    right = {"warm": 0.6, "trained": 0.9, "sft": 0.0}
    out = folder / f"eval_{'_'.join(order)}"
    rows = [
        {"a": order[0], "b": other, "source": "x"}
        | {"pairwise_accuracy": difference(right[order[0]], right[other])}
        for other in order[1:]
    ]
    estimates = {
        name: {"value": value, "low": value, "high": value, "questions": 30, "samples": 60}
        for name, value in right.items()
    }
    names = ("pairwise_accuracy", "right_in_both_orders", "position_consistency", "format")
    names += ("prefers_first", "same_scores", "truncated", "score_error", "ranking_error")
    cells = [
        {"checkpoint": name, "source": "x", "pairs": 30, "judgements": 60}
        | dict.fromkeys((*names, "reward", "tokens"), estimates[name])
        for name in order
    ]
    out.mkdir()
    alerts = {} if alert is None else {"alerts": [alert]}
    body = alerts | {"cells": cells, "differences": rows, "failed": {}}
    (out / "metrics.json").write_text(json.dumps(body))
    stage = Run(out, "genrm_evaluation", {}, "0" * 64)
    digests = {name: read_artifact(path).digest for name, path in models.items()}
    stats = {"checkpoints": order, "samplers": {n: {"weights": digests[n]} for n in order}}
    parents = [
        parent_of(path, relative_to=out, manifest=read_artifact(path)) for path in models.values()
    ]
    stage.finish(counts=Counts(1, 1), files={"metrics.json": None}, parents=parents, stats=stats)
    return out


@pytest.fixture
def chain(tmp_path: Path) -> dict[str, Path]:
    """data → sft → warm → trained, each in a folder of its own in a folder with odd characters."""
    runs = tmp_path / "my runs #1"
    data = artifact(runs / "data", "sft_data")
    sft = artifact(runs / "base_model", "checkpoint", data)
    warm = artifact(runs / "judge_sft", "checkpoint", sft, data)
    trained = artifact(runs / "judge", "checkpoint", warm)
    return {"sft": sft, "warm": warm, "trained": trained}


@pytest.mark.parametrize(
    ("order", "after", "controls"),
    [
        (["warm", "trained", "sft"], ("trained",), ("sft",)),
        (["trained", "warm"], ("trained",), ()),
        (["sft", "warm", "trained"], ("trained",), ()),
    ],
)
def test_roles_of_checkpoints_come_from_their_lineage(chain, order, after, controls):
    arms = arms_of(trace(judged(chain["sft"].parent, order, chain))[0])
    assert (arms.after, arms.controls) == (after, controls)
    assert arms.before == ("sft" if order[0] == "sft" else "warm")
    assert arms.base_of("trained") == "warm"
    assert arms.folders["trained"] == "judge"


def test_the_control_arm_comes_last_and_the_change_has_its_sign(chain):
    for order in (["warm", "trained", "sft"], ["trained", "warm"]):
        node = trace(judged(chain["sft"].parent, order, chain))[0]
        effects = chain_effects([node])
        first = effects[0]
        assert first.name == "judge: accuracy on pairs, %"
        assert (first.values, first.interval) == ("60.0 → 90.0", "+30.0 (+20.0 … +40.0)")
        if "sft" in order:
            assert effects[-1].name == "judge_sft: accuracy on pairs, %"
            assert effects[-1].values == "0.0 → 60.0"


def test_what_spoils_a_figure_is_said_first_but_not_of_a_control_arm(chain):
    order = ["warm", "trained", "sft"]
    for checkpoint, labels in (("sft", []), ("trained", ["of the completions are no answers"])):
        row = {"where": checkpoint, "completions": 60, "truncated": 3, "unformatted": 57}
        node = trace(judged(chain["sft"].parent, order, chain, alert=row))[0]
        assert [label for _, label, _ in alert_tiles(node)] == labels
        assert alerts_of(node) == [row]
        shutil.rmtree(node.path)


def test_effects_are_those_of_the_records(tmp_path: Path):
    samplers = [ScriptedSampler(answer), ScriptedSampler(tamed)]
    evaluate(write_recipe(tmp_path), "--limit", "4", samplers=samplers)
    effects = chain_effects([trace(tmp_path / "out")[0]])
    records = read_run(tmp_path / "out")[1]
    sides = []
    for name in ("sft", "dpo"):
        values = values_of([r for r in records[name] if r.prompt.setting == "no_tools"])
        pairs = zip(values["reasoning_tokens"], values["answer_tokens"], strict=True)
        values["tokens"] = [(a + b, question) for (a, question), (b, _) in pairs]
        sides.append({key: by_question(value) for key, value in values.items()})
    found = {effect.name: effect for effect in effects}
    calls = rate_difference(*(side["hallucination"] for side in sides))
    shown = found["dpo: undeclared calls, %"]
    assert shown.change == 100 * calls.difference < 0
    assert (shown.low, shown.high) == (100 * calls.low, 100 * calls.high)
    assert shown.questions == len(sides[0]["hallucination"].names)
    tokens = length_difference(*(side["tokens"] for side in sides))
    assert found["dpo: tokens (no_tools)"].after == tokens.b
    # trained on nothing that is known: accuracy is what a stage is for
    assert effects[0].figure.startswith("accuracy")


def test_tiles_name_checkpoints_as_the_tables_below_do(tmp_path: Path, monkeypatch):
    samplers = [ScriptedSampler(answer), ScriptedSampler(tamed)]
    evaluate(write_recipe(tmp_path), "--limit", "4", samplers=samplers)
    node = trace(tmp_path / "out")[0]
    arms = replace(arms_of(node), folders={"sft": "folder", "dpo": "folder"})
    monkeypatch.setattr(pages_effects, "arms_of", lambda _: arms)
    remarks = [remark for *_, remark in pages_effects.evaluation_tiles(node)]
    assert remarks
    assert all(remark.startswith("dpo: ") for remark in remarks)


def test_a_chain_opens_with_each_stage_that_an_evaluation_compares(tmp_path: Path):
    names = ("sft", "dpo", "rlvr")
    checkpoints = {name: str(tmp_path / "checkpoint") for name in names}
    samplers = [ScriptedSampler(answer), ScriptedSampler(tamed), ScriptedSampler(tamed)]
    recipe = write_recipe(tmp_path, checkpoints=checkpoints)
    evaluate(recipe, "--limit", "4", samplers=samplers)
    effects = chain_effects([trace(tmp_path / "out")[0]])
    firsts = first_effects(effects)
    assert [effect.stage for effect in firsts] == ["dpo", "rlvr"]
    assert firsts[0] is effects[0]


def test_each_stage_has_its_effect_on_each_family(tmp_path: Path):
    def worse(request: Request) -> str:
        wrong = "sums" in request.messages[-1].content
        return turn("55", thinking=request.thinking) if wrong else answer(request)

    samplers = [ScriptedSampler(lambda request: turn("56", thinking=request.thinking))]
    samplers += [ScriptedSampler(worse)]
    (tmp_path / "runs").mkdir()
    recipe = write_recipe(tmp_path / "runs", settings=[{"name": "plain"}])
    evaluate(recipe, samplers=samplers)
    node = trace(tmp_path / "runs" / "out")[0]
    effects = {(task, effect.title): effect for task, effect in family_effects(node)}
    assert effects.keys() == {
        ("sums", "accuracy, %"),
        ("products", "accuracy, %"),
        ("products", "undeclared calls, %"),
    }
    sums = effects["sums", "accuracy, %"]
    records = read_run(node.path)[1]
    sides = []
    for name in ("sft", "dpo"):
        values = values_of([r for r in records[name] if r.prompt.source == "sums"])
        sides.append(by_question(values["accuracy"]))
    change = rate_difference(*sides)
    assert (sums.before, sums.after, sums.questions) == (100.0, 0.0, 12)
    assert (sums.low, sums.high) == (100 * change.low, 100 * change.high)
    assert sums.is_better is False

    # few undeclared calls and truncated completions are better, few right answers worse
    fewer = replace(sums, low=-9.0, high=-1.0)
    more = replace(sums, low=1.0, high=9.0)
    for figure, better in (("accuracy", more), ("undeclared calls", fewer), ("truncated", fewer)):
        for change in (fewer, more):
            assert replace(change, figure=figure).is_better is (change is better)
    assert replace(sums, low=-1.0, high=1.0).is_better is None
    assert replace(fewer, unit="tokens").is_better is None

    page = write_chain([tmp_path / "runs"], out=tmp_path / "runs/report.html").read_text()
    family = section(page.replace("\N{NO-BREAK SPACE}", " "), "By family")
    assert "100.0 → 0.0" in family
    assert f"dpo on sums (accuracy, % {sums.interval})" in family
    assert "Measurably better: nothing." in family


def test_a_folder_of_artifacts_has_a_page_with_links(chain, capsys):
    runs = chain["sft"].parent
    judged(runs, ["warm", "trained", "sft"], chain)
    for name in ("data", "judge"):
        script("report").main([str(runs / name)])
    with open_run(runs / "timed", kind="toy", config={}) as run:
        run.finish(counts=Counts(1, 1), files={})
    seconds = json.loads((runs / "timed" / SECONDS).read_text())
    assert 0 <= seconds["seconds"] < 60
    assert seconds["cpu_seconds"] > 0
    (runs / "timed" / SECONDS).write_text('{"seconds": 12.5, "cpu_seconds": 7.25}')
    (runs / "judge" / SECONDS).write_text('{"seconds": 2.0}')  # of an older version
    capsys.readouterr()
    script("report").main([str(runs)])
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == str(runs / "report.html")
    line = "judge: accuracy on pairs, % 60.0 → 90.0 +30.0 (+20.0 … +40.0), 30 questions"
    assert " ".join(printed[1].split()) == line
    page = (runs / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    Reader(page)
    assert sections(page) == ["What the stages changed", "Stages", "Seconds and digests"]
    assert re.findall('<div class="tile"><b>(.*?)</b><span>(.*?)</span>', page) == [
        ("60.0 → 90.0 %", "accuracy on pairs")
    ]
    targets = {unquote(target) for target in re.findall(r'href="([^"#]+)"', page)}
    assert targets == {"data/report.html", "judge/report.html"}
    assert all((runs / target).is_file() for target in targets)
    diagram = section(page, "Stages")
    assert set(re.findall("<title>(.*?)</title>", diagram)) == {
        path.name for path in runs.iterdir() if path.is_dir()
    }
    assert cells(page, "timedtoy")[2:4] == ["12.5", "7.2"]
    assert cells(page, "all")[2:4] == ["14.5", "7.2"]
    for path in runs.iterdir():
        assert path.is_file() or read_artifact(path).digest in page


def test_what_is_no_chain_is_refused(chain, tmp_path: Path):
    runs = chain["sft"].parent
    assert is_chain(runs)
    assert not is_chain(runs / "data")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty is no finished artifact, and no folder"):
        script("report").main([str(runs), str(tmp_path / "empty")])


def test_a_parent_that_is_gone_is_named(chain):
    runs = chain["sft"].parent
    shutil.rmtree(runs / "data")
    script("report").main([str(runs)])
    page = (runs / "report.html").read_text()
    assert "sft_data data: not at ../data" in section(page, "Not in this report")


def test_a_diagram_leaves_out_what_other_arrows_say_and_never_overfills_a_row():
    edges = [(0, 1), (1, 2), (0, 2), (2, 3), (0, 3)]
    assert shortest(edges) == [(0, 1), (1, 2), (2, 3)]
    fan = [(0, node) for node in range(1, 12)]
    rows = rows_of(12, fan)
    assert rows[0] == 0
    assert max(rows.count(row) for row in set(rows)) == MOST
    assert all(rows[end] > rows[start] for start, end in fan)
