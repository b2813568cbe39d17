"""Killed at any moment and started again, a run ends with the bytes of an undisturbed one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from posttrain.errors import ConfigError
from posttrain.runs import read_artifact
from posttrain.training.checkpoints import (
    COMPLETE,
    Progress,
    latest_complete,
    mark_complete,
    remove_broken,
    rotate,
)
from tests.training.conftest import TRAINER
from tests.training.tiny import SCRIPT, log_rows, run_script

KILLED = "tests/training/killed.py"


@pytest.fixture(scope="module")
def recipe_file(data: Path, attention_path: Path, tmp_path_factory) -> Path:
    """15 steps in 3 epochs, resumable every 4 steps, epoch 1 kept, logged every 3 steps, dropout."""
    root = tmp_path_factory.mktemp("resume")
    model = root / "model"
    shutil.copytree(attention_path, model)
    config = (model / "config.json").read_text()
    (model / "config.json").write_text(
        config.replace('"attention_dropout": 0.0', '"attention_dropout": 0.1')
    )
    trainer = TRAINER | {
        "num_train_epochs": 3, "logging_steps": 3, "eval_strategy": "epoch",
        "save_strategy": "steps", "save_steps": 4,
    }  # fmt: skip
    raw = {
        "data": str(data),
        "out": "unset",
        "model": {"path": str(model)},
        "keep_epochs": [1],
        "trainer": trainer,
    }
    path = root / "sft.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.fixture(scope="module")
def undisturbed(recipe_file: Path) -> Path:
    out = recipe_file.parent / "undisturbed"
    run_script(SCRIPT, "--config", str(recipe_file), f"out={out}")
    return out


# before any checkpoint, at the start of epoch 2, with a checkpoint half written, before the manifest
MOMENTS = ("step:2", "step:5", "checkpoint:8", "finish")


def test_the_bytes_are_those_of_an_undisturbed_run(
    recipe_file: Path, undisturbed: Path, tmp_path: Path
):
    out = tmp_path / "out"
    arguments = ("--config", str(recipe_file), f"out={out}")
    for moment in MOMENTS:
        killed = run_script(KILLED, "sft", moment, *arguments, check=False)
        assert killed.returncode == -9, killed.stderr[-2000:]
        assert not (out / "manifest.json").exists()
    run_script(SCRIPT, *arguments)
    assert log_rows(out) == log_rows(undisturbed)
    assert read_artifact(out).digest == read_artifact(undisturbed).digest


def _checkpoint(folder: Path, step: int, world_size: int = 1) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"x" * step)
    mark_complete(path, Progress(step=step, tokens=1, trained=1, world_size=world_size))
    return path


def test_half_written_checkpoints_are_ignored_and_removed(tmp_path: Path):
    whole = _checkpoint(tmp_path, 9)
    cut = _checkpoint(tmp_path, 10)
    (cut / "model.safetensors").write_bytes(b"x")
    unmarked = _checkpoint(tmp_path, 11)
    (unmarked / COMPLETE).unlink()
    found = latest_complete(tmp_path, world_size=1)
    assert found is not None
    assert found[0] == whole
    remove_broken(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-9"]


def test_rotation_keeps_the_newest_and_never_none(tmp_path: Path):
    for step in (5, 10, 100):
        _checkpoint(tmp_path, step)
    rotate(tmp_path, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-100"]
    rotate(tmp_path, keep=0)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-100"]
    rotate(tmp_path, keep=None)


def test_another_number_of_processes_cannot_resume(tmp_path: Path):
    _checkpoint(tmp_path, 4, world_size=2)
    with pytest.raises(ConfigError, match="written by 2 processes and this run has 1"):
        latest_complete(tmp_path, world_size=1)
