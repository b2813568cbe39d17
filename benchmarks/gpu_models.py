"""Three checks of `gpu` that run our own parts: document masking, QLoRA, the SFT stage.

    python -m benchmarks gpu_models masking --out figures.json
    python -m benchmarks gpu_models qlora --out figures.json      # needs a GPU and bitsandbytes
    python -m benchmarks gpu_models stage --out figures.json      # through accelerate launch

A check that this machine cannot run ends with "not possible here: …" on the last line of stderr.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks import ROOT
from benchmarks.shapes import END, PAD, SHAPES, default_shape, random_model
from posttrain.config.sft import AdapterConfig, ModelConfig
from posttrain.errors import ConfigError
from posttrain.models.load import build_model
from posttrain.training.document_masking import (
    check_probe,
    choose_document_masking,
    make_collator,
    probe_document_masking,
)
from tests.models.tiny import TINY_HYBRID


def masking(_work: Path) -> dict[str, Any]:
    """Largest logit difference of a sequence in a pack against the same sequence alone, bfloat16.

    Measured on an attention model and, where its kernels are usable or in unpacked rows, on
    NemotronH.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    hybrid: Any = build_model({**TINY_HYBRID, "vocab_size": 1024, "pad_token_id": PAD})
    models: dict[str, Any] = {"attention": random_model(default_shape()), "hybrid": hybrid}
    figures: dict[str, Any] = {"held": True}
    for name, model in models.items():
        model = model.to(device, torch.bfloat16)
        layout = choose_document_masking("auto", model)
        probe = probe_document_masking(model, make_collator(layout, PAD), [_pack(0), _pack(1)])
        figures |= {
            f"{name} ({layout}) apart": probe.apart,
            f"{name} unprotected": probe.leaking,
        }
        try:
            check_probe(probe, layout)
        except ConfigError:
            figures["held"] = False
    return figures


def _pack(seed: int) -> dict[str, Any]:
    """Pack of three sequences of random ids."""
    rng = random.Random(seed)
    lengths = [64, 40, 33]
    ids = [rng.randrange(3, 1000) for _ in range(sum(lengths))]
    return {"input_ids": ids, "labels": ids, "seq_lengths": lengths}


def qlora(work: Path) -> dict[str, Any]:
    """Ten steps on one batch: the base in 4 bits stays as it is, the adapter learns the batch."""
    from peft import get_peft_model

    from posttrain.models.adapters import lora_config, quantization_config
    from posttrain.models.load import load_model
    from posttrain.tokens.tokenizer import SpecialTokens

    spec = AdapterConfig(method="qlora")
    try:
        quantization = quantization_config(spec)
    except ConfigError as error:
        sys.exit(f"not possible here: {error}")
    shape = default_shape()
    base: Any = random_model(shape)
    base.to(torch.bfloat16).save_pretrained(str(work))
    model = load_model(
        ModelConfig(path=str(work), dtype="bfloat16"),
        special=SpecialTokens("<|end|>", END, "<|pad|>", PAD, (END,)),
        vocabulary=SHAPES[shape]["vocab_size"],
        seed=0,
        quantization=quantization,
    )
    tuned = get_peft_model(model, lora_config(spec, model))
    frozen = {n: p.detach().clone() for n, p in tuned.named_parameters() if not p.requires_grad}
    adapter_weights = [p for p in tuned.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(adapter_weights, lr=1e-3)
    ids = torch.tensor([_pack(0)["input_ids"]], device=model.device)
    losses = []
    for _ in range(10):
        with torch.autocast("cuda", torch.bfloat16):
            loss = tuned(input_ids=ids, labels=ids).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
    weights = dict(tuned.named_parameters())
    for name, before in frozen.items():
        assert torch.equal(before, weights[name]), f"{name} is frozen and has changed"
    return {
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "trained": sum(p.numel() for p in adapter_weights),
        "GiB": torch.cuda.max_memory_allocated() / (1 << 30),
    }


def stage(work: Path) -> dict[str, Any]:
    """Losses of forty SFT steps on a small tiny world, by the commands that a user types."""
    on_gpu = torch.cuda.is_available()
    recipe = yaml.safe_load((ROOT / "recipes/tiny/world.yaml").read_text("utf-8"))
    families = recipe["families"]
    small = [f"families.{name}={{train: 300, heldout: 20}}" for name in families]
    _command(work, "tiny_world", "world", small)
    _command(work, "build_sft", "build_sft", ["mixture.total=60000", "held_out.rows=8"])
    trainer = {
        "max_steps": 40,
        "num_train_epochs": "null",
        "logging_steps": 5,
        "warmup_steps": 5,
        "bf16": str(on_gpu).lower(),
    }
    settings = ["keep_epochs=[]", *(f"trainer.{key}={value}" for key, value in trainer.items())]
    _command(work, "sft", "sft", settings, launcher="ddp.yaml" if on_gpu else "cpu.yaml")
    lines = (work / "runs/tiny/sft/log.jsonl").read_text().splitlines()
    losses = [row["loss"] for row in map(json.loads, lines) if "loss" in row]
    return {"first_loss": losses[0], "last_loss": losses[-1]}


def _command(
    work: Path, script: str, recipe: str, settings: list[str], *, launcher: str = ""
) -> None:
    command = [sys.executable]
    if launcher:
        command += ["-m", "accelerate.commands.launch", "--num_processes", "1"]
        command += ["--config_file", str(ROOT / "recipes/accelerate" / launcher)]
    command += [str(ROOT / "scripts" / f"{script}.py"), "--config"]
    command += [str(ROOT / "recipes/tiny" / f"{recipe}.yaml"), *settings]
    # the folder has no packages of ours
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        command, cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    if process.returncode:
        lines = process.stderr.strip().splitlines() or ["no message"]
        sys.exit(f"{script}.py: {lines[-1]}")


CHECKS = {"masking": masking, "qlora": qlora, "stage": stage}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("check", choices=sorted(CHECKS))
    parser.add_argument("--out", type=Path, required=True, help="the figures as JSON")


def main(options: Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        figures = CHECKS[options.check](Path(folder))
    options.out.write_text(json.dumps(figures) + "\n")
