"""Configs of tiny models: that of the quickstart, and one of each kind of layer NemotronH has, the
attention in the middle as in Nano."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_RECIPE = Path(__file__).parents[2] / "recipes" / "tiny" / "sft.yaml"
TINY_ATTENTION: dict[str, Any] = yaml.safe_load(_RECIPE.read_text("utf-8"))["model"]["config"]
TINY_HYBRID: dict[str, Any] = {
    "model_type": "nemotron_h", "hidden_size": 96, "num_attention_heads": 4,
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "linear_attention", "mlp"],
    "num_key_value_heads": 2, "head_dim": 24, "intermediate_size": 192, "ssm_state_size": 16,
    "mamba_num_heads": 6, "mamba_head_dim": 32, "n_groups": 2, "chunk_size": 32,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
    "moe_shared_expert_intermediate_size": 96, "max_position_embeddings": 2048,
}  # fmt: skip
