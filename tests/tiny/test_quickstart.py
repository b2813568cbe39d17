"""The quickstart's recipes end to end, with smoke overrides: world → data → model → samples → pairs →
DPO → evaluation, then judgements → judge → RLHF → win rate. A model this little trained has nothing
right, so its pairs are given as text, and a judge this little trained says nothing that can be read,
so a server stands in for it."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path

import pytest

from posttrain.runs import read_artifact
from posttrain.training import memory
from posttrain.training.activations import StepMemory
from tests.training.rl.servers import judge_server

ROOT = Path(__file__).parents[2]
SMALL_WORLD = [
    "families={maths: {train: 200, heldout: 40, difficulties: [1, 2]}, logs: {train: 150, heldout: 40, difficulties: [1]}, "
    "steps: {train: 100, heldout: 40, difficulties: [1]}, lookups: {train: 100, heldout: 40, difficulties: [1]}}",
]  # fmt: skip
STEPS = ["trainer.num_train_epochs=1", "trainer.logging_steps=4", "trainer.warmup_steps=2"]
# here, so that no collection of garbage has to walk what they import
SCRIPTS = {
    name: importlib.import_module(f"scripts.{name}")
    for name in (
        "tiny_world", "build_sft", "sft", "preview", "sample", "build_dpo", "dpo", "eval",
        "tiny_judgements", "build_genrm", "genrm", "eval_genrm", "rlhf", "win_rate",
    )
}  # fmt: skip
importlib.import_module("posttrain.training.rl.stage")


class Commands:
    """Runs scripts in this process, since importing torch takes longer than most stages here."""

    def __init__(self, capfd: pytest.CaptureFixture[str]):
        self._capfd = capfd

    def __call__(self, script: str, *arguments: str) -> str:
        self._capfd.readouterr()
        SCRIPTS[script].main(arguments)
        return self._capfd.readouterr().out


def test_the_tiny_recipes_chain(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    run = Commands(capfd)
    recipes = ROOT / "recipes" / "tiny"
    run("tiny_world", "--config", str(recipes / "world.yaml"), *SMALL_WORLD)
    build = ["build_sft", "--config", str(recipes / "build_sft.yaml")]
    smoke = ["mixture.total=10000", "held_out.rows=8", "mixture.tolerance=0.05"]
    run(*build, *smoke)
    run("sft", "--config", str(recipes / "sft.yaml"), *STEPS)
    world, data, model = (tmp_path / "runs" / "tiny" / n for n in ("world", "sft_data", "sft"))
    for path, kind in ((world, "tiny_world"), (data, "sft_data"), (model, "checkpoint")):
        read_artifact(path, kind=kind)
        assert (path / "report.html").read_text().startswith("<!doctype html>")
    # lineage binds each artifact to the one it was made from
    assert read_artifact(data).parents[0].digest == read_artifact(world).digest
    assert read_artifact(model).parents[0].digest == read_artifact(data).digest
    losses = [json.loads(line) for line in (model / "log.jsonl").read_text().splitlines()]
    train = [row["loss"] for row in losses if "loss" in row]
    assert train[-1] < train[0]
    assert (model / "checkpoint-epoch-1" / "model.safetensors").is_file()
    # a finished stage started again does nothing, to the same digest
    before = read_artifact(data).digest
    assert "complete" in run(*build, *smoke)
    assert read_artifact(data).digest == before
    assert "sft_data" in run("preview", str(data), "--rows", "1")
    # one run has measured itself
    monkeypatch.setattr(memory, "measure_step", lambda *_: StepMemory(0, 0, 0))
    samples_to_evaluation(run, tmp_path, recipes)
    judgements_to_win_rate(run, tmp_path, recipes)


def samples_to_evaluation(run: Commands, tmp_path: Path, recipes: Path) -> None:
    """The second half of the quickstart, from its SFT checkpoint."""
    asked = [
        "prompts=[{name: maths, format: tiny_world, path: runs/tiny/world/train/maths.jsonl, count: 6}, "
        "{name: lookups, format: tiny_world, path: runs/tiny/world/train/lookups.jsonl, count: 6, where: {metadata.with_tools: true}}]",
        "settings=[{name: no_tools, thinking: 0.5, sources: [maths]}, {name: with_tools, tools: given, sources: [lookups]}]",
    ]
    run(
        "sample", "--config", str(recipes / "sample.yaml"), *asked,
        "n=2", "sampling.max_tokens=24",
    )  # fmt: skip
    samples, data, model, done = (
        tmp_path / "runs" / "tiny" / n for n in ("samples", "dpo_data", "dpo", "eval")
    )
    sampled = read_artifact(samples, kind="samples")
    counts = {f.path: f.rows for f in sampled.files}
    assert counts["samples.jsonl"] == 2 * (counts["prompts.jsonl"] or 0)
    rows = [{"prompt": f"{k}+1?", "chosen": f"{k + 1}", "rejected": "x"} for k in range(16)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [
        "samples=[]", "categories={offline: 1.0}", "offline=[{name: sums, path: pairs.jsonl}]",
        "tokenizer={path: runs/tiny/sft, chat_template: own}",
    ]  # fmt: skip
    run("build_dpo", "--config", str(recipes / "build_dpo.yaml"), *given)
    assert "pair 0 of 16" in run("preview", str(data), "--rows", "16")
    run(
        "dpo", "--config", str(recipes / "dpo.yaml"), "batch=8",
        "trainer.max_steps=2", "trainer.per_device_train_batch_size=4",
    )  # fmt: skip
    first = json.loads((model / "log.jsonl").read_text().splitlines()[0])
    assert abs(first["preference_loss"] - math.log(2)) < 1e-4
    held_out = [
        "prompts=[{name: maths, format: tiny_world, path: runs/tiny/world/heldout/maths.jsonl}]",
        "settings=[{name: no_tools, thinking: both}]",
        "sampling.max_tokens=24",
    ]
    run(
        "eval", "--config", str(recipes / "eval.yaml"), *held_out,
        "--limit", "4",
    )  # fmt: skip
    lineage = {p.kind for p in read_artifact(done, kind="evaluation").parents}
    assert lineage == {"checkpoint", "tiny_world"}
    for path in (samples, data, model, done):
        assert (path / "report.html").read_text().startswith("<!doctype html>")


def judgements_to_win_rate(run: Commands, tmp_path: Path, recipes: Path) -> None:
    """The judge and what it is for, from the quickstart's SFT checkpoint."""
    few = [
        "families={maths: {warm_up: 30, train: 12, heldout: 6, difficulties: [1]}}", "drills=8",
    ]  # fmt: skip
    judgements = ["tiny_judgements", "--config", str(recipes / "judgements.yaml"), *few]
    run(*judgements)
    assert "complete" in run(*judgements)
    run(
        "build_sft", "--config", str(recipes / "build_genrm_sft.yaml"),
        "held_out.rows=4",
    )  # fmt: skip
    run(
        "sft", "--config", str(recipes / "genrm_sft.yaml"),
        "trainer.logging_steps=4", "trainer.warmup_steps=2",
    )  # fmt: skip
    run("build_genrm", "--config", str(recipes / "build_genrm.yaml"))
    short = [
        "prompts_per_step=2",
        "num_generations=4",
        "sampling.max_tokens=16",
        "loss.overlong=train",
    ]
    short += ["trainer.max_steps=1", "trainer.per_device_train_batch_size=8"]
    # a model this little trained ends no answer in 16 tokens, and no judgement of it can be read
    short += ["guard={truncated: {}, zero_variance: {}, unscored: {}}"]
    run("genrm", "--config", str(recipes / "genrm.yaml"), *short)
    run(
        "eval_genrm", "--config", str(recipes / "eval_genrm.yaml"), "pairs=3",
        "sampling.max_tokens=16",
    )  # fmt: skip
    tiny = tmp_path / "runs" / "tiny"
    judged = json.loads((tiny / "eval_genrm" / "metrics.json").read_text())
    assert {cell["checkpoint"] for cell in judged["cells"]} == {"warm", "trained", "sft"}
    with judge_server() as (url, asked):
        backend = f"{{kind: chat, url: '{url}', model: stub}}"
        served = [f"judge.models=[{{backend: {backend}, layout: compact}}]"]
        world = ["prompts.0.count=6", "prompts.1.count=6"]
        run(
            "rlhf", "--config", str(recipes / "rlhf.yaml"),
            *short, *world, *served,
        )  # fmt: skip
        assert asked
        run(
            "eval", "--config", str(recipes / "eval_rlhf.yaml"),
            "sampling.max_tokens=24", "--limit", "4",
        )  # fmt: skip
        run("win_rate", "--config", str(recipes / "win_rate.yaml"), *served)
    lineage = {
        name: {parent.kind for parent in read_artifact(tiny / name, kind=kind).parents}
        for name, kind in (
            ("genrm", "checkpoint"), ("rlhf", "checkpoint"), ("win_rate", "win_rate"),
        )
    }  # fmt: skip
    assert lineage == {
        "genrm": {"checkpoint", "genrm_data"},
        "rlhf": {"checkpoint", "tiny_world"},
        "win_rate": {"evaluation"},
    }
    for name in ("judgements", "genrm", "eval_genrm", "rlhf", "eval_rlhf", "win_rate"):
        assert (tiny / name / "report.html").read_text().startswith("<!doctype html>")
