from __future__ import annotations

import dataclasses
import os
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.sft_config import SFTConfig

from posttrain.config.command import run_command
from posttrain.config.sft import OWNED_TRAINER_FIELDS, ModelConfig, trainer_fields
from posttrain.errors import ConfigError
from posttrain.models.load import load_model
from posttrain.tokens.tokenizer import SpecialTokens
from posttrain.training.launch import precision_advice
from posttrain.training.sft.stage import SftStage, sft_arguments
from tests.training.conftest import MakeRecipe
from tests.training.forks import forked
from tests.training.tiny import losses


def test_fields_pass_through_to_the_installed_trl(recipe: MakeRecipe, tmp_path: Path):
    made = recipe(trainer={"warmup_steps": 7, "lr_scheduler_type": "cosine", "optim": "sgd"})
    args = sft_arguments(made, out=tmp_path)
    assert (args.warmup_steps, args.lr_scheduler_type, args.optim) == (7, "cosine", "sgd")
    # CPU: TRL's defaults would be bf16 and a truncation at 1024 tokens
    assert args.bf16 is False
    assert args.max_length is None
    assert args.average_tokens_across_devices is True
    assert args.report_to == []


@pytest.mark.parametrize(
    ("method", "kind"), [("sft", SFTConfig), ("dpo", DPOConfig), ("grpo", GRPOConfig)]
)
def test_the_fields_that_are_read_from_source_are_those_of_the_class(method: str, kind: type):
    assert trainer_fields(method) == {field.name for field in dataclasses.fields(kind)}


def test_fields_that_we_own_are_refused_with_the_reason(recipe: MakeRecipe):
    for field, reason in OWNED_TRAINER_FIELDS.items():
        with pytest.raises(ConfigError, match=f"{field} cannot be set here: {re.escape(reason)}"):
            recipe(trainer={field: 1})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"trainer": {"learning_rat": 1.0}},
            r"learning_rat .*did you mean 'trainer.learning_rate'",
        ),
        ({"trainer": {"save_strategy": "best"}}, "save_strategy"),
        ({"trainer": {"bf16": True, "fp16": True}}, "refuses this"),
        ({"trainer": {"activation_offloading": True}}, "needs an accelerator"),
        ({"trainer": {"accelerator_config": {"split_batches": True}}}, "leave them unset"),
        ({"keep_epochs": [1, 3]}, "keep_epochs names epoch 3"),
        ({"trainer": {"learning_rate": "fast"}}, r"trainer\.learning_rate: .*found 'fast'"),
        ({"trainer": {"learning_rate": -1.0}}, r"learning_rate: must not be negative"),
        ({"trainer": {"report_to": False}}, r"report_to: .*report_to: 'no'"),
        ({"trainer": {"max_steps": 0}}, r"max_steps: must be above 0, found 0"),
        ({"trainer": {"report_to": "wandbb"}}, r"'wandbb' is not known here; take one of tensor"),
    ],
)
def test_impossible_combinations_stop_before_anything_loads(
    recipe: MakeRecipe, tmp_path: Path, keys: dict, message: str
):
    with pytest.raises(ConfigError, match=message):
        sft_arguments(recipe(**keys), out=tmp_path)


def test_a_port_that_another_run_holds_is_named(recipe: MakeRecipe, tmp_path: Path):
    """Outside a launcher, which looks at the port itself."""
    made = recipe()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])

        def start() -> None:
            os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ["ACCELERATE_USE_CPU"] = "true"
            run_command(lambda: sft_arguments(made, out=tmp_path) and None)

        ended = forked(start, check=False)
    assert ended.codes == [1]
    assert f"127.0.0.1:{port}" in ended.text.splitlines()[-1]
    assert "Traceback" not in ended.text


def test_liger_is_refused_where_it_does_not_hold_and_what_is_not_installed_is_named(
    recipe: MakeRecipe, hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refused(message: str, model: dict | None = None, **keys: Any) -> None:
        asks = recipe(trainer={"use_liger_kernel": True, **keys})
        if model is not None:
            asks = asks.model_copy(update={"model": ModelConfig(**model)})
        with pytest.raises(ConfigError, match=rf"use_liger_kernel: .*{message}"):
            sft_arguments(asks, out=tmp_path)

    refused("not for nemotron_h", {"path": str(hybrid)})
    refused("not for mixtral", {"config": {"model_type": "mixtral"}})
    refused("whole batch", liger_kernel_config={"fused_linear_cross_entropy": True})
    monkeypatch.setattr("posttrain.training.arguments.find_spec", lambda _: None)
    refused("pip install liger-kernel")
    with pytest.raises(ConfigError, match=r"posttrain\[trackio\]"):
        sft_arguments(recipe(trainer={"report_to": "trackio"}), out=tmp_path)
    monkeypatch.setattr("posttrain.training.arguments.find_spec", lambda _: 1)
    refused("GPUs only", use_cpu=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="Liger's kernels run on GPUs only")
def test_liger_gives_the_same_losses(recipe: MakeRecipe, tmp_path: Path):
    pytest.importorskip("liger_kernel", reason="liger-kernel is not installed")
    found = []
    for name, liger in (("plain", False), ("liger", True)):
        keys = {"use_liger_kernel": liger, "bf16": False, "max_steps": 5, "num_train_epochs": None}
        asks = recipe(trainer=keys, out=str(tmp_path / name))
        SftStage(asks).run(dry_run=False)
        found.append(losses(tmp_path / name))
    assert found[1] == pytest.approx(found[0], abs=1e-5)


@pytest.mark.parametrize("path", ["runs/not/there", "some/model"])
def test_a_model_that_is_not_there_is_one_sentence(path: str):
    special = SpecialTokens("e", 1, "p", 0, (1,))
    with pytest.raises(ConfigError, match=f"{path}: .*no such folder") as refused:
        load_model(ModelConfig(path=path), special=special, vocabulary=8, seed=0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": {"path": "x", "config": {}}}, "give one of path"),
        ({"model": {"config": {}, "revision": "main"}}, "revision belongs to path"),
        ({"model": {"config": {}}, "adapter": {}}, "adapter needs a trained base"),
        ({"adapter": {"preset": "none"}}, "preset none adapts nothing"),
        ({"adapter": {"preset": "nemotron_h", "dropout": 0.1}}, "dropout must be 0"),
        ({"keep_epochs": [2, 1]}, "rising"),
        (
            {
                "balance": {"coefficient": 1e-4},
                "trainer": {"gradient_checkpointing_kwargs": {"use_reentrant": True}},
            },
            "use_reentrant: false",
        ),
        ({"launch": {"world_size": 1, "sharding": "zero2"}}, "more than one process"),
    ],
)
def test_recipes_that_cannot_mean_anything(recipe: MakeRecipe, keys: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        recipe(**keys)


@pytest.mark.parametrize(
    ("instructions", "bf16", "advice"),
    [
        ("", True, "set trainer.bf16=false"),
        ("", False, None),
        ("avx512_bf16", True, None),
        ("avx512_bf16", False, None),
        ("amx_bf16", True, None),
        ("amx_bf16", False, "trainer.bf16=true trains about twice as fast"),
    ],
)
def test_the_plan_says_which_precision_suits_the_cpu(
    instructions: str, bf16: bool, advice: str | None, monkeypatch: pytest.MonkeyPatch
):
    capabilities = {"amx_bf16": False, "avx512_bf16": False, instructions: True}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    args = SimpleNamespace(device=torch.device("cpu"), bf16=bf16, fp16=False)
    sentence = precision_advice(args)
    assert (sentence is None) if advice is None else advice in (sentence or "")
    assert precision_advice(SimpleNamespace(device=torch.device("cuda"))) is None


def test_the_cpu_recipes_train_in_float32():
    for name in ("sft", "dpo"):
        recipe = yaml.safe_load(Path(f"recipes/cpu/{name}.yaml").read_text())
        assert "bf16" not in recipe["trainer"]
