"""What the training stages share: names in an output directory, parents, and what is cleared away.

runs/x/{config.json, model.safetensors, …, log.jsonl, manifest.json}   the checkpoint
runs/x/resume/checkpoint-40/                                           only while it trains
runs/x/tensorboard/events.out.tfevents.…                               with report_to: tensorboard
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from posttrain.artifacts import Manifest, read_artifact
from posttrain.config.dpo import DpoConfig
from posttrain.config.sft import ModelConfig, SftConfig
from posttrain.training.log import SPEED
from posttrain.training.rl.timing import TIMING

KIND = "checkpoint"
RESUME = "resume"
TENSORBOARD = "tensorboard"
REFERENCE = "reference"


def model_parent(model: ModelConfig) -> Manifest | None:
    """The manifest of the checkpoint artifact that training starts from, if it is one."""
    path = Path(model.path or "")
    if model.path is None or not (path / "manifest.json").is_file():
        return None
    return read_artifact(path, kind=KIND)


def stage_config(recipe: SftConfig | DpoConfig, data: Manifest) -> dict[str, Any]:
    """What names a run: the recipe with inputs by digest, without paths that decide nothing."""
    outside = {"out", "data", "reference_cache"}
    config = recipe.model_dump(mode="json", exclude=outside)
    config["data_digest"] = data.digest
    if (parent := model_parent(recipe.model)) is not None:
        config["model"]["path"] = parent.digest
    return config


def artifact_files(out: Path) -> list[str]:
    """The files of a finished checkpoint that its manifest lists."""
    # neither speeds, nor caches, nor pages that can be written again are part of the artifact, nor
    # event files, whose names and bytes hold the host and the time
    own = {"manifest.json", "stage.json", SPEED, TIMING, "report.html", "accuracy.json"}
    return [
        name
        for name in (
            str(path.relative_to(out)) for path in sorted(out.rglob("*")) if path.is_file()
        )
        if name not in own
        and not name.startswith((".", f"{RESUME}/", f"{REFERENCE}/"))
        and "events.out.tfevents." not in name
    ]


def clean_up(out: Path) -> None:
    """Remove the resume checkpoints of a finished run."""
    shutil.rmtree(out / RESUME, ignore_errors=True)
