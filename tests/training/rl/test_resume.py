"""Killed at any moment, or spread over processes: the same rollouts, log and weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.runs import read_artifact
from tests.training.rl.policy import raw_recipe, write_policy
from tests.training.tiny import ROOT, log_rows, run_script, sha

RUN = "tests/training/rl/run_grpo.py"
ACCELERATE = (sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch")
TWO = ("--config_file", "recipes/accelerate/cpu-2.yaml")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node")


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """5 steps of 6 × 4 rollouts from 18 prompts, so that a second epoch begins within a step;
    3 micro-batches a step, resumable every 2 steps. Mamba, attention and experts whose biases move,
    and a reference."""
    root = tmp_path_factory.mktemp("grpo_resume")
    policy = write_policy(root / "policy", "hybrid")
    trainer = {"max_steps": 5, "save_steps": 2}
    loss = {"overlong": "train", "kl": 0.05}
    raw = raw_recipe(policy, Path("unset"), trainer, max_epochs=2, loss=loss)
    path = root / "grpo.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.fixture(scope="module")
def undisturbed(recipe_file: Path) -> Path:
    out = recipe_file.parent / "undisturbed"
    run_grpo("never", str(recipe_file), f"out={out}")
    return out


def run_grpo(*arguments: str, **kwargs: Any):
    """The launcher imports from the tests."""
    return run_script(RUN, *arguments, PYTHONPATH=str(ROOT), **kwargs)


def rollouts(out: Path) -> dict[str, str]:
    return {path.name: sha(path) for path in sorted((out / "rollouts").iterdir())}


def groups(out: Path, step: int) -> list[dict[str, Any]]:
    lines = (out / "rollouts" / f"step-{step:05d}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


# in rollout, judging and optimisation, with half of the rollouts on disk, before the manifest
MOMENTS = ("rollout:1", "reward:1", "train:2", "write:3", "finish")


def test_the_bytes_are_those_of_an_undisturbed_run(
    recipe_file: Path, undisturbed: Path, tmp_path: Path
):
    out = tmp_path / "out"
    for moment in MOMENTS:
        killed = run_grpo(moment, str(recipe_file), f"out={out}", check=False)
        assert killed.returncode == -9, killed.stdout[-1000:] + killed.stderr[-2000:]
        assert not (out / "manifest.json").exists()
    run_grpo("never", str(recipe_file), f"out={out}")
    assert rollouts(out) == rollouts(undisturbed)
    assert log_rows(out) == log_rows(undisturbed)
    assert read_artifact(out).digest == read_artifact(undisturbed).digest
    assert sorted(p.name for p in (out / "rollouts").iterdir()) == [
        f"step-{n:05d}.jsonl" for n in range(1, 6)
    ]


def test_every_prompt_is_seen_once_an_epoch(undisturbed: Path):
    seen = [group["prompt"]["id"] for step in range(1, 6) for group in groups(undisturbed, step)]
    assert len(seen) == 30
    assert len(set(seen[:18])) == 18
    assert len(set(seen[18:])) == 12


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_change_nothing(
    recipe_file: Path, undisturbed: Path, tmp_path: Path, processes: int
):
    """Same rollouts, rewards, advantages and losses; micro-batches of another size."""
    out = tmp_path / "out"
    launch = (*TORCHRUN, str(processes)) if processes == 3 else (*ACCELERATE, *TWO)
    run_grpo(
        "never", str(recipe_file), f"out={out}", f"launch.world_size={processes}",
        "trainer.per_device_train_batch_size=4", launcher=launch, ACCELERATE_USE_CPU="true",
    )  # fmt: skip
    for step in range(1, 6):
        ours, theirs = groups(out, step), groups(undisturbed, step)
        assert [without_ratios(group) for group in ours] == [
            without_ratios(group) for group in theirs
        ]
    ours, theirs = ([row for row in log_rows(run) if "loss" in row] for run in (out, undisturbed))
    assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], abs=1e-6)
    for a, b in zip(ours, theirs, strict=True):
        assert a == pytest.approx(b, abs=1e-4)


def test_two_processes_that_train_no_token_both_fail(recipe_file: Path, tmp_path: Path):
    out, policy = tmp_path / "out", write_policy(tmp_path / "policy")
    failed = run_grpo(
        "never", str(recipe_file), f"out={out}", "launch.world_size=2", "trainer.max_steps=1",
        "trainer.per_device_train_batch_size=4", "loss.overlong=mask", "sampling.max_tokens=2",
        "sampling.temperature=0.02", f"model.path={policy}", launcher=(*ACCELERATE, *TWO), ACCELERATE_USE_CPU="true",
        check=False,
    )  # fmt: skip
    assert failed.returncode == 1
    assert failed.stderr.count("TrainingError: no token was trained in 1 steps") == 2
    assert not (out / "manifest.json").exists()


def without_ratios(group: dict[str, Any]) -> dict[str, Any]:
    """Ratios of two computations of one number differ in their last digits."""
    kept = [{k: v for k, v in one.items() if k != "importance"} for one in group["rollouts"]]
    return {**group, "rollouts": kept}
