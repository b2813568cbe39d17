"""A causal language model, from a checkpoint or from a config, ready to train and to stop."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    set_seed,
)
from transformers.integrations import deepspeed
from transformers.utils.logging import disable_progress_bar

from posttrain.config.load import nearest
from posttrain.config.paths import (
    cannot_use_quantised,
    is_adapter,
    is_quantised,
    names_modelopt,
    refuse_adapter,
)
from posttrain.config.sft import ModelConfig
from posttrain.errors import ConfigError
from posttrain.tokens.tokenizer import SpecialTokens

CPU_VARLEN = "posttrain_cpu_varlen"
VARLEN_ATTENTION = ("flash_attention_2", "flash_attention_3", "flash_attention_4", CPU_VARLEN)


def load_model(
    spec: ModelConfig,
    *,
    special: SpecialTokens,
    vocabulary: int,
    seed: int,
    quantization: Any = None,
) -> PreTrainedModel:
    """Load or initialise the model and set its special tokens.

    Args:
        special: end and pad of the tokenizer that the data was made with.
        vocabulary: rows the embedding must have at least (largest token id + 1).
        seed: for a random initialisation.
        quantization: a `BitsAndBytesConfig` for QLoRA.

    Raises:
        ConfigError: the path cannot be loaded, or the embedding has too few rows.
    """
    set_seed(seed)
    if spec.path is None or Path(spec.path).is_dir():  # what is fetched shows how far it is
        disable_progress_bar()
    attention = choose_attention(spec.attention)
    if spec.path is not None:
        model = load_checkpoint(spec, attention, quantization)
    else:
        model = _from_config(spec, special, vocabulary, attention)
    rows = embedding_rows(model)
    if rows < vocabulary:
        raise ConfigError(
            f"the data's tokenizer uses ids up to {vocabulary - 1}, the model's embedding has "
            f"{rows} rows: data and model do not belong together"
        )
    set_special_tokens(model, special)
    return model


def full_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    """The shape of a parameter; DeepSpeed keeps it in `ds_shape` where processes split it."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def parameter_count(parameter: torch.Tensor) -> int:
    """Numbers in a parameter, sharded or not."""
    return math.prod(full_shape(parameter))


def embedding_rows(model: PreTrainedModel) -> int:
    """Token ids that the model has an embedding for, sharded or not."""
    embedding: Any = model.get_input_embeddings()
    return full_shape(embedding.weight)[0]


@contextlib.contextmanager
def without_zero3_init() -> Iterator[None]:
    """Make models whole in the block. Under ZeRO-3 transformers splits each one over all processes,
    and a process that makes one alone waits forever."""
    kept = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = kept


def choose_attention(name: str) -> str:
    """`auto` → flash-attention where a GPU and the package are present, else PyTorch's SDPA."""
    if name != "auto":
        return name
    has_flash = importlib.util.find_spec("flash_attn") is not None
    return "flash_attention_2" if torch.cuda.is_available() and has_flash else "sdpa"


def load_pretrained(path: str | Path, **options: Any) -> PreTrainedModel:
    """A model as transformers loads it; everything of ours that reads weights passes here.

    Args:
        path: a folder or a hub id.
        options: arguments of transformers' `from_pretrained`.

    Raises:
        ConfigError: an adapter, or quantised weights: transformers would load the first frozen and
            the second without their scales.
        OSError, ValueError, ImportError, SafetensorError: as transformers.
    """
    refuse_adapter(str(path))
    if is_quantised(path):
        raise cannot_use_quantised(path)
    model = AutoModelForCausalLM.from_pretrained(
        path, local_files_only=Path(path).is_dir(), **options
    )
    # a hub id shows only now what it holds
    if getattr(model, "_hf_peft_config_loaded", False):
        raise is_adapter(str(path))
    if names_modelopt(getattr(model.config, "quantization_config", None)):
        raise cannot_use_quantised(path)
    return model


def load_checkpoint(spec: ModelConfig, attention: str, quantization: Any = None) -> PreTrainedModel:
    """The model of a recipe's path. Raises ConfigError: it cannot be loaded."""
    assert spec.path is not None
    local = Path(spec.path).is_dir()
    if not local and (spec.path.startswith((".", "/", "~")) or spec.path.count("/") > 1):
        raise ConfigError(
            f"model.path {spec.path}: there is no such folder in {Path.cwd()}; run the stage that "
            "makes it, or correct the path"
        )
    try:
        return load_pretrained(
            spec.path,
            revision=spec.revision,
            dtype=getattr(torch, spec.dtype),
            attn_implementation=attention,
            quantization_config=quantization,
        )
    except ConfigError:
        raise
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        reason = "cannot be loaded" if local else "no such folder, and the hub does not give it"
        raise ConfigError(
            f"model.path {spec.path}: {reason}: {' '.join(str(error).split())}"
        ) from error


def _from_config(
    spec: ModelConfig, special: SpecialTokens, vocabulary: int, attention: str
) -> PreTrainedModel:
    config = dict(spec.config or {})
    config.setdefault("vocab_size", vocabulary)
    config.setdefault("pad_token_id", special.pad_id)
    config.setdefault("eos_token_id", special.end_id)
    model = build_model(config).to(getattr(torch, spec.dtype))
    try:
        model.set_attn_implementation(attention)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"model.attention {attention!r} cannot be used here: {error}") from error
    return model


def set_special_tokens(model: PreTrainedModel, special: SpecialTokens) -> None:
    """Make config and generation config stop at the end of a turn and pad with the pad."""
    text = model.config.get_text_config()
    text.eos_token_id = special.end_id
    text.pad_token_id = special.pad_id
    generation = model.generation_config
    assert generation is not None
    known = generation.eos_token_id
    earlier = known if isinstance(known, list) else [known] if known is not None else []
    stops = [special.end_id, *[i for i in special.stop_ids if i != special.end_id]]
    stops += [i for i in earlier if i not in stops and i != special.pad_id]
    generation.eos_token_id = stops if len(stops) > 1 else stops[0]
    generation.pad_token_id = special.pad_id
    embedding: Any = model.get_input_embeddings()
    # the config's pad as it was loaded: torch gives the row of that token no gradient, which would
    # be the end of turn's where pad and end are one
    if getattr(embedding, "padding_idx", None) is not None:
        embedding.padding_idx = special.pad_id


def find_routers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The top-k routers of a model by name: a 2-D weight, `top_k`, and a count of experts."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "top_k")
        and hasattr(module, "num_experts")
        and getattr(getattr(module, "weight", None), "ndim", 0) > 0
    }


def uses_sigmoid(router: torch.nn.Module) -> bool:
    """Routers with a score-correction bias score with a sigmoid (DeepSeek-V3, NemotronH, GLM-4)."""
    return hasattr(router, "e_score_correction_bias")


def recurrent_layers(model: torch.nn.Module) -> int:
    """Layers that carry a state from token to token (Mamba, linear attention)."""
    return sum(
        1
        for module in model.modules()
        if hasattr(module, "A_log")
        or (
            "Mamba" in type(module).__name__.removesuffix("ForCausalLM")
            and hasattr(module, "conv1d")
        )
    )


def has_recurrent_kernels() -> bool:
    """Check for usable kernels that keep packed sequences apart in a Mamba layer."""
    names = ("mamba_ssm", "causal_conv1d")
    return torch.cuda.is_available() and all(importlib.util.find_spec(n) for n in names)


# -- models with random weights, from a mapping that a recipe can hold -----------------------------

# accepted by every config although no signature names them
_COMMON = ("num_hidden_layers", "hybrid_override_pattern", "rope_theta", "rope_scaling")


def build_model(config: Mapping[str, Any]) -> PreTrainedModel:
    """A model with random weights, in fp32. Seed torch beforehand: the weights follow its state.

    Args:
        config: `model_type` names a class of transformers; every other key is a field of its
            config. transformers keeps a misspelt field as an attribute that nothing reads: here it
            is an error.

    Raises:
        ConfigError: no or unknown `model_type`, an unknown field, or values that do not fit.
    """
    fields = dict(config)
    model_type = fields.pop("model_type", None)
    if model_type not in CONFIG_MAPPING:
        raise ConfigError(
            f"model.config.model_type: {model_type!r} is no model of transformers"
            f"{nearest(str(model_type), list(CONFIG_MAPPING.keys()), or_list=False)}"
        )
    config_class = CONFIG_MAPPING[model_type]
    known = [*_field_names(config_class), *_COMMON]
    for name in fields:
        if name not in known:
            hint = nearest(name, known, or_list=False)
            raise ConfigError(f"model.config.{name}: {model_type} has no such field{hint}")
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


def _field_names(config_class: type[PreTrainedConfig]) -> list[str]:
    named = inspect.signature(config_class.__init__).parameters
    inherited = inspect.signature(PreTrainedConfig.__init__).parameters
    return [name for name in {**inherited, **named} if name not in ("self", "kwargs")]
