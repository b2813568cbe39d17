"""LoRA presets, the check that every target reaches weights, and the merged model.

Mamba's `out_proj` is left out: the fused training kernel reads its weight past any adapter, and
peft refuses it for that reason. Routers are never adapted.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from torch import nn
from transformers import PreTrainedModel

from posttrain.config.sft import AdapterConfig, ModelConfig
from posttrain.errors import ConfigError
from posttrain.models.load import (
    find_routers,
    full_shape,
    load_pretrained,
    parameter_count,
    without_zero3_init,
)

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("up_proj", "down_proj")
# name → (module suffixes, parameter suffixes); `gate_proj` is added where the model has it
PRESETS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "none": ((), ()),
    "attention": (_ATTENTION, ()),
    "attention_mlp": ((*_ATTENTION, *_MLP), ()),
    "nemotron_h": ((*_ATTENTION, *_MLP, "in_proj"), ("experts.up_proj", "experts.down_proj")),
}


@dataclass(frozen=True, slots=True)
class AdapterReach:
    """Number of modules or fused parameters that a target reaches, and their share of the model."""

    target: str
    tensors: int
    share: float


def adapter_targets(
    spec: AdapterConfig, model: nn.Module
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Module and parameter suffixes of a recipe's adapter: its preset's on this model, its own."""
    modules, parameters = PRESETS[spec.preset]
    linear_suffixes = {name.rpartition(".")[2] for name in _linear_modules(model)}
    if "up_proj" in modules and "gate_proj" in linear_suffixes:
        modules = (*modules, "gate_proj")
    return (*modules, *spec.modules), (*parameters, *spec.parameters)


def _linear_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Linear modules of a model by name, quantised ones included."""
    modules: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):  # bitsandbytes' 4-bit layers are subclasses
            modules[name] = module
    return modules


def adapter_reach(spec: AdapterConfig, model: PreTrainedModel) -> tuple[AdapterReach, ...]:
    """Share of the model's parameters that each target of an adapter reaches, also on meta tensors.

    Raises:
        ConfigError: a named target matches nothing, or reaches a router.
    """
    modules, parameters = adapter_targets(spec, model)
    linear = _linear_modules(model)
    weights = dict(model.named_parameters())
    # two families' routers (Phi-MoE, Llama 4) are linear modules
    routers: set[str] = set()
    for router in find_routers(model):
        routers |= {router, f"{router}.weight"}
    sizes_by_name = {name: parameter_count(weight) for name, weight in weights.items()}
    for name, module in linear.items():
        sizes_by_name[name] = sum(map(parameter_count, module.parameters()))
    targets: list[tuple[str, Iterable[str]]] = [(suffix, linear) for suffix in modules]
    targets += [(suffix, weights) for suffix in parameters]
    reached_sizes: list[tuple[str, list[int]]] = []
    for target, candidates in targets:
        names = _names_with_suffix(target, candidates)
        reached_routers = sorted(routers.intersection(names))
        if reached_routers:
            raise ConfigError(
                f"adapter target {target!r} would train the router {reached_routers[0]}"
            )
        reached_sizes.append((target, [sizes_by_name[name] for name in names]))
    missed = [target for target, sizes in reached_sizes if not sizes]
    if missed:
        present = sorted({name.rpartition(".")[2] for name in linear})
        # experts fused into one parameter: [experts, rows, columns]
        fused_names = [name for name, p in weights.items() if len(full_shape(p)) == 3]
        fused = sorted({".".join(name.split(".")[-2:]) for name in fused_names})
        raise ConfigError(
            f"adapter: {', '.join(missed)} reaches nothing in {type(model).__name__}. "
            f"Its linear modules: {', '.join(present)}; its fused parameters: "
            f"{', '.join(fused) or 'none'}"
        )
    total = sum(parameter_count(parameter) for parameter in weights.values())
    return tuple(
        AdapterReach(target, len(sizes), sum(sizes) / total) for target, sizes in reached_sizes
    )


def _names_with_suffix(suffix: str, names: Iterable[str]) -> list[str]:
    """Dotted names whose last parts are `suffix`."""
    return [name for name in names if name == suffix or name.endswith(f".{suffix}")]


def lora_config(spec: AdapterConfig, model: PreTrainedModel) -> LoraConfig:
    """Build peft's config for a recipe's adapter on this model."""
    modules, parameters = adapter_targets(spec, model)
    return LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,  # pyright: ignore[reportArgumentType]  # peft divides it, floats work
        lora_dropout=spec.dropout,
        target_modules=list(modules),
        target_parameters=list(parameters) or None,
        task_type="CAUSAL_LM",
    )


def quantization_config(spec: AdapterConfig | None) -> Any:
    """Build the config of 4-bit NF4 for QLoRA; None for other methods. Not tested: it needs a GPU.

    Raises:
        ConfigError: there is no GPU, or bitsandbytes is not installed.
    """
    if spec is None or spec.method != "qlora":
        return None
    if not torch.cuda.is_available() or importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(
            "adapter.method qlora needs a CUDA GPU and bitsandbytes (pip install bitsandbytes); "
            "set method: lora"
        )
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


def merge_adapter(adapter: Path, spec: ModelConfig) -> PreTrainedModel:
    """Load a base model with a saved adapter folded into its weights, in the recipe's dtype.

    The base is read again from disk, so that a 4-bit run also merges into full weights. Under
    ZeRO-3 one process may do this alone.
    """
    with without_zero3_init():
        merged = adapted_model(adapter, spec).merge_and_unload()
    assert isinstance(merged, PreTrainedModel)
    return merged


def adapted_model(adapter: Path, spec: ModelConfig) -> PeftModel:
    """Load a base model from disk with a saved adapter beside its weights."""
    assert spec.path is not None
    base = load_pretrained(spec.path, revision=spec.revision, dtype=getattr(torch, spec.dtype))
    return PeftModel.from_pretrained(base, str(adapter))
