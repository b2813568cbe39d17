"""Models, options and figures that the speed comparisons share.

model = random_model("0.5b")     # random weights in the shape of an open model
default_shape()                  # "0.5b" on a GPU, else "tiny"
"""

from __future__ import annotations

import json
import resource
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, set_seed

from benchmarks.options import add_figures_file
from posttrain.models.load import build_model, choose_attention
from posttrain.versions import package_versions

_GROUPED = {"model_type": "qwen3", "vocab_size": 151936, "num_hidden_layers": 28, "head_dim": 128}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "model_type": "llama", "vocab_size": 1024, "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
        "tie_word_embeddings": True,
    },
    "0.5b": {
        **_GROUPED, "hidden_size": 1024, "intermediate_size": 2560, "num_attention_heads": 12,
        "num_key_value_heads": 4, "tie_word_embeddings": True,
    },
    "1.5b": {
        **_GROUPED, "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16,
        "num_key_value_heads": 8, "tie_word_embeddings": True,
    },
}  # fmt: skip
PAD = 0
END = 2


def default_shape() -> str:
    """Shape that this machine can run in minutes."""
    return "0.5b" if torch.cuda.is_available() else "tiny"


def random_model(shape: str, *, positions: int = 8192) -> PreTrainedModel:
    """Model with the same random weights every time, in float32, on the GPU where there is one.

    Args:
        shape: key of `SHAPES`.
        positions: tokens that its rotary embedding must reach.
    """
    set_seed(0)
    ids = {"pad_token_id": PAD, "eos_token_id": END, "max_position_embeddings": positions}
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = build_model({**SHAPES[shape], **ids})
    model.set_attn_implementation(choose_attention("auto"))
    return model


def add_comparison_arguments(parser: ArgumentParser) -> None:
    """Add `--shape` and `--out`."""
    parser.add_argument("--shape", choices=sorted(SHAPES), default=default_shape())
    add_figures_file(parser)


def write_figures(out: Path | None, results: Sequence[Any], **about: Any) -> None:
    """Write the results of all arms as JSON with the versions of packages, if `out` is given."""
    if out is not None:
        arms = [asdict(result) for result in results]
        figures = {**about, "versions": package_versions(), "arms": arms}
        out.write_text(json.dumps(figures, indent=1) + "\n")


def peak_gib(device: torch.device) -> float:
    """Peak of the GPU's memory; on a CPU that of the process so far, whatever arm needed it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / (1 << 30)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
