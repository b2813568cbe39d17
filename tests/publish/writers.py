"""Checkpoints and evaluations on disk, without a model in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from posttrain.chat import nemotron_3_nano_template
from posttrain.publish.card import CARD, Origins, checkpoint_card
from posttrain.runs import MANIFEST, Counts, Run

END = {"id": 2, "content": "<|im_end|>"}


def write_checkpoint(
    folder: Path,
    *,
    config: Mapping[str, Any] | None = None,
    weights: str = "model.safetensors",
    origins: Origins | None = None,
    extra: Mapping[str, str] | None = None,
) -> Path:
    """With everything that a stage may leave beside the weights, and `extra` texts."""
    stage = Run.open(folder, kind="checkpoint", config=config or {"seed": 0})
    save_file({"w": np.arange(400, dtype=np.float32)}, folder / weights)
    texts = {
        "config.json": {"model_type": "qwen3"},
        "generation_config.json": {"eos_token_id": 2},
        "tokenizer.json": {"added_tokens": [END], "model": {"vocab": {"/home" + "/x": 9}}},
        "tokenizer_config.json": {"eos_token": "<|im_end|>"},
    }
    for name, body in texts.items():
        (folder / name).write_text(json.dumps(body))
    (folder / "chat_template.jinja").write_text(nemotron_3_nano_template().source)
    listed = [weights, *texts, "chat_template.jinja"]
    for name in ("log.jsonl", "rollouts/step-00001.jsonl", "adapter/adapter_config.json",
                 "adapter/adapter_model.safetensors", "checkpoint-epoch-1/config.json", "optimizer.pt"):  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}\n")
        listed.append(name)
    made_of = origins or Origins(None, (), {})
    for name, text in (extra or {}).items():
        if name not in listed:
            (folder / name).write_text(text)
            listed.append(name)
    card = checkpoint_card("sft", made_of, folder=folder, summary=["…"], parents=[], details=[])
    (folder / CARD).write_text(card)
    stage.finish(counts=Counts(0, 0), files=dict.fromkeys(listed))
    (folder / "report.html").write_text("<p>")
    (folder / "resume" / "checkpoint-3").mkdir(parents=True)
    return folder


def write_manifest_again(folder: Path) -> None:
    """The same manifest for files that have changed."""
    file = folder / MANIFEST
    names = {entry["path"]: None for entry in json.loads(file.read_text())["files"]}
    file.unlink()
    stage = Run.open(folder, kind="checkpoint", config={"seed": 0})
    stage.finish(counts=Counts(0, 0), files=names)


def write_evaluation(folder: Path, *, weights: Mapping[str, str]) -> Path:
    """Two tasks of the checkpoint `dpo`, one of `sft`."""
    config = {"prompts": [], "sampling": {"temperature": 0.6}}
    stage = Run.open(folder, kind="evaluation", config=config)
    cells = [cell("sft", "maths", 0.5), cell("dpo", "maths", 0.61), cell("dpo", "logs", 0.25)]
    (folder / "metrics.json").write_text(json.dumps({"cells": cells, "pairs": []}))
    stats = {"weights": {name: {"weights": digest} for name, digest in weights.items()}}
    stage.finish(counts=Counts(40, 40), files={"metrics.json": None}, stats=stats)
    return folder


def cell(checkpoint: str, task: str, accuracy: float) -> dict[str, Any]:
    def rate(value: float, low: float, high: float) -> dict[str, Any]:
        return {"value": value, "low": low, "high": high, "questions": 40, "samples": 80}

    return {
        "checkpoint": checkpoint, "task": task, "setting": "no_tools", "thinking": "on",
        "questions": 40, "samples": 80, "failed": 1, "unscored": 2,
        "rates": {"accuracy": rate(accuracy, 0.5, 0.7), "hallucination": rate(0.02, 0.01, 0.03)},
    }  # fmt: skip
