"""A small world and a real SFT data set, built once, and a checkpoint artifact written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_builders.tiny_world.write import write_world
from posttrain.chat import nemotron_3_nano_template
from posttrain.config.tiny_world import FamilyConfig, TinyWorldConfig
from posttrain.runs import Counts, Run, atomic_write_text, parent_of, read_artifact
from tests.data_builders.small_build import build

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
    {"step": 20, "epoch": 1.0, "eval_loss": 2.5, "eval_error": 0.1},
]
STATS = {"steps": 20, "tokens": 200, "trained": 120, "train_loss": 2.0}


def write_rows(path: Path, rows: list[dict]) -> int:
    atomic_write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return len(rows)


def write_checkpoint(out: Path, *parents: Path, rows: list[dict] = LOG) -> Path:
    """A `checkpoint` artifact as the SFT stage leaves it, but for the model."""
    stage = Run.open(out, kind="checkpoint", config={"model": {"config": {"hidden_size": 8}}})
    files = {"log.jsonl": write_rows(out / "log.jsonl", rows)}
    speed = [
        {"from_step": 0, "to_step": 20, "seconds": 4.0, "processes": 1, "tokens": 200},
        {"from_step": 10, "to_step": 20, "seconds": 5.0, "processes": 2, "tokens": 200},
    ]
    write_rows(out / "speed.jsonl", speed)
    found = [parent_of(p, relative_to=out, manifest=read_artifact(p)) for p in parents]
    stage.finish(counts=Counts(40, 40), files=files, parents=found, stats=STATS)
    return out


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """`world/`, the `sft_data/` that the build stage made of it, and `sft/`; only to be read."""
    folder = tmp_path_factory.mktemp("finished")
    families = {name: FamilyConfig(train=40, heldout=16) for name in ("maths", "lookups")}
    config = TinyWorldConfig(out=str(folder / "world"), families=families)
    stage = Run.open(folder / "world", kind="tiny_world", config=config.owner_config())
    write_world(stage, config, template=nemotron_3_nano_template())
    (folder / "recipe.yaml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        build(Path("recipe.yaml"), report=True)
    write_checkpoint(folder / "sft", folder / "sft_data")
    return folder
