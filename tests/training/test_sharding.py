"""Sharded runs follow one process, resume exactly, and run the model only where it is placed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, training_args

from posttrain.errors import TrainingError
from posttrain.runs import read_artifact
from posttrain.training.moe import BIAS
from posttrain.training.sft.stage import SftStage
from posttrain.training.sharding import expect_gradient_scale
from tests.training.conftest import MakeRecipe, sft_recipe
from tests.training.forks import forked
from tests.training.matrix import Cells
from tests.training.tiny import attention_model, hybrid_model

pytest.importorskip("deepspeed")
# Every sharding, model, method and kind of training once; the rest of the pairs is `make test-matrix`.
# rl/test_engines.py has GRPO, test_resume.py DDP, and `python -m benchmarks sharding` runs all
# combinations
CELLS = [
    ("zero2", "hybrid", True, "sft", False),
    ("zero3", "attention", True, "dpo", False),
    # one process scores a single batch for a teacher, the other several
    ("zero3", "attention", False, "distill", False),
    ("fsdp2", "hybrid", False, "sft", True),
    # an adapter's student has its head in a group of its own
    ("fsdp2", "attention", True, "full", False),
]
OTHER_CELLS = [
    ("zero2", "attention", False, "dpo", False),
    ("zero3", "hybrid", False, "sft", False),
    ("fsdp2", "attention", True, "dpo", False),
    ("fsdp2", "attention", False, "distill", True),
    ("fsdp2", "hybrid", False, "full", False),
]


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Cells:
    return Cells(tmp_path_factory.mktemp("cells"))


@pytest.mark.parametrize(
    ("sharding", "model", "lora", "method", "kill"),
    [*CELLS, *(pytest.param(*cell, marks=pytest.mark.matrix) for cell in OTHER_CELLS)],
)
def test_sharded_runs_follow_one_process_and_resume(
    cells: Cells, sharding: str, model: str, lora: bool, method: str, kill: bool
):
    found = cells.run(sharding, model, lora, method, kill=kill)
    assert found.loss < 1e-5
    assert found.weight < 1e-5
    assert found.resumed is kill


def sharded(out: Path, data: Path, model: Path, sharding: str) -> SftStage:
    trainer: dict[str, Any] = {
        "use_cpu": False, "accelerator_config": {"use_configured_state": True},
        "per_device_train_batch_size": 4, "max_steps": 1, "num_train_epochs": None,
    }  # fmt: skip
    launch = {"world_size": 2, "sharding": sharding}
    return SftStage(sft_recipe(data, model, out, trainer, launch=launch))


def prepared_without_a_pass(stage: SftStage) -> Any:
    """The trainer, whose model has not run when it is prepared and planned, and has when it is
    placed."""
    prepared = stage.prepare()
    passes: list[str] = []
    prepared.trainer.base_model.base_model.register_forward_pre_hook(
        lambda *_: passes.append("pass")
    )
    stage.show_plan(prepared, measure=True)
    assert not passes
    probe = prepared.trainer.on_placed
    prepared.trainer.on_placed = lambda: (probe(), print(f"placed {len(passes) > 0}"))
    return prepared.trainer


def test_the_model_runs_first_when_it_is_placed(data: Path, policy: Path, tmp_path: Path):
    def run() -> None:
        prepared_without_a_pass(sharded(tmp_path / "out", data, policy, "zero2")).train()

    ended = forked(run, processes=2, sharding="zero2")
    assert ended.text.count("placed True") == 2
    assert "packed vs alone" in ended.text


def test_under_fsdp2_all_get_the_buffers_of_the_first_process(data: Path, tmp_path: Path):
    model = hybrid_model()
    [bias] = [buffer for name, buffer in model.named_buffers() if name.endswith(BIAS)]
    bias.copy_(torch.arange(8.0))
    model.save_pretrained(str(tmp_path / "model"))

    def run() -> None:
        stage = sharded(tmp_path / "out", data, tmp_path / "model", "fsdp2")
        trainer = prepared_without_a_pass(stage)
        if os.environ["RANK"] == "1":
            [bias] = [b for name, b in trainer.model.named_buffers() if name.endswith(BIAS)]
            bias.zero_()
        trainer.train()
        assert all(isinstance(p, DTensor) for p in trainer.model.parameters())
        [bias] = [b for name, b in trainer.model.named_buffers() if name.endswith(BIAS)]
        assert bias.tolist() == list(range(8))
        # it is saved and resumed with the weights
        assert any(name.endswith(BIAS) for name in trainer.model.state_dict())

    ended = forked(run, processes=2, sharding="fsdp2")
    assert ended.text.count("placed True") == 2


def test_tied_weights_are_sharded_as_one(data: Path, tmp_path: Path):
    config = attention_model().config
    config.tie_word_embeddings = True
    AutoModelForCausalLM.from_config(config).save_pretrained(str(tmp_path / "tied"))
    stage = sharded(tmp_path / "out", data, tmp_path / "tied", "fsdp2")
    forked(lambda: stage.run(dry_run=False), processes=2, sharding="fsdp2")
    saved = load_file(tmp_path / "out" / "model.safetensors")
    embedding = saved["model.embed_tokens.weight"]
    assert torch.equal(saved.get("lm_head.weight", embedding), embedding)


@pytest.mark.parametrize("sharding", ["zero2", "zero3", "fsdp2"])
def test_what_was_learnt_in_bfloat16_is_saved_in_float32(
    data: Path, tmp_path: Path, tied_policy: Path, bf16_alone: Path, sharding: str
):
    """Steps of 3e-6 are lost where the weights in bfloat16 are saved and not the optimiser's."""
    out = tmp_path / "out"
    stage = SftStage(sft_recipe(data, tied_policy, out, small_steps(2), launch=LAUNCHES[sharding]))

    def run() -> None:
        # transformers takes bfloat16 without `use_cpu` for GPUs, and drops sharding with it
        training_args.is_torch_bf16_gpu_available = lambda: True
        stage.run(dry_run=False)

    forked(run, processes=2, sharding=sharding)
    share, cosine = what_was_learnt(out, tied_policy, bf16_alone)
    assert share > 0.9
    assert cosine > 0.9
    saved = load_file(out / "model.safetensors")
    assert {str(tensor.dtype) for tensor in saved.values()} == {"torch.float32"}
    assert "lm_head.weight" not in saved
    assert AutoModelForCausalLM.from_pretrained(out).dtype == torch.float32
    assert list(read_artifact(out).stats["weights"]) == ["float32"]


LAUNCHES = {name: {"world_size": 2, "sharding": name} for name in ("zero2", "zero3", "fsdp2")}


def small_steps(processes: int) -> dict[str, Any]:
    """Four steps of 8 packs at 3e-6 in bfloat16."""
    sharded = {"use_cpu": False, "accelerator_config": {"use_configured_state": True}}
    return {
        "bf16": True, "learning_rate": 3e-6, "lr_scheduler_type": "constant", "warmup_steps": 0,
        "max_steps": 4, "num_train_epochs": None, "per_device_train_batch_size": 8 // processes,
    } | (sharded if processes > 1 else {})  # fmt: skip


@pytest.fixture(scope="module")
def tied_policy(tmp_path_factory: pytest.TempPathFactory, policy: Path) -> Path:
    """The tiny policy with one matrix for embeddings and head."""
    folder = tmp_path_factory.mktemp("tied")
    shutil.copytree(policy, folder, dirs_exist_ok=True)
    config = AutoConfig.from_pretrained(policy)
    config.tie_word_embeddings = True
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def bf16_alone(tmp_path_factory: pytest.TempPathFactory, data: Path, tied_policy: Path) -> Path:
    """The same steps by one process."""
    out = tmp_path_factory.mktemp("alone") / "out"
    stage = SftStage(sft_recipe(data, tied_policy, out, small_steps(1)))
    forked(lambda: stage.run(dry_run=False))
    return out


def what_was_learnt(out: Path, base: Path, alone: Path) -> tuple[float, float]:
    """The share of weights that moved, and the cosine of their change with one process's."""
    runs = (load_file(folder / "model.safetensors") for folder in (out, base, alone))
    after, before, expected = runs
    change = torch.cat([(after[name].double() - before[name]).flatten() for name in expected])
    reference = torch.cat([(expected[n].double() - before[n]).flatten() for n in expected])
    cosine = torch.nn.functional.cosine_similarity(change, reference, dim=0)
    return float((change != 0).double().mean()), float(cosine)


def test_another_scale_of_the_gradient_is_noticed(recipe: MakeRecipe):
    loss = torch.ones((), requires_grad=True)
    (expect_gradient_scale(loss * 3, 0.25) / 4).backward()
    assert float(loss.grad) == 0.75
    with pytest.raises(TrainingError, match=r"by 0\.5, it should be 0\.25"):
        (expect_gradient_scale(loss * 3, 0.25) / 2).backward()
    # as a TRL would that divides by the accumulation steps what is divided by tokens already
    trainer = SftStage(recipe(trainer={"gradient_accumulation_steps": 2})).prepare().trainer
    trainer.loss_is_scaled_for_ga = False
    with pytest.raises(TrainingError, match="accumulation steps otherwise"):
        trainer.train()
