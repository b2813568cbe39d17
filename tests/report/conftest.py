"""A real world and a real SFT data set, built once, and a checkpoint artifact written by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from posttrain.runs import Counts, Run, atomic_write_text, parent_of, read_artifact
from tests.data_builders.small_build import build
from tests.evaluation.small_world import make_world

RECIPE = """
out: sft_data
tokenizer: {path: world/tokenizer, chat_template: nemotron_3_nano}
packing: {max_length: 512}
reasoning: {strip: 0.2, truncate: 0.2, budgets: {kind: log_uniform, low: 2}}
held_out: {rows: 4}
mixture: {tolerance: 0.2, max_epochs: 4}
sources:
  - {name: maths, path: world/train/maths.jsonl, share: 0.5}
  - {name: lookups, path: world/train/lookups.jsonl, share: 0.5}
"""
LOG = [
    {"step": 10, "epoch": 0.5, "loss": 4.0, "learning_rate": 1e-3, "grad_norm": 2.0, "tokens": 100},
    {"step": 10, "epoch": 0.5, "eval_maths/on_loss": 3.0, "eval_maths/on_trained": 30},
    {"step": 10, "epoch": 0.5, "eval_maths/off_loss": 1.0, "eval_maths/off_trained": 10},
    {"step": 10, "epoch": 0.5, "eval_loss": 2.5},
    {"step": 20, "epoch": 1.0, "loss": 2.0, "learning_rate": 5e-4, "grad_norm": 1.0, "tokens": 200},
    {"step": 20, "epoch": 1.0, "eval_maths/on_loss": 2.0, "eval_maths/on_trained": 30},
    {"step": 20, "epoch": 1.0, "eval_maths/off_loss": 4.0, "eval_maths/off_trained": 10},
    {"step": 20, "epoch": 1.0, "eval_loss": 2.5},
]


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    """A folder with `world/` and the `sft_data/` that the build stage made of it."""
    folder = tmp_path_factory.mktemp("built")
    make_world(folder / "world")
    (folder / "recipe.yaml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        build(Path("recipe.yaml"), report=True)
    return folder


def write_checkpoint(out: Path, data: Path, rows: list[dict] | None = None) -> Path:
    """A `checkpoint` artifact made from `data`, as the SFT stage leaves it, but for the model."""
    manifest = read_artifact(data)
    stage = Run.open(out, kind="checkpoint", config={"model": {"config": {"hidden_size": 8}}})
    rows = LOG if rows is None else rows
    atomic_write_text(out / "log.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    speed = [
        {"from_step": 0, "to_step": 20, "seconds": 4.0, "processes": 1, "tokens": 200},
        {"from_step": 10, "to_step": 20, "seconds": 5.0, "processes": 2, "tokens": 200},
    ]
    atomic_write_text(out / "speed.jsonl", "".join(json.dumps(row) + "\n" for row in speed))
    stage.finish(
        counts=Counts(40, 40),
        files={"log.jsonl": len(rows)},
        parents=[parent_of(data, relative_to=out, manifest=manifest)],
        template_digest=manifest.template_digest,
        stats={"steps": 20, "tokens": 200, "trained": 120, "train_loss": 2.0},
    )
    return out


@pytest.fixture(scope="session")
def finished(built, tmp_path_factory) -> Path:
    """`world/`, `sft_data/` and `sft/`, only to be read."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    shutil.copytree(built, folder)
    write_checkpoint(folder / "sft", folder / "sft_data")
    return folder


@pytest.fixture
def run(built, tmp_path) -> Path:
    """`world/`, `sft_data/` and `sft/` in a folder of the test's own."""
    shutil.copytree(built, tmp_path / "run")
    write_checkpoint(tmp_path / "run" / "sft", tmp_path / "run" / "sft_data")
    return tmp_path / "run"
