"""What trackers get, each with its own offline mode; tensorboard is in test_tensorboard.py."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from posttrain.runs import read_artifact
from posttrain.training.sft.stage import SftStage
from tests.training.conftest import MakeRecipe
from tests.training.tiny import log_rows

SECRET = "hf_q8Zt5Xw2Lr7Vb3Nc"  # noqa: S105 - of nobody


def wandb_log(folder: Path) -> tuple[str, str]:
    """The run's file holds names and values as protobuf text, uncompressed."""
    importlib.import_module("wandb").teardown()  # closes the file
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    text = file.read_bytes().decode("latin-1")
    return text, text


def trackio_log(folder: Path) -> tuple[str, str]:
    storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    (name,) = storage.get_runs("huggingface")
    return name, str(storage.get_logs("huggingface", name))


@pytest.mark.parametrize(("library", "read"), [("wandb", wandb_log), ("trackio", trackio_log)])
def test_a_tracker_gets_the_figures_of_the_log_under_the_runs_name_and_no_secret(
    recipe: MakeRecipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    read: Callable[[Path], tuple[str, str]],
):
    pytest.importorskip(library, reason=f"{library} is not installed")
    store = tmp_path / "tracker"
    store.mkdir()
    for name, value in {
        "WANDB_MODE": "offline", "WANDB_DIR": str(store), "WANDB_SILENT": "true",
        "WANDB_API_KEY": SECRET, "HF_TOKEN": SECRET,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    if library == "trackio":  # reads the folder when it is imported
        for module in ("trackio", "trackio.utils", "trackio.sqlite_storage"):
            monkeypatch.setattr(importlib.import_module(module), "TRACKIO_DIR", store)
    steps = {"max_steps": 3, "num_train_epochs": None, "eval_strategy": "steps", "eval_steps": 2}
    out = SftStage(recipe(trainer={**steps, "report_to": library})).run(dry_run=False)
    assert out is not None
    name, logged = read(store)
    assert f"{tmp_path.name}/out" in name
    keys = {key for row in log_rows(out) for key in row} - {"step", "epoch"}
    assert {"loss", "eval_loss", "tokens"} < keys
    for key in keys:
        tag = f"eval/{key.removeprefix('eval_')}" if key.startswith("eval_") else f"train/{key}"
        assert tag in logged
    for file in store.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()
    assert not [
        f.path for f in read_artifact(out).files if "wandb" in f.path or "trackio" in f.path
    ]
