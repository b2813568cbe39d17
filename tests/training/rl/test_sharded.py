"""Rollouts of a policy whose weights are sharded: gathered while it samples, the same as unsharded."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.training.rl.stage import GroupStage
from tests.training.forks import forked
from tests.training.rl.policy import (
    Scripted,
    finish,
    make_prompts,
    make_recipe,
    words_of,
    write_policy,
)
from tests.training.tiny import log_rows

pytestmark = pytest.mark.usefixtures("bare")

PROMPTS = make_prompts(24)
STATE: dict[str, Any] = {
    "use_cpu": False, "accelerator_config": {"use_configured_state": True},
    "per_device_train_batch_size": 4,
}  # fmt: skip
ADAPTER: dict[str, Any] = {"adapter": {"rank": 4, "preset": "attention"}}


def rollouts(out: Path) -> list[tuple[Any, ...]]:
    """Every rollout, without what differs in its last digits."""
    lines = [
        json.loads(line)
        for file in sorted((out / "rollouts").iterdir())
        for line in file.read_text().splitlines()
    ]
    return [
        (row["step"], row["position"], one["index"], one["text"], one["reward"], one["in_loss"])
        for row in lines
        for one in row["rollouts"]
    ]


@pytest.fixture(scope="module", params=["attention", "hybrid"])
def alone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, dict[str, Any]]:
    """A policy and its run in one process: an adapter on attention; Mamba and experts whose biases
    move."""
    root, keys = tmp_path_factory.mktemp("alone"), ADAPTER if request.param == "attention" else {}
    policy = write_policy(root / "policy", request.param)
    recipe = make_recipe(policy, root / "one", **keys)
    return policy, finish(recipe, PROMPTS, Scripted(words_of)), keys


@pytest.mark.parametrize("sharding", ["zero3", "fsdp2"])
def test_sharded_weights_roll_out_as_whole_ones_do(
    alone: tuple[Path, Path, dict[str, Any]], tmp_path: Path, sharding: str
):
    if sharding == "zero3" and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    policy, one, keys = alone
    launch = {"world_size": 2, "sharding": sharding}
    recipe = make_recipe(policy, tmp_path / "two", STATE, launch=launch, **keys)
    stage = GroupStage(recipe, prompts=PROMPTS, reward=Scripted(words_of))
    forked(lambda: stage.run(dry_run=False), processes=2, sharding=sharding)
    assert len(rollouts(one)) == 72
    assert rollouts(tmp_path / "two") == rollouts(one)
    pairs = zip(log_rows(tmp_path / "two"), log_rows(one), strict=True)
    for row, expected in pairs:
        if "loss" in row:
            assert row["loss"] == pytest.approx(expected["loss"], abs=1e-5)
            assert row["strayed"] == pytest.approx(1, abs=1e-4)
