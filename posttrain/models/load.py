"""Loading of causal language models, from a checkpoint or from a config, with their stop tokens."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    GenerationConfig,
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
from posttrain.models.simulated import (
    check_can_simulate,
    plain_config,
    read_tensors,
    round_activations,
    stored_weights,
)
from posttrain.tokens.tokenizer import SpecialTokens

CPU_VARLEN = "posttrain_cpu_varlen"
_LAYER = re.compile(r"(.*?\.\d+)\..*")  # the path of a module up to the number of its layer
VARLEN_ATTENTION = ("flash_attention_2", "flash_attention_3", "flash_attention_4", CPU_VARLEN)


def load_model(
    spec: ModelConfig,
    *,
    special: SpecialTokens,
    vocabulary: int,
    seed: int,
    quantization: Any = None,
) -> PreTrainedModel:
    """Load or initialise a model and set its special tokens; refuse too small an embedding.

    Args:
        special: end and pad of the tokenizer of the data.
        vocabulary: number of rows that the embedding must have (largest token id + 1).
        seed: seed of a random initialisation.
        quantization: a `BitsAndBytesConfig` for QLoRA.

    Raises:
        ConfigError: the path cannot be loaded, or the embedding has too few rows.
    """
    set_seed(seed)
    # a progress bar is worth its lines for a download alone
    if spec.path is None or Path(spec.path).is_dir():
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
    """Shape of a parameter, whole even where DeepSpeed has split it over processes."""
    # DeepSpeed keeps the whole shape in `ds_shape`
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def parameter_count(parameter: torch.Tensor) -> int:
    """Number of elements of a parameter, sharded or not."""
    return math.prod(full_shape(parameter))


def embedding_rows(model: PreTrainedModel) -> int:
    """Number of rows of the model's embedding, sharded or not."""
    embedding: Any = model.get_input_embeddings()
    return full_shape(embedding.weight)[0]


@contextlib.contextmanager
def without_zero3_init() -> Iterator[None]:
    """Context in which models are made whole under ZeRO-3.

    Otherwise transformers splits each model over all processes, and a process that makes one alone
    waits forever.
    """
    config_ref = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = config_ref


def choose_attention(name: str) -> str:
    """Resolve `auto`: flash-attention where a GPU and the package are present, else SDPA."""
    if name != "auto":
        return name
    has_flash = importlib.util.find_spec("flash_attn") is not None
    return "flash_attention_2" if torch.cuda.is_available() and has_flash else "sdpa"


def load_pretrained(path: str | Path, *, simulate: bool = False, **options: Any) -> PreTrainedModel:
    """Load a model with transformers. Every reader of weights in this package calls this.

    Args:
        path: a folder or a hub id.
        simulate: load weights quantised by ModelOpt as a model in float32 that rounds as a server
            does, for inference alone.
        options: arguments of transformers' `from_pretrained`.

    Raises:
        ConfigError: an adapter, or quantised weights that are not to be simulated: transformers
            would load the first frozen and the second without their scales.
        OSError, ValueError, ImportError, SafetensorError: raised by transformers.
    """
    refuse_adapter(str(path))
    if is_quantised(path):
        if not simulate:
            raise cannot_use_quantised(path)
        return _load_simulated(Path(path), options)
    model = AutoModelForCausalLM.from_pretrained(
        path, local_files_only=Path(path).is_dir(), **options
    )
    # the files of a hub id are known only after the download
    if getattr(model, "_hf_peft_config_loaded", False):
        raise is_adapter(str(path))
    if names_modelopt(getattr(model.config, "quantization_config", None)):
        raise cannot_use_quantised(path)
    return model


def _load_simulated(folder: Path, options: dict[str, Any]) -> PreTrainedModel:
    """Load what ModelOpt has quantised as a model in float32 that rounds as a server does."""
    check_can_simulate(folder)
    tensors = read_tensors(folder)
    config = plain_config(folder)
    weights: dict[str, Any] = {
        "config": config,
        "state_dict": stored_weights(tensors),
        "dtype": torch.float32,
    }
    # an AutoModel takes no weights that are at hand, the class of the model does
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model: PreTrainedModel = model_class.from_pretrained(None, **(options | weights))
    round_activations(model, tensors)
    model.generation_config = GenerationConfig.from_pretrained(folder)
    print(f"{folder}: quantised by ModelOpt, simulated in float32", file=sys.stderr)
    return model


def load_checkpoint(spec: ModelConfig, attention: str, quantization: Any = None) -> PreTrainedModel:
    """Load the model of a recipe's path. Raises ConfigError where it cannot be loaded."""
    assert spec.path is not None
    is_local = Path(spec.path).is_dir()
    if not is_local and (spec.path.startswith((".", "/", "~")) or spec.path.count("/") > 1):
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
        reason = "cannot be loaded" if is_local else "no such folder, and the hub does not give it"
        raise ConfigError(
            f"model.path {spec.path}: {reason}: {' '.join(str(error).split())}"
        ) from error


def _from_config(
    spec: ModelConfig, special: SpecialTokens, vocabulary: int, attention: str
) -> PreTrainedModel:
    """Model with random weights from the recipe's `model.config`."""
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
    """Set end of turn and pad in config, generation config and embedding; other stops stay."""
    text_config = model.config.get_text_config()
    text_config.eos_token_id = special.end_id
    text_config.pad_token_id = special.pad_id
    generation = model.generation_config
    assert generation is not None
    checkpoint_stops = generation.eos_token_id
    if checkpoint_stops is None:
        checkpoint_stops = []
    elif not isinstance(checkpoint_stops, list):
        checkpoint_stops = [checkpoint_stops]
    stop_ids = [special.end_id]
    for stop_id in special.stop_ids:
        if stop_id != special.end_id:
            stop_ids.append(stop_id)
    # the checkpoint's other stop ids stay, unless one of them is the pad
    stop_ids += [i for i in checkpoint_stops if i not in stop_ids and i != special.pad_id]
    generation.eos_token_id = stop_ids if len(stop_ids) > 1 else stop_ids[0]
    generation.pad_token_id = special.pad_id
    embedding: Any = model.get_input_embeddings()
    # torch gives the row of `padding_idx` no gradient: it must not be the end of turn, which is the
    # pad of many checkpoints
    if getattr(embedding, "padding_idx", None) is not None:
        embedding.padding_idx = special.pad_id


def find_routers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Top-k routers of a model by name: modules with a weight, `top_k` and `num_experts`."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "top_k")
        and hasattr(module, "num_experts")
        and getattr(getattr(module, "weight", None), "ndim", 0) > 0
    }


def uses_sigmoid(router: torch.nn.Module) -> bool:
    """True for routers that score with a sigmoid (DeepSeek-V3, NemotronH, GLM-4)."""
    # the score-correction bias comes with sigmoid scores
    return hasattr(router, "e_score_correction_bias")


def recurrent_layers(model: torch.nn.Module) -> int:
    """Number of layers that carry a state from token to token: what no attention mask separates.

    These are Mamba layers, linear attention and short convolutions, by their parts; and where a
    model has none of these parts, the layers that its config or its class says are recurrent.
    """
    names = [name for name, _ in _stateful_modules(model)]
    config: Any = getattr(model, "config", None)
    if names or config is None:
        # a layer may have several such modules: they share the path up to its number
        return len({_LAYER.sub(r"\1", name) for name in names})
    text_config = config.get_text_config()
    layer_types: list[str] = list(getattr(text_config, "layer_types", None) or [])
    linear = layer_types.count("linear_attention")
    # compressed keys, RWKV, xLSTM
    if not linear and getattr(model, "_is_stateful", False):
        return text_config.num_hidden_layers
    return linear


def _stateful_modules(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """Modules that carry a state, by name, without those inside another."""
    modules: list[tuple[str, torch.nn.Module]] = []
    for name, module in model.named_modules():
        if _carries_state(module) and not (modules and name.startswith(f"{modules[-1][0]}.")):
            modules.append((name, module))
    return modules


def _carries_state(module: torch.nn.Module) -> bool:
    """True for a layer of a state-space model or with a convolution over the tokens before."""
    if hasattr(module, "A_log"):
        return True
    return any(
        isinstance(child, torch.nn.Conv1d) and child.padding == (child.kernel_size[0] - 1,)
        for child in module.children()
    )


def has_only_scans(model: torch.nn.Module) -> bool:
    """True if all recurrent layers are scans, as in Mamba, whose kernels take packed sequences."""
    modules = _stateful_modules(model)
    if not modules:
        return not recurrent_layers(model)
    return all(hasattr(module, "A_log") for _, module in modules)


def has_recurrent_kernels() -> bool:
    """Check for usable kernels that keep packed sequences apart in a Mamba layer."""
    names = ("mamba_ssm", "causal_conv1d")
    return torch.cuda.is_available() and all(importlib.util.find_spec(n) for n in names)


# -- models with random weights, from a mapping that a recipe can hold -----------------------------

# fields that every config accepts although no signature names them
_UNNAMED_FIELDS = ("num_hidden_layers", "hybrid_override_pattern", "rope_theta", "rope_scaling")


def build_model(config: Mapping[str, Any]) -> PreTrainedModel:
    """Model with random weights in fp32, drawn from torch's global generator: seed it beforehand.

    Args:
        config: `model_type` names a class of transformers; every other key is a field of its
            config. A misspelt field is an error here; transformers would keep it as an attribute
            that nothing reads.

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
    valid_names = [*_field_names(config_class), *_UNNAMED_FIELDS]
    for name in fields:
        if name not in valid_names:
            hint = nearest(name, valid_names, or_list=False)
            raise ConfigError(f"model.config.{name}: {model_type} has no such field{hint}")
    fields.setdefault("bos_token_id", None)
    try:
        model_config = config_class(**fields)
        _check_heads(model_config)
        return AutoModelForCausalLM.from_config(model_config)
    except (StrictDataclassError, TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"model.config: {model_type} cannot be built: {error}") from error


def _check_heads(config: PreTrainedConfig) -> None:
    """Raise ValueError where query heads cannot be shared out over the key-value heads.

    transformers builds such a model, which fails in its first forward pass.
    """
    heads = getattr(config, "num_attention_heads", None)
    kv_heads = getattr(config, "num_key_value_heads", None)
    if isinstance(heads, int) and isinstance(kv_heads, int) and kv_heads and heads % kv_heads:
        raise ValueError(
            f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        )


def _field_names(config_class: type[PreTrainedConfig]) -> list[str]:
    """Names of the fields of a config, those that all configs share first."""
    own_parameters = inspect.signature(config_class.__init__).parameters
    shared_parameters = inspect.signature(PreTrainedConfig.__init__).parameters
    parameters = {**shared_parameters, **own_parameters}
    return [name for name in parameters if name not in ("self", "kwargs")]
