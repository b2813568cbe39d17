"""What trackers get, each with its own offline mode; their files are no part of the checkpoint."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from posttrain.errors import JudgeError
from posttrain.runs import read_artifact
from posttrain.training.rl.stage import GroupStage
from posttrain.training.sft.stage import SftStage
from tests.training.conftest import MakeRecipe
from tests.training.rl.policy import (
    FailsAtTheSecond,
    Scripted,
    finish,
    make_prompts,
    make_recipe,
    words_of,
)
from tests.training.tiny import log_rows

SECRET = "hf_q8Zt5Xw2Lr7Vb3Nc"  # noqa: S105 - of nobody
PROMPTS = make_prompts(24)


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


# ---- TensorBoard ----


def events_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("events.out.tfevents.*"))


def test_event_files_stay_also_over_a_resume_and_the_digest_is_the_same(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    trainer = {"max_steps": 2, "save_steps": 1, "report_to": "tensorboard"}
    one, two = (make_recipe(policy, tmp_path / name, trainer) for name in ("one", "two"))
    whole = finish(one, PROMPTS, Scripted(words_of))
    with pytest.raises(JudgeError, match="the end"):
        finish(two, PROMPTS, FailsAtTheSecond(words_of))
    before = events_of(tmp_path / "two")
    parts = finish(two, PROMPTS, Scripted(words_of))
    assert set(before) < set(events_of(parts))
    for out in (whole, parts):
        events = EventAccumulator(str(out / "tensorboard"))
        events.Reload()
        assert [event.step for event in events.Scalars("train/reward")] == [1, 2]
        assert not [f.path for f in read_artifact(out).files if "tfevents" in f.path]
    assert read_artifact(whole).digest == read_artifact(parts).digest
    assert GroupStage(two, prompts=PROMPTS, reward=Scripted()).open().complete


def test_a_folder_that_the_user_names_is_taken(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also one in the output directory: what lies in it is no part of the artifact."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "out" / "mine"))
    trainer = {"max_steps": 1, "report_to": "tensorboard"}
    out = finish(make_recipe(policy, tmp_path / "out", trainer), PROMPTS, Scripted(words_of))
    assert [path.parent.name for path in events_of(tmp_path)] == ["mine"]
    assert not [f.path for f in read_artifact(out).files if f.path.startswith("mine")]
