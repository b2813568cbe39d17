"""Sequences split among processes follow one process; what cannot be split is refused.

PyTorch has no ring attention for a CPU: a stand-in runs its ring with the CPU's own kernels. What it
leaves out are the kernels of CUDA alone.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from posttrain.config.sft import SftConfig
from posttrain.errors import ConfigError
from posttrain.runs import read_artifact
from posttrain.training import launch
from posttrain.training.document_masking import choose_document_masking, make_collator
from posttrain.training.launch import check_parallelism
from posttrain.training.sft.stage import SftStage
from tests.training.conftest import sft_recipe
from tests.training.forks import forked, launch_environment, shipped
from tests.training.matrix import dying_at_step_1
from tests.training.tiny import PAD, attention_model, hybrid_model, losses

SPLIT = launch_environment(*shipped("fsdp2-context"))


def ring_on_cpu() -> None:
    """Have PyTorch's ring attention take the kernels of a CPU, forward and backward."""
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring

    aten = torch.ops.aten
    forward_op = aten._scaled_dot_product_flash_attention_for_cpu
    backward_op = aten._scaled_dot_product_flash_attention_for_cpu_backward

    def local(tensor: Any) -> torch.Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def spread(mesh: Any, tensors: Any) -> tuple[DTensor, ...]:
        return tuple(DTensor.from_local(t, mesh, [Shard(2)], run_check=False) for t in tensors)

    def forward(op_call: Any, args: Any, kwargs: Any) -> tuple[DTensor, ...]:
        query, key, value, dropout, is_causal = args
        assert is_causal
        assert not kwargs.get("attn_mask")
        assert 2 * local(query).size(2) == query.size(2)
        mesh = query.device_mesh
        results = ring._templated_ring_attention(
            mesh.get_group(), 2, forward_op, query=local(query), key=local(key),
            value=local(value), is_causal=True, dropout_p=dropout, scale=kwargs.get("scale"),
        )  # fmt: skip
        return spread(mesh, results)

    def backward(op_call: Any, args: Any, kwargs: Any) -> tuple[DTensor, ...]:
        grad, query, key, value, out, logsumexp, dropout, _causal = args
        mesh = query.device_mesh

        def op(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **rest: Any) -> Any:
            return backward_op(
                rest["grad_out"], query, key, value, rest["out"], rest["logsumexp"],
                rest["dropout_p"], rest["is_causal"], scale=rest["scale"],
            )  # fmt: skip

        results = ring._templated_ring_attention_backward(
            mesh.get_group(), 2, op, local(grad), "grad_out", local(query), local(key),
            local(value), local(out), local(logsumexp), is_causal=True, dropout_p=dropout,
            scale=kwargs.get("scale"),
        )  # fmt: skip
        return spread(mesh, results)

    ring.custom_ops[forward_op.default] = forward
    ring.custom_ops[backward_op.default] = backward
    launch.RING_DEVICES = ("cuda", "cpu")


def recipe(data: Path, model: Path, out: Path, *, split: bool, **keys: Any) -> SftConfig:
    trainer: dict[str, Any] = {
        "learning_rate": 1e-3, "lr_scheduler_type": "constant", "warmup_steps": 0, "max_steps": 2,
        "num_train_epochs": None, "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 2,
    }  # fmt: skip
    if split:
        trainer |= {"use_cpu": False, "accelerator_config": {"use_configured_state": True}}
        keys["launch"] = {"world_size": 2, "sharding": "fsdp2"}
    trainer |= keys.pop("trainer", {})
    return sft_recipe(data, model, out, trainer, document_masking="unpacked", **keys)


def test_split_sequences_follow_one_process(data: Path, policy: Path, tmp_path: Path):
    alone, split = tmp_path / "alone", tmp_path / "split"
    forked(lambda: SftStage(recipe(data, policy, alone, split=False)).run(dry_run=False))

    def run() -> None:
        ring_on_cpu()
        SftStage(recipe(data, policy, split, split=True)).run(dry_run=False)

    ended = forked(run, processes=2, sharding="fsdp2-context")
    assert "each sequence split among 2" in ended.text
    assert losses(split) == pytest.approx(losses(alone), abs=1e-5)
    a, b = (AutoModelForCausalLM.from_pretrained(out).state_dict() for out in (split, alone))
    assert max(float((a[name] - b[name]).abs().max()) for name in b) < 1e-5
    first, second = (read_artifact(out).stats for out in (split, alone))
    assert first["tokens"] == second["tokens"], "each token is counted once"
    assert first["eval_loss"] == pytest.approx(second["eval_loss"], abs=1e-5)


def run_split(recipe: SftConfig) -> None:
    ring_on_cpu()
    SftStage(recipe).run(dry_run=False)


def test_split_sequences_resume_and_train_adapters(data: Path, policy: Path, tmp_path: Path):
    """Killed and resumed: as the undisturbed run, and as one process."""
    alone, split, killed = (tmp_path / name for name in ("alone", "split", "killed"))
    steps = {"save_strategy": "steps", "save_steps": 1}
    keys: dict[str, Any] = {
        "adapter": {"preset": "attention_mlp", "rank": 4},
        "trainer": steps,
    }
    forked(lambda: SftStage(recipe(data, policy, alone, split=False, **keys)).run(dry_run=False))
    joined: dict[str, Any] = {"processes": 2, "sharding": "fsdp2-context"}
    forked(lambda: run_split(recipe(data, policy, split, split=True, **keys)), **joined)
    dying = recipe(data, policy, killed, split=True, **keys)
    ended = forked(lambda: dying_at_step_1(lambda: run_split(dying)), check=False, **joined)
    assert -signal.SIGKILL in ended.codes
    assert list(killed.glob("resume/checkpoint-1/complete.json"))
    forked(lambda: run_split(dying), **joined)
    assert losses(killed) == losses(split)
    assert read_artifact(killed).digest == read_artifact(split).digest
    assert losses(split) == pytest.approx(losses(alone), abs=1e-5)
    a, b = (AutoModelForCausalLM.from_pretrained(out).state_dict() for out in (split, alone))
    assert max(float((a[name] - b[name]).abs().max()) for name in b) < 1e-5


def test_rows_divide_among_processes_and_padding_is_not_trained():
    pack = {"input_ids": [5, 6, 7, 8, 9], "labels": [5, 6, 7, 8, 9], "seq_lengths": [2, 3]}
    batch = make_collator("unpacked", PAD, context=2)([pack])
    assert batch["input_ids"].tolist() == [[5, 6, PAD, PAD], [7, 8, 9, PAD]]
    assert batch["labels"].tolist() == [[-100, 6, -100, -100], [-100, 8, 9, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3]] * 2


def test_a_model_or_layout_that_cannot_be_split_is_refused():
    model = attention_model()
    assert choose_document_masking("auto", model, context=2) == "unpacked"
    for layout in ("varlen", "block_diagonal"):
        with pytest.raises(ConfigError, match="documents would attend to each other"):
            choose_document_masking(layout, model, context=2)
    with pytest.raises(ConfigError, match="recurrent layers of NemotronHForCausalLM"):
        choose_document_masking("auto", hybrid_model(), context=2)
    model.config._attn_implementation = "eager"
    with pytest.raises(ConfigError, match="not of eager"):
        choose_document_masking("auto", model, context=2)
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ConfigError, match="not all layers"):
        choose_document_masking("auto", model, context=2)


def test_what_cannot_be_split_is_refused_before_the_model_is_loaded(data: Path, tmp_path: Path):
    check_parallelism("sft", "cuda", SPLIT)
    check_parallelism("dpo", "cpu", launch_environment(*shipped("fsdp2")))
    with pytest.raises(ConfigError, match="for CUDA, not for cpu"):
        check_parallelism("sft", "cpu", SPLIT)
    for method in ("dpo", "grpo"):
        with pytest.raises(ConfigError, match="which sft alone can train with"):
            check_parallelism(method, "cuda", SPLIT)
    for name in ("TP", "SP"):
        with pytest.raises(ConfigError, match=f"{name.lower()}_size"):
            check_parallelism("sft", "cuda", SPLIT | {f"PARALLELISM_CONFIG_{name}_SIZE": "2"})
    with pytest.raises(ConfigError, match="PARALLELISM_CONFIG_CP_SIZE is 'two'"):
        check_parallelism("sft", "cuda", SPLIT | {"PARALLELISM_CONFIG_CP_SIZE": "two"})

    def run() -> None:
        stage = SftStage(recipe(data, tmp_path / "no-model", tmp_path / "out", split=True))
        with pytest.raises(ConfigError, match="for CUDA, not for cpu"):
            stage.run(dry_run=False)

    forked(run, processes=2, sharding="fsdp2-context")
    assert not (tmp_path / "out").exists()


def test_the_expert_balance_is_of_whole_sequences(data: Path, policy: Path, tmp_path: Path):
    def run() -> None:
        launch.RING_DEVICES = ("cuda", "cpu")
        balanced = recipe(data, policy, tmp_path / "out", split=True, balance={"coefficient": 1e-4})
        with pytest.raises(ConfigError, match=r"balance\.coefficient is of whole sequences"):
            SftStage(balanced).run(dry_run=False)

    forked(run, processes=2, sharding="fsdp2-context")
