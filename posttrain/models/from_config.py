"""Models with random weights, from a mapping that a recipe can hold.

    build_model({**TINY_ATTENTION, "vocab_size": 1024})   # 0.6 M parameters, attention only
    build_model({**TINY_HYBRID, "vocab_size": 1024})      # 0.6 M, NemotronH: Mamba, attention, MoE

`model_type` names a class of transformers; every other key is a field of its config. transformers
keeps a misspelt field as an attribute that nothing reads: here it is an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from posttrain.config.load import nearest
from posttrain.errors import ConfigError

# what did best on the tiny world among a dozen short trials (docs/tiny-world.md): three layers, a
# wide initialisation (the usual 0.02 is made for wide models) and rotations for short contexts
TINY_ATTENTION: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "initializer_range": 0.08,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}

# one of each kind of layer NemotronH has, the attention in the middle as in Nano
TINY_HYBRID: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hidden_size": 96,
    "layers_block_type": [
        "linear_attention",
        "moe",
        "full_attention",
        "moe",
        "linear_attention",
        "mlp",
    ],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 192,
    "ssm_state_size": 16,
    "mamba_num_heads": 6,
    "mamba_head_dim": 32,
    "n_groups": 2,
    "chunk_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "moe_shared_expert_intermediate_size": 96,
    "max_position_embeddings": 2048,
}

# accepted by every config although no signature names them
_COMMON = ("num_hidden_layers", "hybrid_override_pattern", "rope_theta", "rope_scaling")


def build_model(config: Mapping[str, Any]) -> PreTrainedModel:
    """A model with random weights, in fp32. Seed torch beforehand: the weights follow its state.

    Raises:
        ConfigError: no or unknown `model_type`, an unknown field, or values that do not fit.
    """
    fields = dict(config)
    model_type = fields.pop("model_type", None)
    if model_type not in CONFIG_MAPPING:
        raise ConfigError(
            f"model.config.model_type: {model_type!r} is no model of transformers"
            f"{_near(str(model_type))}"
        )
    config_class = CONFIG_MAPPING[model_type]
    known = [*_field_names(config_class), *_COMMON]
    for name in fields:
        if name not in known:
            raise ConfigError(
                f"model.config.{name}: {model_type} has no such field{_near(name, known)}"
            )
    fields.setdefault("bos_token_id", None)
    try:
        built = config_class(**fields)
        _check_heads(built)
        return AutoModelForCausalLM.from_config(built)
    except (StrictDataclassError, TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"model.config: {model_type} cannot be built: {error}") from error


def _check_heads(config: PreTrainedConfig) -> None:
    """transformers builds such a model and fails in its first forward pass."""
    heads = getattr(config, "num_attention_heads", None)
    shared = getattr(config, "num_key_value_heads", None)
    if isinstance(heads, int) and isinstance(shared, int) and shared and heads % shared:
        raise ValueError(
            f"num_attention_heads {heads} is no multiple of num_key_value_heads {shared}"
        )


def _near(name: str, valid: list[str] | None = None) -> str:
    found = nearest(name, valid if valid is not None else list(CONFIG_MAPPING.keys()))
    return found if "did you mean" in found else ""


def _field_names(config_class: type[PreTrainedConfig]) -> list[str]:
    named = inspect.signature(config_class.__init__).parameters
    inherited = inspect.signature(PreTrainedConfig.__init__).parameters
    return [name for name in {**inherited, **named} if name not in ("self", "kwargs")]
