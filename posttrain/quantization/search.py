"""A format for every unit, chosen by ModelOpt's AutoQuantize under a mean of bits an element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from modelopt.torch import quantization as mtq  # pyright: ignore[reportMissingImports]
from modelopt.torch.quantization.algorithms import AutoQuantizeGradientSearcher  # pyright: ignore[reportMissingImports]
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from posttrain.errors import ConfigError
from posttrain.models.simulated import fp8_config, nvfp4_config, quiet
from posttrain.quantization.rows import Sequence as TokenSequence
from posttrain.quantization.simulate import BITS, unit_of
from posttrain.tokens.encode import IGNORED

# ModelOpt's default: scoring takes a backward pass a row, and more rows change little
SCORED_ROWS = 128
SEARCHED_FORMATS = 2  # NVFP4 and FP8, each of which all rows calibrate
KEPT_BITS = 16


def choose_formats(
    model: PreTrainedModel, rows: Sequence[TokenSequence], *, bits: float
) -> dict[str, str | None]:
    """Format of every unit, `fp8`, `nvfp4` or None for its own precision, in the order of layers.

    The loss on trained tokens that each format would cost is estimated from gradients.

    Args:
        model: Model to search on; it is of no use afterwards.
        bits: Largest mean of bits an element of all units; one that is kept counts as 16.

    Raises:
        ConfigError: ModelOpt finds no choice within `bits`.
    """
    excluded = _excluded(model)
    # the matrices of a unit share a format, since servers fuse them; ModelOpt takes such rules by
    # this attribute of the class alone (see `mtq.auto_quantize`)
    AutoQuantizeGradientSearcher.quant_grouping_rules = [
        lambda model, name: None if name in excluded else unit_of(f"{name}.weight", model)
    ]
    with quiet():
        _, state = mtq.auto_quantize(
            model,
            {"effective_bits": KEPT_BITS},
            [nvfp4_config(), fp8_config(kv_cache=False)],
            data_loader=rows,
            forward_step=_logits,
            loss_func=_loss,
            disabled_layers=excluded,
            num_calib_steps=len(rows),
            num_score_steps=min(len(rows), SCORED_ROWS),
        )
        sizes = _count_elements(model, state)
        rules = mtq.get_auto_quantize_config(state, {"effective_bits": bits})["quant_cfg"]
    formats: dict[str, str | None] = dict.fromkeys(sizes)
    for rule in rules:
        if "cfg" in rule:
            is_fp8 = tuple(rule["cfg"]["num_bits"]) == (4, 3)
            formats[unit_of(rule["quantizer_name"], model)] = "fp8" if is_fp8 else "nvfp4"
    if mean_bits(formats, sizes) > bits:
        raise ConfigError(f"bits {bits:g}: ModelOpt's solver found no choice within it")
    return formats


def mean_bits(formats: Mapping[str, str | None], sizes: Mapping[str, int]) -> float:
    """Bits an element of all units; one that is kept counts as 16."""
    total = 0.0
    for unit, name in formats.items():
        total += sizes[unit] * (KEPT_BITS if name is None else BITS[name])
    return total / sum(sizes[unit] for unit in formats)


def _excluded(model: PreTrainedModel) -> list[str]:
    """Modules that ModelOpt's FP8 config leaves out, such as the head; the search would not."""
    patterns = [
        rule["quantizer_name"]
        for rule in fp8_config(kv_cache=False)["quant_cfg"]
        if rule.get("enable") is False and rule["quantizer_name"] != "*"
    ]
    return [
        name
        for name, _ in model.named_modules()
        if any(fnmatchcase(f"{name}.weight_quantizer", pattern) for pattern in patterns)
    ]


def _logits(model: PreTrainedModel, row: TokenSequence) -> torch.Tensor:
    return model(row.ids_T[None].to(model.device), use_cache=False).logits[0]


def _loss(logits_T_V: torch.Tensor, row: TokenSequence) -> torch.Tensor:
    targets_T = row.labels_T[1:].to(logits_T_V.device)
    return cross_entropy(logits_T_V[:-1].float(), targets_T, ignore_index=IGNORED)


def _count_elements(model: PreTrainedModel, state: dict[str, Any]) -> dict[str, int]:
    """Elements of every unit, which also become the costs of its formats.

    ModelOpt 0.47 counts half of an expert without a gate (NemotronH), and the head.
    """
    sizes: dict[str, int] = {}
    for name, candidate in [*state["candidate_stats"].items()]:
        if len(candidate["formats"]) == 1:
            del state["candidate_stats"][name]
            continue
        modules = [model.get_submodule(module) for module in candidate["module_names"]]
        size = sum(p.numel() for module in modules for p in module.parameters() if p.ndim > 1)
        sizes[unit_of(f"{candidate['module_names'][0]}.weight", model)] = size
        candidate["costs"] = [size * recipe.compression for recipe in candidate["formats"]]
        candidate["uncompressed_cost"] = size
    state["cost_denominator"] = sum(sizes.values())
    return sizes
