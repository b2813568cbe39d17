"""The quickstart's recipes end to end, with smoke overrides: world → data → model → accuracy → report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from posttrain.artifacts import read_artifact

ROOT = Path(__file__).parents[2]
SMALL_WORLD = [
    "families={maths: {train: 400, heldout: 80, difficulties: [1, 2]}, logs: {train: 300, heldout: 80, difficulties: [1]}, "
    "steps: {train: 200, heldout: 80, difficulties: [1]}, lookups: {train: 200, heldout: 80, difficulties: [1]}}",
]  # fmt: skip
STEPS = ["trainer.num_train_epochs=1", "trainer.logging_steps=10", "trainer.warmup_steps=2"]


def run(cwd: Path, script: str, *arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / script), *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_tiny_recipes_chain(tmp_path: Path):
    recipes = ROOT / "recipes" / "tiny"
    run(tmp_path, "scripts/tiny_world.py", "--config", str(recipes / "world.yaml"), *SMALL_WORLD)
    build = ["scripts/build_sft.py", "--config", str(recipes / "build_sft.yaml")]
    smoke = ["mixture.total=20000", "held_out.rows=8", "mixture.tolerance=0.05"]
    run(tmp_path, *build, *smoke)
    run(tmp_path, "scripts/sft.py", "--config", str(recipes / "sft.yaml"), *STEPS)
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
    assert "complete" in run(tmp_path, *build, *smoke)
    assert read_artifact(data).digest == before
    out = run(
        tmp_path, "benchmarks/tiny_accuracy.py", "--checkpoint", str(model), "--world", str(world),
        "--prompts", "16", "--budgets", "8", "--max-new-tokens", "24", "--out", "accuracy.json",
    )  # fmt: skip
    assert "16 held-out prompts of maths, logs, steps, lookups" in out
    run(tmp_path, "scripts/report.py", str(model), "--accuracy", "accuracy.json")
    assert "Accuracy" in (model / "report.html").read_text()
    assert "sft_data" in run(tmp_path, "scripts/preview.py", str(data), "--rows", "1")
