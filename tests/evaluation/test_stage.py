"""scripts/eval.py: the artifact, what resumes, what is refused, rescoring and comparing."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from posttrain.errors import ConfigError
from posttrain.evaluation.run import read_run
from posttrain.hashing import digest_of
from posttrain.runs import read_artifact
from scripts import eval as eval_script
from tests.evaluation.scripted import ScriptedSampler
from tests.evaluation.small_eval import (
    answer,
    evaluate,
    records,
    run_script,
    tamed,
    write_recipe,
)
from tests.sampling.scripted import Mortal
from tests.training.forks import forked
from tests.training.rl.servers import stating

SIZES = {"no_tools": 12 * 2 * 2, "with_tools": 12}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and the run that came of it."""
    folder = tmp_path_factory.mktemp("eval")
    evaluate(write_recipe(folder))
    return folder


def cell(run: Path, **wanted: str) -> dict:
    metrics = json.loads((run / "out/metrics.json").read_text())
    (found,) = [c for c in metrics["cells"] if wanted.items() <= c.items()]
    return found


def test_a_dry_run_refuses_tokens_beyond_the_servers_context(tmp_path: Path):
    with stating(500) as url:
        reached = {"kind": "completions", "url": url, "model": "m"}
        recipe = write_recipe(tmp_path, backend=reached | {"chat_template": "nemotron_3_nano"})
        with pytest.raises(ConfigError, match=r"behind a prompt of .* allows m"):
            evaluate(recipe, "--dry-run", "sampling.max_tokens=499")


def test_the_artifact(run: Path):
    manifest, found = read_run(run / "out")
    assert manifest.kind == "evaluation"
    assert list(found) == ["sft", "dpo"]
    assert manifest.counts.kept == 12 * 2 * 3
    assert set(records(run / "out")) == {
        f"records/{name}/{task}.{setting}.jsonl"
        for name in ("sft", "dpo")
        for task in ("sums", "products")
        for setting in SIZES
    }
    assert {f.path: f.rows for f in manifest.files}["records/dpo/sums.with_tools.jsonl"] == 12
    assert not (run / "out/work").exists()
    own = [
        r for r in found["sft"] if r.prompt.id.startswith("sums") and "no_tools/on" in r.prompt.id
    ]
    figures = cell(run, checkpoint="sft", task="sums", setting="no_tools", thinking="on")
    assert (figures["questions"], figures["samples"], figures["k"]) == (12, 24, 2)
    called = sum(r.verdict.any for r in own)
    assert 0 < called < 24
    assert figures["rates"]["hallucination"]["value"] == pytest.approx(called / 24)
    assert figures["rates"]["accuracy"]["value"] == pytest.approx(
        sum(r.score.value for r in own) / 24
    )
    assert set(figures["pass"]) == {"1", "2"}
    assert figures["lengths"]["reasoning_tokens"]["mean"]["value"] == len("because")
    figures = cell(run, checkpoint="dpo", task="products", setting="with_tools", thinking="on")
    assert figures["rates"]["called_tool"]["value"] == 1.0
    assert "hallucination" not in figures["rates"]
    # all tasks together, and pairs
    both = cell(run, checkpoint="sft", task="all", setting="no_tools", thinking="off")
    assert (both["questions"], both["samples"]) == (24, 48)
    pairs = json.loads((run / "out/metrics.json").read_text())["pairs"]
    pair = next(p for p in pairs if (p["task"], p["setting"]) == ("all", "no_tools"))
    assert (pair["a"], pair["b"]) == ("sft", "dpo")
    assert pair["rates"]["hallucination"]["difference"] < 0
    assert "<mark>&lt;tool_call&gt;" in (run / "out/report.html").read_text()


def test_killed_and_started_again_it_ends_with_the_same_bytes(run: Path):
    out = run / "killed"
    dying = [Mortal(lambda request, _: answer(request), kill_at=2)]
    ended = forked(lambda: evaluate(run / "eval.yaml", f"out={out}", samplers=dying), check=False)
    assert ended.codes == [-9], ended.text
    there = records(out)
    assert list(there) == ["records/sft/products.no_tools.jsonl", "records/sft/sums.no_tools.jsonl"]
    samplers = [ScriptedSampler(answer), ScriptedSampler(tamed)]
    evaluate(run / "eval.yaml", f"out={out}", samplers=samplers)
    assert records(out) == records(run / "out")
    assert all(request.tools for batch in samplers[0].calls for request in batch)
    for name in ("metrics.json", "lock.json", "manifest.json"):
        assert (out / name).read_bytes() == (run / "out" / name).read_bytes()


def test_other_weights_and_prompts_are_not_mixed_in(tmp_path: Path):
    recipe = write_recipe(tmp_path)
    with pytest.raises(ZeroDivisionError):
        evaluate(recipe, samplers=[ScriptedSampler(answer), ScriptedSampler(lambda request: 1 / 0)])
    other = ScriptedSampler(tamed)
    other.identity = {"backend": "scripted", "weights": "others"}
    with pytest.raises(ConfigError, match=r"begun with something else.*dpo\.weights"):
        evaluate(recipe, samplers=[other])
    text = (tmp_path / "sums.jsonl").read_text().replace("7*8?", "8*7?")
    (tmp_path / "sums.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=r"data\.files.*prompts\.sums"):
        evaluate(recipe, samplers=[ScriptedSampler(tamed)])


def test_an_evaluation_of_a_version_with_fewer_keys_goes_on(run: Path, tmp_path: Path):
    recipe = write_recipe(tmp_path)
    with pytest.raises(ZeroDivisionError):
        evaluate(recipe, samplers=[ScriptedSampler(answer), ScriptedSampler(lambda request: 1 / 0)])
    owner_file, lock_file = tmp_path / "out/stage.json", tmp_path / "out/lock.json"
    owner, lock = (json.loads(file.read_text()) for file in (owner_file, lock_file))
    for block in (owner["config"], lock):
        del block["sampling"]["max_total_tokens"], block["sampling"]["max_turns"]
    owner["config_digest"] = lock["config"] = digest_of(owner["config"])
    owner_file.write_text(json.dumps(owner))
    lock_file.write_text(json.dumps(lock))
    with pytest.raises(ConfigError, match=r"differ in: sampling\.max_turns\)"):
        evaluate(recipe, "sampling.max_turns=3")
    evaluate(recipe, samplers=[ScriptedSampler(tamed)])
    assert records(tmp_path / "out") == records(run / "out")
    evaluate(recipe, samplers=[])


def test_limit_and_task(tmp_path: Path):
    recipe = write_recipe(tmp_path)
    evaluate(recipe, "--limit", "3", "--task", "sums")
    manifest, found = read_run(tmp_path / "out")
    assert len(found["sft"]) == 3 * 2 + 3
    assert manifest.counts.dropped == {"limit": 12 * 3 - 3 * 2}
    with pytest.raises(ConfigError, match="limit"):
        evaluate(recipe, "--task", "sums")
    with pytest.raises(ConfigError, match=r"no task 'sum'.*did you mean 'sums'"):
        evaluate(recipe, "--task", "sum", f"out={tmp_path / 'other'}")


def test_compare(run: Path, capsys):
    run_script(
        ["compare", f"{run / 'out'}:sft", f"{run / 'out'}:dpo", "--json", str(run / "c.json")]
    )
    rows = json.loads((run / "c.json").read_text())["pairs"]
    own = json.loads((run / "out/metrics.json").read_text())["pairs"]
    assert [row["rates"] for row in rows] == [row["rates"] for row in own]
    assert "undeclared calls" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="several checkpoints"):
        run_script(["compare", str(run / "out"), str(run / "out")])
    with pytest.raises(ConfigError, match="did you mean 'dpo'"):
        run_script(["compare", f"{run / 'out'}:dp", f"{run / 'out'}:sft"])


def test_runs_that_were_not_asked_alike_are_not_compared(run: Path, tmp_path: Path):
    evaluate(run / "eval.yaml", f"out={tmp_path}/out", "sampling.temperature=0.5", "--task", "sums")
    compare = ["compare", f"{run / 'out'}:sft", f"{tmp_path / 'out'}:sft"]
    with pytest.raises(ConfigError, match=r"sampling\.temperature.*--despite sampling"):
        run_script(compare)
    run_script([*compare, "--despite", "sampling"])


def test_nothing_secret_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_SERVER_KEY", "sk-do-not-write-this")
    backend = {"kind": "completions", "url": "http://localhost:1/v1", "model": "m",
               "api_key_env": "MY_SERVER_KEY", "chat_template": "nemotron_3_nano"}  # fmt: skip
    logs = find_spec("inspect_ai") is not None
    recipe = write_recipe(tmp_path, backend=backend, inspect_logs=logs)
    evaluate(recipe, "--limit", "1", "--task", "sums")
    assert bool(list(tmp_path.glob("out/inspect/*/*.eval"))) == logs
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file():
            assert b"do-not-write" not in path.read_bytes(), path
            assert b"MY_SERVER_KEY" not in path.read_bytes(), path


def test_inspect_is_needed_for_its_logs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("posttrain.evaluation.inspect_adapter.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'posttrain\[inspect\]'"):
        evaluate(write_recipe(tmp_path, inspect_logs=True))
    assert not (tmp_path / "out").exists()


def test_the_page_names_rows_that_gave_no_prompt(tmp_path: Path):
    recipe = write_recipe(tmp_path)
    with (tmp_path / "sums.jsonl").open("a") as rows:
        rows.write('{"answer": "56"}\n')
    evaluate(recipe)
    page = (tmp_path / "out/report.html").read_text()
    assert "Rows that were not asked" in page
    [dropped] = read_artifact(tmp_path / "out").stats["sources"]["sums"]["dropped"].items()
    assert dropped[1] == 1
    assert dropped[0] in page


def test_a_comparison_with_nothing_asks_for_the_other_run(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        eval_script.main(["compare", "runs/a:sft"])
    assert "required: RUN_B" in capsys.readouterr().err
