"""The models of the speed comparisons: random weights in the shapes of open models.

model = random_model("0.5b")     # on the GPU where there is one
default_shape()                  # "0.5b" on a GPU, else "tiny"
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, set_seed

from posttrain.models.load import build_model, choose_attention

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
PAD, END = 0, 2


def default_shape() -> str:
    """What this machine can run in minutes."""
    return "0.5b" if torch.cuda.is_available() else "tiny"


def random_model(shape: str, *, positions: int = 8192) -> PreTrainedModel:
    """A model with the same random weights every time, in float32, on the GPU where there is one.

    Args:
        shape: of `SHAPES`.
        positions: that its rotary embedding must reach.
    """
    set_seed(0)
    ids = {"pad_token_id": PAD, "eos_token_id": END, "max_position_embeddings": positions}
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = build_model({**SHAPES[shape], **ids})
    model.set_attn_implementation(choose_attention("auto"))
    return model
