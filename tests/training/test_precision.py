"""Launcher and recipe that disagree about precision, and weights that would not move."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from posttrain.config.dpo import DpoConfig
from posttrain.config.load import load_recipe
from posttrain.config.rlhf import GenRmConfig, RlhfConfig
from posttrain.config.sft import LaunchConfig, SftConfig
from posttrain.errors import ConfigError
from posttrain.training.dpo.stage import dpo_arguments
from posttrain.training.launch import check_device
from posttrain.training.rl.stage import grpo_arguments
from posttrain.training.sft.stage import SftStage, sft_arguments
from tests.training.conftest import MakeRecipe
from tests.training.forks import ROOT, launch_environment, shipped
from tests.training.methods import script

STAGES: dict[str, tuple[type[Any], Callable[..., Any]]] = {
    "sft": (SftConfig, sft_arguments),
    "genrm_sft": (SftConfig, sft_arguments),
    "dpo": (DpoConfig, dpo_arguments),
    "genrm": (GenRmConfig, grpo_arguments),
    "rlhf": (RlhfConfig, grpo_arguments),
}
EACH_STAGE = pytest.mark.parametrize("stage", ["sft", "dpo", "genrm", "rlhf"])


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(ROOT)
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_"))]:
        monkeypatch.delenv(name)
    yield
    unset_hf_deepspeed_config()


def arguments(stage: str, *overrides: str, family: str = "tiny", processes: int = 1) -> Any:
    """The trainer's arguments of a shipped recipe, as the stage's script makes them."""
    schema, make = STAGES[stage]
    recipe = load_recipe(f"recipes/{family}/{stage}.yaml", schema, overrides)
    # SFT takes the number of processes from the trainer
    more = {} if make is sft_arguments else {"env": {**os.environ, "WORLD_SIZE": str(processes)}}
    return make(recipe, out=Path("unused"), **more)


@EACH_STAGE
@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("launcher", [None, "no", "bf16", "fp16", "fp8"])
def test_launcher_and_recipe_agree_or_are_refused(
    stage: str, launcher: str | None, bf16: bool, monkeypatch: pytest.MonkeyPatch
):
    """accelerate also sets `no` where nobody said anything; the recipe's bf16 runs then."""
    if launcher is not None:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launcher)
    if launcher in (None, "no") or (launcher == "bf16" and bf16):
        precision = arguments(stage, f"trainer.bf16={bf16}").mixed_precision
        assert precision == ("bf16" if bf16 else "no")
    else:
        message = rf"launcher's .*'{launcher}'.*trainer.bf16 is {bf16}"
        with pytest.raises(ConfigError, match=message):
            arguments(stage, f"trainer.bf16={bf16}")


@pytest.mark.parametrize(("in_file", "bf16"), [(True, False), (False, True)])
def test_a_deepspeed_file_of_another_precision_is_refused(
    in_file: bool, bf16: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its own `enabled` is obeyed whatever the recipe says."""
    _needs_deepspeed()
    path = tmp_path / "deepspeed.json"
    config = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": in_file}}
    path.write_text(json.dumps(config))
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(path))
    with pytest.raises(ConfigError, match="launcher's deepspeed_config asks for"):
        arguments("sft", f"trainer.bf16={bf16}")


# each family under the launchers that its README, docs/guides/training.md or the Makefile names
SHIPPED = [
    *((launcher, "tiny", stage, 1) for launcher in ("none", "cpu") for stage in STAGES),
    *(("cpu-2", "tiny", stage, 2) for stage in STAGES),
    *((launcher, "one-gpu", stage, 1) for launcher in ("none", "ddp") for stage in ("sft", "dpo", "genrm", "rlhf")),
    *(("fsdp2", "nemotron-3-nano", stage, 64) for stage in ("sft", "dpo")),
    *(("zero2", "nemotron-3-nano", stage, 64) for stage in ("genrm", "rlhf")),
]  # fmt: skip


@pytest.mark.parametrize(("launcher", "family", "stage", "processes"), SHIPPED)
def test_shipped_recipes_agree_with_the_launchers_they_are_documented_with(
    launcher: str, family: str, stage: str, processes: int, monkeypatch: pytest.MonkeyPatch
):
    under(launcher, monkeypatch)
    assert arguments(stage, family=family, processes=processes).bf16 is (family != "tiny")


def under(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that a shipped launcher file makes."""
    if launcher.startswith("zero"):
        _needs_deepspeed()
    if launcher != "none":
        for name, value in launch_environment(*shipped(launcher)).items():
            if name.startswith(("ACCELERATE_", "FSDP_")):
                monkeypatch.setenv(name, value)


def _needs_deepspeed() -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")


@EACH_STAGE
@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("launcher", ["none", "ddp"])
def test_bfloat16_weights_under_a_plain_optimiser_are_refused(
    stage: str, bf16: bool, launcher: str, monkeypatch: pytest.MonkeyPatch
):
    if bf16:
        under(launcher, monkeypatch)
    keys = ("model.dtype=bfloat16", f"trainer.bf16={bf16}")
    with pytest.raises(ConfigError, match=r"model.dtype bfloat16.*model.dtype: float32.*adapter:"):
        arguments(stage, *keys)
    assert arguments(stage, "model.dtype=float32", f"trainer.bf16={bf16}").bf16 is bf16
    if stage != "sft":
        assert arguments(stage, *keys, "adapter={rank: 4}").bf16 is bf16


@pytest.mark.parametrize("launcher", ["fsdp2", "zero2", "zero3"])
def test_sharding_that_keeps_float32_weights_takes_bfloat16(
    launcher: str, monkeypatch: pytest.MonkeyPatch
):
    under(launcher, monkeypatch)
    keys = ("model.dtype=bfloat16", "trainer.bf16={}")
    assert arguments("sft", keys[0], keys[1].format(True)).bf16 is True
    # nothing is cast up without mixed precision
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    with pytest.raises(ConfigError, match=r"trainer\.bf16: true and start with"):
        arguments("sft", keys[0], keys[1].format(False))


@pytest.mark.parametrize("given", [{}, {"use_cpu": True}, {"ACCELERATE_USE_CPU": "true"}])
@pytest.mark.parametrize(("launcher", "device"), [("no", "cpu"), ("bf16", "cpu"), ("bf16", "cuda")])
def test_a_launcher_for_gpus_does_not_train_on_the_cpu_unasked(
    launcher: str, device: str, given: dict[str, Any]
):
    args = SimpleNamespace(device=torch.device(device))
    env = {"ACCELERATE_MIXED_PRECISION": launcher} | given
    refused = (launcher, device, given) == ("bf16", "cpu", {})
    with pytest.raises(ConfigError, match="is for GPUs") if refused else nullcontext():
        check_device(args, given, LaunchConfig(), env)


def test_a_recipe_for_a_gpu_refuses_a_cpu_with_the_recipes_to_take():
    requested = LaunchConfig(gpu=True)
    with pytest.raises(ConfigError, match=r"launch\.gpu: .*--config cpu/sft.*launch\.gpu=false"):
        check_device(SimpleNamespace(device=torch.device("cpu")), {}, requested, {})
    check_device(SimpleNamespace(device=torch.device("cuda")), {}, requested, {})
    for name in ("sft", "dpo", "genrm", "rlhf", "rlvr"):
        recipe = yaml.safe_load((ROOT / "recipes" / "one-gpu" / f"{name}.yaml").read_text())
        assert recipe["launch"]["gpu"] is True


@pytest.mark.parametrize("in_4bit", [False, True])
def test_an_adapter_on_bfloat16_weights_is_float32(
    recipe: MakeRecipe, in_4bit: bool, monkeypatch: pytest.MonkeyPatch
):
    """TRL casts the adapter of a 4-bit base to bfloat16; the base here only says that it is one."""
    if in_4bit:
        monkeypatch.setattr("transformers.LlamaForCausalLM.is_loaded_in_4bit", True, raising=False)
    made = recipe(adapter={"rank": 4})
    made = made.model_copy(update={"model": made.model.model_copy(update={"dtype": "bfloat16"})})
    model = SftStage(made).prepare().trainer.model
    trained = {p.dtype for p in model.parameters() if p.requires_grad}
    frozen = {p.dtype for p in model.parameters() if not p.requires_grad}
    assert (trained, frozen) == ({torch.float32}, {torch.bfloat16})


def test_a_launched_script_stops_before_it_loads_or_writes(
    recipe: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    under("ddp", monkeypatch)
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe(trainer={"bf16": False}).model_dump(mode="json")))
    with pytest.raises(ConfigError, match="launcher's mixed_precision asks for 'bf16'"):
        script("sft").main(["--config", str(file), "--dry-run"])
    assert not (tmp_path / "out").exists()
