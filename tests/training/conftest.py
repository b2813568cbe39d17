"""Fixtures of the training tests: one packed artifact and two tiny checkpoints a session."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# as the Makefile has it: accelerate else gives a process the threads that its node's others leave
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from posttrain.config.load import validate
from posttrain.config.sft import SftConfig
from tests.training.rl.policy import write_policy
from tests.training.tiny import neither_measure_nor_draw, write_artifact

torch.set_num_threads(1)
MakeRecipe = Callable[..., SftConfig]


@pytest.fixture(scope="session", autouse=True)
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where DeepSpeed compiles: a process killed there leaves a lock that later ones wait for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("extensions")))
        yield


@pytest.fixture(scope="module", autouse=True)
def neither_measured_nor_drawn() -> Iterator[None]:
    """But in test_memory.py, and for the page of every method once, in test_resume.py."""
    with pytest.MonkeyPatch.context() as patch:
        neither_measure_nor_draw(patch)
        yield


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An `sft_data` artifact: 40 packs of up to 48 tokens, 6 held out in two groups."""
    return write_artifact(tmp_path_factory.mktemp("data") / "packed_data")


@pytest.fixture
def make_data(tmp_path: Path) -> Callable[..., Path]:
    """`make_data(packs=…, capacity=…, pad=…)` writes another artifact."""

    def make(name: str = "made", **kwargs: object) -> Path:
        return write_artifact(tmp_path / name, **kwargs)  # type: ignore[arg-type]  # test helper

    return make


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama checkpoint with a tokenizer and a chat template."""
    return write_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `policy`, a tiny NemotronH: Mamba, experts whose biases move, attention, MLP."""
    return write_policy(tmp_path_factory.mktemp("hybrid"), "hybrid")


TRAINER: dict[str, Any] = {
    "learning_rate": 3e-3,
    "num_train_epochs": 2,
    "per_device_train_batch_size": 8,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "disable_tqdm": True,
}


def sft_recipe(
    data: Path, model: Path, out: Path, /, trainer: dict[str, Any] | None = None, **keys: Any
) -> SftConfig:
    """2 epochs of batches of 8 packs."""
    raw = {
        "data": str(data),
        "out": str(out),
        "model": {"path": str(model)},
        "trainer": {**TRAINER, **(trainer or {})},
    }
    return validate({**raw, **keys}, SftConfig, where="test")


@pytest.fixture
def recipe(data: Path, policy: Path, tmp_path: Path) -> MakeRecipe:
    """`recipe({…}, document_masking=…)`: a validated recipe on the tiny data and model."""
    return functools.partial(sft_recipe, data, policy, tmp_path / "out")
