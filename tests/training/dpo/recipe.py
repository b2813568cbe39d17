"""Recipes on small pairs and the tiny models, and a run from start to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posttrain.config.dpo import DpoConfig
from posttrain.config.load import validate
from posttrain.pages.write import TrainingPage
from posttrain.training.dpo.stage import DpoStage
from posttrain.training.stage import PreparedRun

TRAINER: dict[str, Any] = {
    "learning_rate": 1e-3,
    "max_steps": 3,
    "per_device_train_batch_size": 8,
    "gradient_checkpointing": False,
    "lr_scheduler_type": "constant",
    "disable_tqdm": True,
}


def raw_recipe(
    data: Path, model: Path, out: Path, trainer: dict[str, Any] | None = None, **keys: Any
) -> dict[str, Any]:
    """8 pairs a step, 3 steps."""
    raw = {
        "data": str(data),
        "out": str(out),
        "model": {"path": str(model)},
        "batch": 8,
        "trainer": {**TRAINER, **(trainer or {})},
    }
    return {**raw, **keys}


def make_recipe(*args: Any, **kwargs: Any) -> DpoConfig:
    return validate(raw_recipe(*args, **kwargs), DpoConfig, where="test")


def start(recipe: DpoConfig) -> PreparedRun:
    return DpoStage(recipe).prepare()


def finish(recipe: DpoConfig) -> Path:
    stage = DpoStage(recipe)
    out = stage.run(dry_run=False, page=TrainingPage(stage.out))
    assert out is not None
    return out
