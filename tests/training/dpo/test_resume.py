"""Killed at any moment, or spread over processes: the same log and the same weights."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from transformers import AutoModelForCausalLM

from posttrain.runs import read_artifact
from tests.training.dpo.pairs import make_pairs, write_pairs
from tests.training.dpo.recipe import raw_recipe
from tests.training.tiny import log_rows, run_script

KILLED = "tests/training/killed.py"
ACCELERATE = (sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone")
TWO_PROCESSES = ("--config_file", "recipes/accelerate/cpu-2.yaml")


@pytest.fixture(scope="module")
def recipe_file(attention_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10 steps of 8 pairs, resumable every 3 steps, logged every 2; mean form, so that the layout
    could show; the reference in 3 shards."""
    root = tmp_path_factory.mktemp("dpo_resume")
    data = write_pairs(root / "data", make_pairs(40))
    trainer = {
        "max_steps": 10,
        "save_steps": 3,
        "logging_steps": 2,
        "per_device_train_batch_size": 4,
    }
    raw = raw_recipe(
        data, attention_path, Path("unset"), trainer, max_epochs=2,
        loss={"sft_form": "mean", "kl_weight": 0.1},
    )  # fmt: skip
    path = root / "dpo.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.fixture(scope="module")
def undisturbed(recipe_file: Path) -> Path:
    out = recipe_file.parent / "undisturbed"
    run_script(KILLED, "dpo", "never", "--config", str(recipe_file), f"out={out}")
    return out


# with a shard of the reference missing, with a checkpoint half written, before the manifest
MOMENTS = ("shard:1", "checkpoint:6", "finish")


def test_the_bytes_are_those_of_an_undisturbed_run(
    recipe_file: Path, undisturbed: Path, tmp_path: Path
):
    out = tmp_path / "out"
    arguments = ("--config", str(recipe_file), f"out={out}")
    for moment in MOMENTS:
        killed = run_script(KILLED, "dpo", moment, *arguments, check=False)
        assert killed.returncode == -9, killed.stderr[-2000:]
        assert not (out / "manifest.json").exists()
    last = run_script(KILLED, "dpo", "never", *arguments)
    assert "all on disk" in last.stdout
    assert [row["step"] for row in log_rows(out) if "loss" in row] == [1, 2, 3, 4, 6, 8, 9, 10]
    assert log_rows(out) == log_rows(undisturbed)
    assert read_artifact(out).digest == read_artifact(undisturbed).digest
    page = (out / "report.html").read_text()
    assert "Margins and log-probabilities" in page
    assert "Speed of DPO" in page


def test_sharded_parameters_follow_one_process(
    recipe_file: Path, undisturbed: Path, tmp_path: Path
):
    """FSDP2 on CPU through accelerate's private state: for this test alone. TRL loads a reference of
    its own under FSDP and drops it; ours is the policy before the first step all the same."""
    out = tmp_path / "out"
    run_script(
        "tests/training/sharded_on_cpu.py", "fsdp2", "--config", str(recipe_file), f"out={out}",
        "launch.world_size=2", "launch.sharding=fsdp2", "trainer.per_device_train_batch_size=4",
        launcher=TORCHRUN, STAGE="dpo",
    )  # fmt: skip
    assert_same_rows(out, undisturbed)


def test_two_processes_follow_one(recipe_file: Path, undisturbed: Path, tmp_path: Path):
    """2 processes × accumulation 2 × 2 pairs against 1 × 2 × 4, each with its own reference."""
    out = tmp_path / "out"
    run_script(
        *TWO_PROCESSES, KILLED, "dpo", "never", "--config", str(recipe_file), f"out={out}",
        "launch.world_size=2", "trainer.per_device_train_batch_size=2", launcher=ACCELERATE,
    )  # fmt: skip
    assert_same_rows(out, undisturbed)
    a, b = (AutoModelForCausalLM.from_pretrained(run).state_dict() for run in (out, undisturbed))
    assert max(float((a[name] - b[name]).abs().max()) for name in a) < 1e-5


def assert_same_rows(out: Path, other: Path) -> None:
    ours, theirs = ([row for row in log_rows(run) if "loss" in row] for run in (out, other))
    assert len(ours) == len(theirs) == 8
    for a, b in zip(ours, theirs, strict=True):
        assert a == pytest.approx(b, abs=1e-5)
