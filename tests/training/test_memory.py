"""What a step is planned to need, from shapes alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Qwen3Config
from trl.kernels import chunked_logprob

from posttrain.config.grpo import ColocatedVllm
from posttrain.config.sft import AdapterConfig
from posttrain.errors import ConfigError
from posttrain.models.load import CPU_VARLEN
from posttrain.training import activations, plan
from posttrain.training.activations import (
    RolloutShape,
    StepMemory,
    StepShape,
    measure_step,
    rollout_bytes,
)
from posttrain.training.cpu_attention import use_cpu_varlen
from posttrain.training.launch import Launched
from posttrain.training.plan import (
    GIB,
    FrozenModels,
    MemoryPlan,
    ModelSize,
    device_room,
    memory_line,
    plan_memory,
    process_bytes,
    state_bytes,
    whole_bytes,
)
from posttrain.training.sft.stage import SftStage
from posttrain.training.shards import make_shards
from tests.training.conftest import MakeRecipe
from tests.training.tiny import attention_model, hybrid_model

SHAPE = StepShape(rows=4, columns=64, labels=128, masked=True)
ALONE = Launched(1, "none", "cpu", "fp32")
SIZE = ModelSize(parameters=800, trainable=800, weight_bytes=3200, trainable_bytes=3200)
HALF = replace(SIZE, weight_bytes=1600, trainable_bytes=1600)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans measure a step and its rollouts, which conftest.py else leaves out."""
    monkeypatch.setattr(plan, "measure_step", measure_step)
    monkeypatch.setattr(plan, "rollout_bytes", rollout_bytes)


@pytest.mark.parametrize(
    ("size", "sharding", "processes", "precision", "weights", "optimizer", "to_sample"),
    [
        (SIZE, "none", 1, "fp32", 3200, 6400, 0),
        (SIZE, "none", 2, "fp32", 3200, 6400, 0),
        # DeepSpeed keeps a float32 copy of the part that a process updates
        (SIZE, "zero2", 4, "bf16", 1600, 2400, 0),
        (SIZE, "zero3", 4, "bf16", 400, 2400, 1600),
        # FSDP2 holds trained weights in float32
        (HALF, "fsdp2", 4, "bf16", 800, 1600, 1600),
    ],
)
def test_what_each_sharding_keeps_and_gathers_to_sample(
    size: ModelSize, sharding: str, processes: int, precision: str, weights: int,
    optimizer: int, to_sample: int,
):  # fmt: skip
    launched = Launched(processes, sharding, "cpu", precision)
    assert state_bytes(size, launched) == {"weights": weights, "optimizer": optimizer}
    assert whole_bytes(size, launched) == to_sample


def test_the_model_in_training_keeps_its_attention():
    """transformers writes the attention of a model that it makes into the config that it is given."""
    model = attention_model()
    assert use_cpu_varlen(model)
    measure_step(model.config, SHAPE, None, ALONE)
    rollout_bytes(model.config, RolloutShape(rows=2, columns=8), torch.float32)
    assert model.config._attn_implementation == CPU_VARLEN


def test_processes_of_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch):
    needed = MemoryPlan(weights=100, optimizer=0, step=StepMemory(0, 0, 0))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    total = plan.device_bytes(torch.device("cpu"))
    assert 100 < device_room(torch.device("cpu"), needed) <= total // 4 + 100


@pytest.mark.parametrize("make", [attention_model, hybrid_model])
def test_activations_follow_the_shape_of_the_step(make: Any):
    config = make().config

    def needed(adapter: AdapterConfig | None = None, **changes: Any) -> int:
        return measure_step(config, replace(SHAPE, **changes), adapter, ALONE).activations

    whole = needed()
    assert needed(rows=8, labels=256) == pytest.approx(2 * whole, rel=0.05)
    assert needed(checkpointing=True) < 0.8 * whole
    if make is hybrid_model:  # fused kernels keep less of a Mamba layer than the reference code
        assert 0 < needed(kernels=True) < whole
    else:
        assert needed(AdapterConfig(preset="attention")) < whole
        assert needed(autocast=torch.bfloat16) < whole
    # no forward or backward pass can do without its input and output
    assert whole > 4 * 4 * 64 * config.hidden_size


def weights_and_units() -> tuple[Any, dict[str, list[torch.nn.Parameter]]]:
    """A model whose embedding is not tied, and its weights by FSDP2's unit."""
    model = attention_model()
    units: dict[str, list[torch.nn.Parameter]] = {"rest": []}
    for name, weight in model.named_parameters():
        match name.split("."):
            case ["model", "layers", unit, *_]:
                pass
            case ["model", "embed_tokens", *_]:
                unit = "embedding"
            case _:
                unit = "rest"
        units.setdefault(unit, []).append(weight)
    return model, units


def test_fsdp2_gathers_a_unit_after_the_other():
    model, units = weights_and_units()
    size = {unit: sum(w.nbytes for w in weights) for unit, weights in units.items()}
    shards = make_shards(model, model, Launched(2, "fsdp2", "cpu", "fp32"), accumulated=False)
    gathered = []
    for unit in ("embedding", "0", "1", "rest"):
        shards.use(units[unit][0])
        gathered.append(shards.gathered)
    # a unit and its flat copy; what came before is split again
    assert gathered == [2 * size[unit] for unit in ("embedding", "0", "1", "rest")]
    besides = [shards.add_gradient(weight) for weight in units["rest"]]
    assert shards.gradients == size["rest"] // 2
    assert besides == [*[0] * (len(besides) - 1), size["rest"]]
    # one weight of a layer has no gradient: what was summed of it goes when the next layer begins
    for weight in (*units["1"][1:], *units["0"], *units["embedding"]):
        shards.add_gradient(weight)
    # the weights with their flat copy, and the copy of their gradients
    assert shards.gathered == 3 * size["embedding"]
    assert shards.gradients == (sum(size.values()) - units["1"][0].nbytes) // 2


def test_zero3_keeps_what_the_backward_pass_needs_again():
    model, units = weights_and_units()
    order = [w for unit in ("embedding", "0", "1", "rest") for w in units[unit]]
    total = sum(w.nbytes for w in order)
    shards = make_shards(model, model, Launched(2, "zero3", "cpu", "fp32"), accumulated=False)
    for weight in order:
        shards.use(weight)
    assert (shards.gathered, shards.gradients) == (2 * total, total // 2)  # with a bucket
    besides = [shards.add_gradient(weight) for weight in reversed(order)]
    assert shards.gathered == total  # the bucket
    assert besides == [*[0] * (len(order) - 1), total]  # in the order of the parts
    assert shards.update() == total // 2


@pytest.mark.parametrize(
    ("sharding", "processes", "gathered"), [("none", 1, 0), ("none", 2, 1), ("zero2", 2, 1)]
)
@pytest.mark.parametrize("accumulated", [False, True])
def test_whole_weights_have_their_gradients_in_buckets(
    sharding: str, processes: int, gathered: int, accumulated: bool
):
    model, _ = weights_and_units()
    total = sum(w.nbytes for w in model.parameters())
    launched = Launched(processes, sharding, "cpu", "fp32")
    shards = make_shards(model, model, launched, accumulated=accumulated)
    part = total // 2 if sharding == "zero2" else total
    assert shards.gradients == (part if accumulated else 0)
    for weight in model.parameters():
        shards.add_gradient(weight)
    assert shards.gathered == gathered * total
    # ZeRO-2 adds a new part to that of the micro-batches before
    assert shards.gradients == (2 * part if accumulated and sharding == "zero2" else part)


def test_a_gpu_has_whole_buckets_and_works_on_tiles_in_place():
    config = attention_model().config
    shape = replace(SHAPE, cpu_head=False)
    on_cpu = measure_step(config, shape, None, Launched(2, "zero3", "cpu", "fp32"))
    on_gpu = measure_step(config, shape, None, Launched(2, "zero3", "NVIDIA", "fp32"))
    assert on_gpu.gathered - on_cpu.gathered > 4 * 499_000_000
    # one tile of labels × 32,768 ids, and no copies of it
    assert 4 * 128 * 32768 < on_gpu.activations < 6 * 128 * 32768


@pytest.mark.parametrize("sharding", ["none", "fsdp2"])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_the_head_of_a_gpu_holds_what_trls_loop_would(
    monkeypatch: pytest.MonkeyPatch, sharding: str, autocast: torch.dtype | None
):
    """More ids than two tiles, and more labels than TRL takes at a time."""
    config = Qwen3Config(
        vocab_size=80_000, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    shape = replace(SHAPE, cpu_head=False, columns=700, labels=2500, autocast=autocast)
    launched = Launched(2, sharding, "NVIDIA", "fp32")
    ours = measure_step(config, shape, None, launched)

    def theirs(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        targets = torch.zeros(len(hidden), dtype=torch.long)
        given = (hidden, weight, None, targets, 1.0, activations.HEAD_TILE)
        return chunked_logprob.ChunkedLogProbFunction.apply(*given)[0]

    # what kernels do in place
    for name in ("_forward_tile", "_backward_tile", "_addmm_fp32"):
        monkeypatch.setattr(chunked_logprob, name, lambda *_, **__: None)
    monkeypatch.setattr(activations._FusedHead, "apply", theirs)
    assert ours.total == pytest.approx(measure_step(config, shape, None, launched).total, rel=1e-3)


def test_rollouts_keep_keys_and_values_of_every_column():
    config = attention_model().config
    # 2 layers × keys and values × 2 heads × 8 numbers of 4 bytes
    expected = 10 * 200 * 2 * 2 * 2 * 8 * 4
    assert rollout_bytes(config, RolloutShape(10, 200), torch.float32) == expected
    # the states of Mamba layers do not grow
    hybrid = hybrid_model().config
    short, long = (rollout_bytes(hybrid, RolloutShape(1, n), torch.float32) for n in (100, 200))
    assert 0 < long - short < short


def test_the_share_of_a_vllm_on_the_same_device_is_left_to_it(
    recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch
):
    """One that sleeps needs its share beside weights and optimiser only."""
    monkeypatch.setattr("posttrain.training.plan.device_bytes", lambda _: 10 * GIB)
    trainer = SftStage(recipe()).prepare().trainer
    batch = {name: torch.zeros(1, 8, dtype=torch.long) for name in ("input_ids", "labels")}
    step = StepMemory(activations=2 * GIB, gathered=0, gradients=GIB)
    for sleep, peak in ((True, 8), (False, 11)):
        engine = ColocatedVllm(engine="vllm_colocate", gpu_memory=0.5, sleep=sleep)
        plan = plan_memory(trainer, ALONE, batch, adapter=None, rollouts=engine)
        assert plan.process > 0  # on a CPU
        parts = {"weights": 2 * GIB, "optimizer": GIB, "step": step}
        assert replace(plan, **parts, process=0, heap=0).peak == peak * GIB
        assert replace(plan, **parts, process=GIB, heap=0).peak == (peak + 1) * GIB
        assert ("vllm 5.00" in memory_line(plan, 10 * GIB)[1]) is not sleep


@pytest.mark.usefixtures("measured")
def test_rounded_copies_of_the_weights_are_planned_beside_the_measured_step(recipe: MakeRecipe):
    trainer: Any = SftStage(recipe()).prepare().trainer
    batch = {name: torch.zeros(1, 8, dtype=torch.long) for name in ("input_ids", "labels")}
    alone = plan_memory(trainer, ALONE, batch, adapter=None)
    assert alone.step.activations > 0
    trainer.copied_bytes = GIB
    rounding = plan_memory(trainer, ALONE, batch, adapter=None)
    assert rounding.weights == alone.weights + GIB


def test_teachers_are_planned_beside_the_policy(recipe: MakeRecipe):
    trainer: Any = SftStage(recipe()).prepare().trainer
    batch = {name: torch.zeros(1, 8, dtype=torch.long) for name in ("input_ids", "labels")}
    small, large = torch.nn.Linear(1000, 250), torch.nn.Linear(1000, 1000)
    frozen = FrozenModels([small, large], on_device=1)
    sizes = [4 * 250 * 1001, 4 * 1000 * 1001]
    plan = plan_memory(trainer, ALONE, batch, adapter=None, frozen=frozen)
    # those that wait for their turn wait in the memory of the CPU
    assert plan.teachers == sum(sizes)
    assert frozen.bytes_on(torch.device("meta")) == max(sizes)
    assert FrozenModels(frozen.models).bytes_on(torch.device("meta")) == sum(sizes)
    alone = replace(plan, teachers=0)
    assert plan.peak == alone.peak + sum(sizes)
    with pytest.raises(ConfigError, match=r"teachers with .* teachers_in_memory"):
        memory_line(plan, 0)


def test_weights_that_are_mapped_from_a_file_are_not_taken_off_the_process(tmp_path: Path):
    """Pages that nothing has read yet are in no resident size."""
    size = 128 << 20
    file = tmp_path / "weights"
    with file.open("wb") as weights:
        weights.truncate(size)
    empty, mapped = torch.nn.Module(), torch.nn.Module()
    mapped.register_buffer("weights", torch.from_file(str(file), shared=False, size=size // 4))
    before = process_bytes(SimpleNamespace(model=empty))
    assert process_bytes(SimpleNamespace(model=mapped)) == pytest.approx(before, abs=size // 4)


def test_a_step_that_cannot_fit_is_refused_with_its_parts(recipe: MakeRecipe, monkeypatch: Any):
    step = StepMemory(activations=9 * GIB, gathered=0, gradients=GIB)
    plan = MemoryPlan(weights=4 * GIB, optimizer=0, step=step)
    assert plan.peak == 14 * GIB
    name, text = memory_line(plan, 15 * GIB)
    assert (name, text[:20]) == ("memory", "14.000 of 15.0 GiB a")
    with pytest.raises(ConfigError, match=r"more memory than there is.*activations 9.*checkpoint"):
        memory_line(plan, 13 * GIB)
    # before the first step of a run
    monkeypatch.setattr("posttrain.training.stage.device_room", lambda *_: 1000)
    with pytest.raises(ConfigError, match="a step needs more memory"):
        SftStage(recipe()).run(dry_run=False)
