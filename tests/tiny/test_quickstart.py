"""The quickstart's recipes end to end, with smoke overrides: world → data → model → samples → pairs →
DPO → evaluation, then judgements → judge → RLHF → win rate. A model this little trained has nothing
right, so its pairs are given as text, and a judge this little trained says nothing that can be read,
so a server stands in for it."""

from __future__ import annotations

import importlib
import io
import json
import math
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from posttrain.evaluation.compare import rate_difference
from posttrain.evaluation.intervals import by_question
from posttrain.evaluation.metrics import values_of
from posttrain.evaluation.run import read_run
from posttrain.pages.chain import show_chain
from posttrain.runs import read_artifact
from tests.pages import reading
from tests.training.rl.servers import judge_server
from tests.training.tiny import neither_measure_nor_draw

RECIPES, RUNS = Path(__file__).parents[2] / "recipes" / "tiny", Path("runs/tiny")
# here, so that no collection of garbage has to walk what they import
SCRIPTS = {
    name: importlib.import_module(f"scripts.{name}")
    for name in (
        "tiny_world", "build_sft", "sft", "preview", "sample", "build_dpo", "dpo", "eval",
        "tiny_judgements", "build_genrm", "genrm", "eval_genrm", "rlhf", "win_rate",
    )
}  # fmt: skip
importlib.import_module("posttrain.training.rl.stage")
SMALL_WORLD = (
    "families={maths: {train: 200, heldout: 40, difficulties: [1, 2]}, logs: {train: 150, heldout: 40, difficulties: [1]}, "
    "steps: {train: 100, heldout: 40, difficulties: [1]}, lookups: {train: 100, heldout: 40, difficulties: [1]}}"
)
FEW_STEPS = ("trainer.num_train_epochs=1", "trainer.logging_steps=4", "trainer.warmup_steps=2")
# a model this little trained ends no answer in 16 tokens, and no judgement of it can be read
SHORT = (
    "prompts_per_step=2", "num_generations=4", "sampling.max_tokens=16", "loss.overlong=train",
    "trainer.max_steps=1", "trainer.per_device_train_batch_size=8",
    "guard={truncated: {}, zero_variance: {}, unscored: {}}",
)  # fmt: skip
# each artifact, its kind, and the kinds of what it was made from
LINEAGE = {
    "world": ("tiny_world", set()),
    "sft_data": ("sft_data", {"tiny_world"}),
    "sft": ("checkpoint", {"sft_data"}),
    "samples": ("samples", {"tiny_world", "checkpoint"}),
    "dpo_data": ("dpo_data", set()),
    "dpo": ("checkpoint", {"checkpoint", "dpo_data"}),
    "eval": ("evaluation", {"checkpoint", "tiny_world"}),
    "genrm": ("checkpoint", {"checkpoint", "genrm_data"}),
    "rlhf": ("checkpoint", {"checkpoint", "tiny_world"}),
    "win_rate": ("win_rate", {"evaluation"}),
}
Run = Callable[..., str]


def rows_of(name: str) -> list[dict]:
    return [json.loads(line) for line in (RUNS / name).read_text().splitlines()]


def test_the_tiny_recipes_chain(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """In this process: importing torch takes longer than most stages here."""

    def run(script: str, recipe: str, *arguments: str) -> str:
        capfd.readouterr()
        SCRIPTS[script].main(["--config", str(RECIPES / f"{recipe}.yaml"), *arguments])
        return capfd.readouterr().out

    def preview(name: str, rows: int) -> str:
        capfd.readouterr()
        SCRIPTS["preview"].main([str(RUNS / name), "--rows", str(rows)])
        return capfd.readouterr().out

    monkeypatch.chdir(tmp_path)
    run("tiny_world", "world", SMALL_WORLD)
    small = ("mixture.total=10000", "held_out.rows=8", "mixture.tolerance=0.05")
    run("build_sft", "build_sft", *small)
    run("sft", "sft", *FEW_STEPS)
    # one run has measured itself and drawn its charts
    neither_measure_nor_draw(monkeypatch)
    losses = [row["loss"] for row in rows_of("sft/log.jsonl") if "loss" in row]
    assert losses[-1] < losses[0]
    assert (RUNS / "sft/checkpoint-epoch-1/model.safetensors").is_file()
    # a finished stage started again does nothing, to the same digest
    before = read_artifact(RUNS / "sft_data").digest
    assert "complete" in run("build_sft", "build_sft", *small)
    assert read_artifact(RUNS / "sft_data").digest == before
    assert read_artifact(RUNS / "sft").parents[0].digest == before
    assert "sft_data" in preview("sft_data", 1)
    samples_to_evaluation(run)
    assert "pair 0 of 16" in preview("dpo_data", 16)
    judgements_to_win_rate(run)
    for name, (kind, parents) in LINEAGE.items():
        found = read_artifact(RUNS / name, kind=kind)
        assert {parent.kind for parent in found.parents} == parents, name
    for page in [*LINEAGE, "judgements", "eval_genrm", "eval_rlhf"]:
        assert (RUNS / page / "report.html").read_text().startswith("<!doctype html>")
    pages_open_with_what_the_records_say()
    printed = run_report()
    assert printed[-1] == str(RUNS / "report.html")
    page = (RUNS / "report.html").read_text()
    for folder in [path.parent.name for path in RUNS.glob("*/manifest.json")]:
        assert f'href="{folder}/report.html"' in page
    assert " ".join(tiles_of("eval")[0][0].split()[:3]) in " ".join(printed)


def run_report() -> list[str]:
    shown = io.StringIO()
    show_chain(Console(file=shown, width=180), [RUNS])
    return shown.getvalue().splitlines()


ALERT = "of the completions are no answers"


def tiles_of(name: str) -> list[tuple[str, str, str]]:
    """The tiles of a page, in their order."""
    tiles = reading.tiles_of(RUNS / name)
    # a model of a few steps is cut off, which its pages say before any figure; of a control arm
    # alone it is said below
    alerted = tiles[0][1] == ALERT
    said = "To know first" in (RUNS / name / "report.html").read_text()
    assert alerted == said or (said and name == "eval_genrm")
    tiles = tiles[alerted:]
    assert ALERT not in [label for _, label, _ in tiles]
    return tiles


def pages_open_with_what_the_records_say() -> None:
    """The first tiles of every page, and the change with its interval, from the rows themselves."""
    for name in ("world", "judgements", "sft_data", "genrm_sft_data"):
        counts = read_artifact(RUNS / name).counts
        assert tiles_of(name)[0][:2] == (f"{counts.rows_in:,} → {counts.kept:,}", "rows")
    asked, sampled = len(rows_of("samples/prompts.jsonl")), rows_of("samples/samples.jsonl")
    # behind what has to be said first: too few steps were trained for answers
    shown = {label: figure for figure, label, _ in tiles_of("samples")}
    assert shown["prompts → samples"] == f"{asked:,} → {len(sampled):,}"
    cut = sum(row["finish"] == "length" for row in sampled)
    assert shown["truncated"] == f"{100 * cut / len(sampled):.1f} %"
    paired = sum(pq.read_metadata(f).num_rows for f in (RUNS / "dpo_data/pairs").glob("*"))
    rows_in = read_artifact(RUNS / "dpo_data").counts.rows_in
    assert tiles_of("dpo_data")[0][0] == f"{rows_in:,} → {paired:,}"
    prompts = rows_of("genrm_data/prompts.jsonl")
    orders = 2  # each pair is judged in both
    assert tiles_of("genrm_data")[0][0] == f"{len(prompts) // orders:,} → {len(prompts):,}"
    for name in ("sft", "genrm_sft"):
        losses = [row["eval_loss"] for row in rows_of(f"{name}/log.jsonl") if "eval_loss" in row]
        shown = " → ".join(f"{loss:.3f}" for loss in dict.fromkeys((losses[0], losses[-1])))
        assert tiles_of(name)[0][:2] == (shown, "held-out loss")
    last = rows_of("dpo/log.jsonl")[-1]
    right = f"50.0 → {100 * last['accuracy']:.1f} %"
    assert tiles_of("dpo")[0][:2] == (right, "pairs ranked right")
    for name, key, title in (
        ("rlhf", "part/accuracy", "right on checkable prompts"),
        ("genrm", "reward", "reward"),
    ):
        values = [row[key] for row in rows_of(f"{name}/log.jsonl") if "rollouts" in row]
        found = {tile[1]: tile for tile in tiles_of(name)}
        if any(values) or key == "reward":
            scale, digits = (100, 1) if key != "reward" else (1, 1 if abs(values[-1]) >= 10 else 3)
            first, after = (f"{scale * values[k]:.{digits}f}" for k in (0, -1))
            shown = f"{first} → {after}{' %' if scale == 100 else ''}".replace("-", "−")
            assert found[title][0] == shown
    for name, after in (("eval", "dpo"), ("eval_rlhf", "rlhf")):
        records = read_run(RUNS / name)[1]
        values = (by_question(values_of(records[side])["accuracy"]) for side in ("sft", after))
        change = rate_difference(*values)
        bounds = [100 * value for value in (change.difference, change.low, change.high)]
        first, low, high = (f"{value:+.1f}".replace("-", "−") for value in bounds)
        assert tiles_of(name)[0] == (
            f"{100 * change.a:.1f} → {100 * change.b:.1f} %",
            "accuracy",
            f"{after}: {first} ({low} … {high}), {change.questions} questions",
        )
    metrics = json.loads((RUNS / "eval_genrm/metrics.json").read_text())
    shares = {cell["checkpoint"]: cell["pairwise_accuracy"]["value"] for cell in metrics["cells"]}
    before, after, control = (100 * shares[name] for name in ("warm", "trained", "sft"))
    first, *_, final = tiles_of("eval_genrm")
    assert first[:2] == (f"{before:.1f} → {after:.1f} %", "accuracy on pairs")
    assert final[:2] == (f"{control:.1f} %", "accuracy on pairs")
    assert final[2].startswith("control arm sft:")
    score = json.loads((RUNS / "win_rate/metrics.json").read_text())["rows"][-1]["score"]
    assert tiles_of("win_rate")[0][:2] == (f"50.0 → {100 * score['value']:.1f} %", "win rate")


def samples_to_evaluation(run: Run) -> None:
    """The second half of the quickstart, from its SFT checkpoint."""
    run(
        "sample", "sample", "n=2", "sampling.max_tokens=24",
        "prompts=[{name: maths, format: tiny_world, path: runs/tiny/world/train/maths.jsonl, count: 6}, "
        "{name: lookups, format: tiny_world, path: runs/tiny/world/train/lookups.jsonl, count: 6, where: {metadata.with_tools: true}}]",
        "settings=[{name: no_tools, thinking: 0.5, sources: [maths]}, {name: with_tools, tools: given, sources: [lookups]}]",
    )  # fmt: skip
    assert len(rows_of("samples/samples.jsonl")) == 2 * len(rows_of("samples/prompts.jsonl")) > 0
    rows = [{"prompt": f"{k}+1?", "chosen": f"{k + 1}", "rejected": "x"} for k in range(16)]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(
        "build_dpo", "build_dpo", "samples=[]", "categories={offline: 1.0}",
        "offline=[{name: sums, path: pairs.jsonl}]",
        "tokenizer={path: runs/tiny/sft, chat_template: own}",
    )  # fmt: skip
    steps = ("trainer.max_steps=2", "trainer.per_device_train_batch_size=4")
    run("dpo", "dpo", "batch=8", *steps)
    assert abs(rows_of("dpo/log.jsonl")[0]["preference_loss"] - math.log(2)) < 1e-4
    run(
        "eval", "eval", "settings=[{name: no_tools, thinking: both}]", "sampling.max_tokens=24",
        "prompts=[{name: maths, format: tiny_world, path: runs/tiny/world/heldout/maths.jsonl}]",
        "--limit", "4",
    )  # fmt: skip


def judgements_to_win_rate(run: Run) -> None:
    """The judge and what it is for, from the quickstart's SFT checkpoint."""
    few = "families={maths: {warm_up: 30, train: 12, heldout: 6, difficulties: [1]}}"
    run("tiny_judgements", "judgements", few, "drills=8")
    assert "complete" in run("tiny_judgements", "judgements", few, "drills=8")
    run("build_sft", "build_genrm_sft", "held_out.rows=4")
    run("sft", "genrm_sft", *FEW_STEPS)
    run("build_genrm", "build_genrm")
    run("genrm", "genrm", *SHORT)
    run("eval_genrm", "eval_genrm", "pairs=3", "sampling.max_tokens=16")
    judged = json.loads((RUNS / "eval_genrm" / "metrics.json").read_text())
    assert {cell["checkpoint"] for cell in judged["cells"]} == {"warm", "trained", "sft"}
    with judge_server() as (url, asked):
        backend = f"{{kind: chat, url: '{url}', model: stub}}"
        served = f"judge.models=[{{backend: {backend}, layout: compact}}]"
        run("rlhf", "rlhf", *SHORT, "prompts.0.count=6", "prompts.1.count=6", served)
        assert asked
        run("eval", "eval_rlhf", "sampling.max_tokens=24", "--limit", "4")
        run("win_rate", "win_rate", served)
