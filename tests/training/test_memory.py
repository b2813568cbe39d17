"""What a step is planned to need, from shapes alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from posttrain.config.grpo import ColocatedVllm
from posttrain.config.sft import AdapterConfig
from posttrain.errors import ConfigError
from posttrain.training.activations import (
    RolloutShape,
    StepShape,
    activation_bytes,
    rollout_bytes,
)
from posttrain.training.launch import Launched
from posttrain.training.memory import (
    GIB,
    MemoryPlan,
    ParameterCounts,
    memory_line,
    plan_memory,
    state_bytes,
)
from posttrain.training.sft.stage import SftStage
from tests.training.conftest import MakeRecipe
from tests.training.tiny import attention_model, hybrid_model

SHAPE = StepShape(rows=4, columns=64, labels=128, masked=True)
SIZE = ParameterCounts(
    all=800, trained=800, largest_layer=100, outside=50, all_bytes=3200, trained_bytes=3200
)
HALF = replace(SIZE, all_bytes=1600, trained_bytes=1600)


@pytest.mark.parametrize(
    ("size", "sharding", "processes", "precision", "weights", "gradients", "optimizer"),
    [
        (SIZE, "none", 1, "fp32", 3200, 3200, 6400),
        (SIZE, "none", 2, "fp32", 3200, 3200, 6400),
        # DeepSpeed keeps a float32 copy of the part that a process updates
        (SIZE, "zero2", 4, "bf16", 1600, 400, 2400),
        (SIZE, "zero3", 4, "bf16", 400, 400, 2400),
        # FSDP2 holds trained weights in float32
        (HALF, "fsdp2", 4, "bf16", 800, 800, 1600),
    ],
)
def test_what_each_sharding_keeps(
    size: ParameterCounts, sharding: str, processes: int, precision: str, weights: int, gradients: int,
    optimizer: int,
):  # fmt: skip
    parts = state_bytes(size, Launched(processes, sharding, "cpu", precision))
    assert parts["weights"] == weights
    assert parts["gradients"] == gradients
    assert parts["optimizer"] == optimizer
    assert (parts["gathered"] > 0) is (processes > 1)


@pytest.mark.parametrize("make", [attention_model, hybrid_model])
def test_activations_follow_the_shape_of_the_step(make: Any):
    config = make().config

    def needed(adapter: AdapterConfig | None = None, **changes: Any) -> int:
        return activation_bytes(config, replace(SHAPE, **changes), adapter)

    whole = needed()
    assert needed(rows=8, labels=256) == pytest.approx(2 * whole, rel=0.05)
    assert needed(checkpointing=True) < 0.8 * whole
    assert needed(AdapterConfig(preset="attention")) < whole
    assert needed(autocast=torch.bfloat16) < whole
    # no forward or backward pass can do without its input and output
    assert whole > 4 * 4 * 64 * config.hidden_size


def test_rollouts_keep_keys_and_values_of_every_column():
    config = attention_model().config
    # 2 layers × keys and values × 2 heads × 8 numbers of 4 bytes
    expected = 10 * 200 * 2 * 2 * 2 * 8 * 4
    assert rollout_bytes(config, RolloutShape(10, 200), torch.float32) == expected
    # the states of Mamba layers do not grow
    hybrid = hybrid_model().config
    short, long = (rollout_bytes(hybrid, RolloutShape(1, n), torch.float32) for n in (100, 200))
    assert 0 < long - short < short


@pytest.mark.parametrize(("sleep", "peak"), [(True, 8), (False, 11)])
def test_the_share_of_a_vllm_on_the_same_device_is_left_to_it(
    recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch, sleep: bool, peak: int
):
    """One that sleeps needs its share beside weights and optimiser only."""
    monkeypatch.setattr("posttrain.training.memory.device_bytes", lambda _: 10 * GIB)
    trainer = SftStage(recipe()).prepare().trainer
    batch = {name: torch.zeros(1, 8, dtype=torch.long) for name in ("input_ids", "labels")}
    engine = ColocatedVllm(engine="vllm_colocate", gpu_memory=0.5, sleep=sleep)
    launched = Launched(1, "none", "cpu", "fp32")
    plan = plan_memory(trainer, launched, batch, adapter=None, rollouts=engine)
    state = {"weights": 2 * GIB, "optimizer": GIB, "gradients": GIB, "activations": 2 * GIB}
    assert replace(plan, **state, gathered=0).peak == peak * GIB
    assert ("vllm 5.00" in memory_line(plan, 10 * GIB)[1]) is not sleep


def test_a_step_that_cannot_fit_is_refused_with_its_parts():
    plan = MemoryPlan(weights=4 * GIB, gradients=GIB, optimizer=0, gathered=0, activations=9 * GIB)
    assert plan.peak == 14 * GIB
    name, text = memory_line(plan, 15 * GIB)
    assert (name, text[:20]) == ("memory", "14.000 of 15.0 GiB a")
    with pytest.raises(ConfigError, match=r"more memory than there is.*activations 9.*checkpoint"):
        memory_line(plan, 13 * GIB)


def test_a_run_is_refused_before_its_first_step(recipe: MakeRecipe, monkeypatch):
    stage = SftStage(recipe())
    monkeypatch.setattr("posttrain.training.stage.device_room", lambda *_: 1000)
    with pytest.raises(ConfigError, match="a step needs more memory"):
        stage.run(dry_run=False)
