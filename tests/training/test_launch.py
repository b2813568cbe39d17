"""What the launchers really start on CPU, and the refusal of what they silently drop."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import yaml

from posttrain.config.sft import LaunchConfig
from posttrain.errors import ConfigError
from posttrain.training.launch import Launched, check_launch
from posttrain.training.sft.stage import SftStage, sft_arguments
from tests.training.conftest import TRAINER, MakeRecipe
from tests.training.tiny import ROOT, SCRIPT, losses, run_script

ACCELERATE = (sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2")
TORCHRUN = (*TORCHRUN, "--standalone")
ONE = {"per_device_train_batch_size": 8}
TWO = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}


def write_recipe(path: Path, data: Path, model: Path, trainer: dict, **keys: object) -> Path:
    raw = {
        "data": str(data),
        "out": "unset",
        "model": {"path": str(model)},
        # 5 steps an epoch: 20 steps; the 40 packs divide by 8
        "trainer": {**TRAINER, "num_train_epochs": 4, **trainer},
        **keys,
    }
    path.write_text(yaml.safe_dump(raw))
    return path


@pytest.fixture(scope="module")
def one_process(data: Path, attention_path: Path, tmp_path_factory) -> Path:
    """1 process × batch 8, 20 steps."""
    root = tmp_path_factory.mktemp("one")
    recipe = write_recipe(root / "sft.yaml", data, attention_path, ONE)
    run_script(SCRIPT, "--config", str(recipe), f"out={root / 'out'}")
    return root / "out"


@pytest.fixture
def two(data: Path, attention_path: Path, tmp_path: Path) -> Path:
    """2 processes × accumulation 2 × batch 2."""
    return write_recipe(tmp_path / "sft.yaml", data, attention_path, TWO)


def test_two_cpu_processes_follow_one_process_even_when_killed(
    one_process: Path, two: Path, tmp_path: Path
):
    """The documented command, 20 steps in fp32; killed in epoch 3, taken up in its middle."""
    arguments = (
        "--config", str(two), f"out={tmp_path / 'out'}", "launch.world_size=2",
        "trainer.save_strategy=steps", "trainer.save_steps=12",
    )  # fmt: skip
    launch = ("--config_file", "recipes/accelerate/cpu-2.yaml")
    killed = run_script(
        *launch, "tests/training/killed.py", "sft", "step:13", *arguments,
        launcher=ACCELERATE, check=False,
    )  # fmt: skip
    assert killed.returncode != 0
    assert (tmp_path / "out" / "resume" / "checkpoint-12" / "complete.json").is_file()
    run_script(*launch, SCRIPT, *arguments, launcher=ACCELERATE)
    ours, theirs = losses(tmp_path / "out"), losses(one_process)
    assert len(ours) == 20
    assert ours == pytest.approx(theirs, abs=1e-5)


def test_expert_balance_is_the_same_in_every_layout(
    recipe: MakeRecipe, data: Path, hybrid_path: Path, tmp_path: Path
):
    keys = {"balance": {"coefficient": 0.1}, "trainer": ONE | {"num_train_epochs": 1}}
    one = recipe(model={"path": str(hybrid_path)}, out=str(tmp_path / "one"), **keys)
    stage = SftStage(one).open()
    SftStage(one).train(
        SftStage(one).prepare(sft_arguments(one, out=tmp_path / "one" / "resume")), stage
    )
    two = write_recipe(
        tmp_path / "two.yaml", data, hybrid_path, TWO | {"num_train_epochs": 1},
        balance=keys["balance"],
    )  # fmt: skip
    run_script(
        SCRIPT, "--config", str(two), f"out={tmp_path / 'two'}", "launch.world_size=2",
        launcher=TORCHRUN, ACCELERATE_USE_CPU="true",
    )  # fmt: skip
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "two"), abs=1e-5)


@pytest.mark.parametrize("sharding", ["zero2", "zero3", "fsdp2"])
def test_sharded_runs_follow_one_process(
    one_process: Path, two: Path, tmp_path: Path, sharding: str
):
    """Sharding on CPU through accelerate's private state: for this test alone."""
    if sharding.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    run_script(
        "tests/training/sharded_on_cpu.py", sharding, "--config", str(two),
        f"out={tmp_path / 'out'}", "launch.world_size=2", f"launch.sharding={sharding}",
        launcher=TORCHRUN,
    )  # fmt: skip
    assert losses(tmp_path / "out") == pytest.approx(losses(one_process), abs=1e-5)


def test_the_shipped_fsdp2_file_trains_nemotron_h(
    recipe: MakeRecipe, data: Path, hybrid_path: Path, tmp_path: Path
):
    """Mamba, attention and routed experts, whose correction bias is a persistent buffer."""
    epoch = {"num_train_epochs": 1}
    one = recipe(model={"path": str(hybrid_path)}, out=str(tmp_path / "one"), trainer=ONE | epoch)
    stage = SftStage(one).open()
    SftStage(one).train(
        SftStage(one).prepare(sft_arguments(one, out=tmp_path / "one" / "resume")), stage
    )
    two = write_recipe(tmp_path / "two.yaml", data, hybrid_path, TWO | epoch)
    run_script(
        "tests/training/sharded_on_cpu.py", "fsdp2", "--config", str(two),
        f"out={tmp_path / 'two'}", "launch.world_size=2", "launch.sharding=fsdp2",
        launcher=TORCHRUN,
    )  # fmt: skip
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-5)


def test_accelerate_cpu_with_two_processes_starts_one_and_is_refused(two: Path, tmp_path: Path):
    result = run_script(
        "--cpu", "--num_processes", "2", SCRIPT, "--config", str(two), f"out={tmp_path / 'out'}",
        launcher=ACCELERATE, check=False,
    )  # fmt: skip
    assert result.returncode != 0
    assert "asked for several CPU processes and started one" in result.stderr
    assert "cpu-2.yaml" in result.stderr


def test_a_world_size_that_was_not_given_is_refused(recipe: MakeRecipe):
    made = recipe(launch={"world_size": 2})
    with pytest.raises(ConfigError, match=r"launch.world_size is 2, 1 process\(es\) run"):
        SftStage(made).prepare(sft_arguments(made, out=Path(made.out)))


@pytest.mark.parametrize(
    ("env", "asked"),
    [
        ({"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}, "zero2"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}, "fsdp2"),
    ],
)
def test_sharding_that_forced_cpu_drops_is_refused(env: dict[str, str], asked: str):
    got = Launched(world_size=2, sharding="none", device="cpu")
    with pytest.raises(ConfigError, match=f"the launcher asked for {asked}.*but none runs"):
        check_launch(LaunchConfig(), got, {**env, "LOCAL_RANK": "0"})


def test_a_named_sharding_must_run():
    with pytest.raises(ConfigError, match=r"recipes/accelerate/zero3\.yaml"):
        check_launch(LaunchConfig(sharding="zero3"), Launched(2, "none", "cpu"), {})
    check_launch(LaunchConfig(world_size=2, sharding="zero3"), Launched(2, "zero3", "gpu"), {})


@pytest.mark.parametrize("path", sorted((ROOT / "recipes/accelerate").glob("*.yaml")), ids=str)
def test_every_launch_config_is_one_that_accelerate_reads(path: Path):
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(path))
    expected = {"cpu": 1, "cpu-2": 2}.get(path.stem, 8)
    assert config.num_processes == expected
