"""Fields of a TRL config that are not a recipe's to set, and their refusal.

refuse_owned({"beta": 0.1}, common(owned_by_sft) | {"beta": "set loss: instead"})
→  ValueError: beta is not yours to set: set loss: instead
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# what every trainer has, and no recipe may set under `trainer`
_EVERYWHERE = (
    "output_dir", "seed", "data_seed", "pad_token", "label_names", "remove_unused_columns",
    "label_smoothing_factor", "average_tokens_across_devices", "auto_find_batch_size",
    "model_init_kwargs", "trust_remote_code", "resume_from_checkpoint", "overwrite_output_dir",
    "ignore_data_skip", "save_only_model", "push_to_hub", "hub_model_id", "hub_token",
    "hub_private_repo", "hub_strategy", "deepspeed", "fsdp", "fsdp_config", "parallelism_config",
    "do_train", "do_predict",
)  # fmt: skip


def common(owned: Mapping[str, str]) -> dict[str, str]:
    """Those of one trainer's owned fields that every trainer has: name → what to do instead."""
    return {name: owned[name] for name in _EVERYWHERE}


def refuse_owned(trainer: dict[str, Any], owned: Mapping[str, str]) -> dict[str, Any]:
    """`trainer` as it is.

    Raises:
        ValueError: it sets an owned field; says what to do instead.
    """
    for key in trainer:
        if key in owned:
            raise ValueError(f"{key} is not yours to set: {owned[key]}")
    return trainer
