"""A model whose linear layers round where they are switched on, in ModelOpt's simulation.

What is switched is a unit: a component of a layer (`attention.3`, `mlp.0`), or the KV cache. Units
are as large as what servers fuse, so that the parts of a fused matrix share their precision.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from modelopt.torch import quantization as mtq  # pyright: ignore[reportMissingImports]
from modelopt.torch.export.unified_export_hf import requantize_resmooth_fused_llm_layers  # pyright: ignore[reportMissingImports]
from modelopt.torch.quantization.nn import TensorQuantizer  # pyright: ignore[reportMissingImports]
from transformers import PreTrainedModel

from posttrain.config.load import nearest
from posttrain.config.quantize import NANO
from posttrain.errors import ConfigError
from posttrain.models.simulated import (
    E4M3_MAX,
    FP8,
    fp8_config,
    largest_value,
    quiet,
    round_to_nvfp4,
)
from posttrain.quantization.rows import Sequence as TokenSequence

# an element, with its part of the scale of a block
BITS = {"fp8": 8.0, "nvfp4": 4.5}
KV_CACHE = "kv_cache"
NANO_UNITS = tuple(f"{component}.*" for component in NANO)
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj")
_LAYER = re.compile(r"layers\.(\d+)\.")
_WEIGHT = re.compile(r"(.+)\.weight_quantizer")
_EXPERT_WEIGHT = re.compile(r"(.+)\.(\w+)_weight_quantizers\.(\d+)")


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A matrix that is quantised.

    Attributes:
        name: Name of its tensor in the model, where an expert of a fused layer has one of its own.
        quantiser: Name of the quantiser that rounds it.
        parameter: Name of the parameter that holds it.
        expert: Number of the expert in a fused parameter; None for a plain parameter.
    """

    name: str
    quantiser: str
    parameter: str
    expert: int | None


class Simulated:
    """A calibrated model, and its quantisers by unit.

    Weights are rounded once and kept beside the originals: rounding them in every pass takes twice
    the time of the pass itself.

    Attributes:
        model: Model in float32, on whose products ModelOpt's rounding is exact.
        units: Names of the quantisers of every unit, in the order of layers.
        sizes: Number of weights of every unit.
        formats: Format of every unit where it is switched on, `fp8` or `nvfp4`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        rows: Sequence[TokenSequence],
        *,
        kv_cache: bool,
        nvfp4: Collection[str] = (),
    ) -> None:
        """Calibrate a model.

        Args:
            nvfp4: patterns of the units that round to NVFP4; all others round to FP8.
        """
        self.model = calibrate(model, rows, kv_cache=kv_cache, nvfp4=nvfp4)
        self.quantisers: dict[str, Any] = {
            name: module
            for name, module in self.model.named_modules()
            if isinstance(module, TensorQuantizer) and module.is_enabled
        }
        self.units: dict[str, list[str]] = {}
        self._weights: dict[str, list[QuantisedWeight]] = {}
        for name in self.quantisers:
            unit = unit_of(name, self.model)
            self.units.setdefault(unit, []).append(name)
            weights = self._weights.setdefault(unit, [])
            if (weight := weight_of(name)) is not None:
                weights.append(weight)
        self.sizes = {
            unit: sum(self._values(weight).numel() for weight in weights)
            for unit, weights in self._weights.items()
        }
        parameters = {w.parameter for weights in self._weights.values() for w in weights}
        self._originals = {name: self.model.get_parameter(name).data for name in parameters}
        self.formats = {unit: format_of(unit, nvfp4) for unit in self.units}
        self._settle_scales()
        self._rounded = self._round_weights()

    def _values(self, weight: QuantisedWeight) -> torch.Tensor:
        parameter = self.model.get_parameter(weight.parameter)
        return parameter if weight.expert is None else parameter[weight.expert]

    @torch.no_grad()
    def _settle_scales(self) -> None:
        """Make every scale one that can be written; matrices that share one go on sharing it."""
        sharing: dict[tuple[str, float], list[str]] = {}
        values: dict[str, torch.Tensor] = {}
        for unit, names in self.units.items():
            values |= {w.quantiser: self._values(w) for w in self._weights[unit]}
            for name in names:
                amax = float(self.quantisers[name].amax)
                kind = f"{unit} {'weight' if name in values else name}"
                sharing.setdefault((kind, amax), []).append(name)
        for names in sharing.values():
            quantiser = self.quantisers[names[0]]
            largest = largest_value(quantiser)
            if largest == E4M3_MAX:
                amax = settled(quantiser.amax, [values[n] for n in names if n in values])
            else:
                # file and simulation divide alike; whoever loads the file knows the scale alone
                amax = quantiser.amax / largest * largest
            for name in names:
                self.quantisers[name].amax = amax

    @torch.no_grad()
    def _round_weights(self) -> dict[str, torch.Tensor]:
        """Rounded copies of the parameters of all units."""
        rounded = {name: values.clone() for name, values in self._originals.items()}
        for weights in self._weights.values():
            for weight in weights:
                copy = rounded[weight.parameter]
                target = copy if weight.expert is None else copy[weight.expert]
                target.copy_(self.quantisers[weight.quantiser](self._values(weight)))
        return rounded

    def switch_on(self, units: Collection[str]) -> None:
        """Round in these units, and nowhere else."""
        for unit, names in self.units.items():
            values = self._rounded if unit in units else self._originals
            for weight in self._weights[unit]:
                self.model.get_parameter(weight.parameter).data = values[weight.parameter]
            weight_quantisers = {weight.quantiser for weight in self._weights[unit]}
            for name in names:
                if unit in units and name not in weight_quantisers:
                    self.quantisers[name].enable()
                else:
                    self.quantisers[name].disable()

    def prepare_export(self, units: Collection[str]) -> None:
        """Give all weights back as they were, and leave it to the quantisers of units to round."""
        self.switch_on(())
        for unit, names in self.units.items():
            for name in names:
                if unit in units:
                    self.quantisers[name].enable()
                elif unit == KV_CACHE:
                    # ModelOpt writes the scale of a key that has one, or stops
                    self.quantisers[name].reset_amax()

    def components(self) -> dict[str, list[str]]:
        """Units by component, such as those of `attention` in all layers."""
        components: dict[str, list[str]] = {}
        for unit in self.units:
            components.setdefault(unit.partition(".")[0], []).append(unit)
        return components

    def layers(self) -> dict[str, list[str]]:
        """Units by number of the layer; the KV cache is in none."""
        layers: dict[str, list[str]] = {}
        for unit in self.units:
            _, point, layer = unit.partition(".")
            if point:
                layers.setdefault(layer, []).append(unit)
        return layers

    def bits(self, units: Collection[str], *, full: int) -> float:
        """Bits a weight, over all weights of the model, where these units are quantised.

        Args:
            full: bits of a weight in the checkpoint's own precision.
        """
        total = sum(parameter.numel() for parameter in self.model.parameters())
        saved = sum(self.sizes[unit] * (full - BITS[self.formats[unit]]) for unit in units)
        return full - saved / total

    def matching(self, patterns: Sequence[str], *, strict: bool = True) -> list[str]:
        """Units that a pattern names.

        Args:
            strict: refuse a pattern that names none.

        Raises:
            ConfigError: there is no such unit; it names the nearest.
        """
        for pattern in patterns:
            if strict and not any(fnmatchcase(unit, pattern) for unit in self.units):
                hint = nearest(pattern, [*self.units])
                raise ConfigError(f"keep: there is no unit {pattern!r}{hint}")
        return [u for u in self.units if any(fnmatchcase(u, pattern) for pattern in patterns)]

    @torch.inference_mode()
    def simulated_weights(self, units: Collection[str]) -> dict[str, torch.Tensor]:
        """Rounded weights of these units by name, each expert of a fused layer on its own."""
        weights: dict[str, torch.Tensor] = {}
        for unit in units:
            for weight in self._weights[unit]:
                rounded = self._rounded[weight.parameter]
                weights[weight.name] = rounded if weight.expert is None else rounded[weight.expert]
        return weights


def refuse_unknown_layout(model: PreTrainedModel) -> None:
    """Refuse a model whose files could not be compared with its simulation, before it is measured.

    Raises:
        ConfigError: naming what is in the way.
    """
    name = type(model).__name__
    lists: list[str] = []
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList):
            lists.append(path)
    if not any(path.rpartition(".")[2] == "layers" for path in lists):
        raise ConfigError(
            f"{name} has no list `layers`, by which units are named (it has "
            f"{', '.join(lists[:3])}): this model cannot be quantised here"
        )
    fused = [path for path, _ in model.named_parameters() if path.endswith("experts.gate_up_proj")]
    if fused:
        raise ConfigError(
            f"{name} holds gate and up of its experts in one matrix ({fused[0]}), which ModelOpt "
            "writes as two: this model cannot be quantised here"
        )


def calibrate(
    model: PreTrainedModel,
    rows: Sequence[TokenSequence],
    *,
    kv_cache: bool,
    nvfp4: Collection[str],
) -> PreTrainedModel:
    """Insert quantisers and set their scales by the largest value that each meets in the rows."""

    def read_rows(calibrated: Any) -> None:
        for row in rows:  # one at a time: the values of a pad would count, too
            calibrated(row.ids_T[None].to(calibrated.device), use_cache=False, logits_to_keep=1)

    with torch.inference_mode(), quiet():
        mtq.quantize(model, fp8_config(kv_cache=kv_cache), read_rows)
        for name, module in model.named_modules():
            if not isinstance(module, TensorQuantizer) or not module.is_enabled:
                continue
            if format_of(unit_of(name, model), nvfp4) == "nvfp4":
                round_to_nvfp4(module)
        # servers fuse matrices that read the same input into one with one scale; ModelOpt does so
        # when it exports. Before it, so that what is measured is what is written
        requantize_resmooth_fused_llm_layers(model)
    return model


def weight_of(quantiser: str) -> QuantisedWeight | None:
    """The matrix that a quantiser rounds; None for one of activations."""
    if plain := _WEIGHT.fullmatch(quantiser):
        name = f"{plain[1]}.weight"
        return QuantisedWeight(name, quantiser, parameter=name, expert=None)
    if expert := _EXPERT_WEIGHT.fullmatch(quantiser):
        module, matrix, number = expert.groups()
        name = f"{module}.{number}.{matrix}.weight"
        parameter = f"{module}.{matrix}"
        return QuantisedWeight(name, quantiser, parameter=parameter, expert=int(number))
    return None


def settled(amax: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """The next larger maximum for which the file and the simulation agree to the bit.

    The file divides weights by amax / 448 and the simulation multiplies them by 448 / amax, so a
    weight half way between two values of FP8 may go either way; of weights in bfloat16 many are.

    Args:
        weights: weights that share this maximum; none for activations.
    """
    amax = amax.float()
    while not _agree(amax, weights):
        amax = amax * (1 + 2**-16)
    return amax


def _agree(amax: torch.Tensor, weights: Sequence[torch.Tensor]) -> bool:
    scale = amax / E4M3_MAX
    inverse = E4M3_MAX / amax
    # whoever loads the file knows the scale alone
    if 1 / inverse != scale or scale * E4M3_MAX != amax:
        return False
    return all(
        torch.equal(
            (weight / scale).to(FP8).float(),
            (weight * inverse).to(FP8).float(),
        )
        for weight in weights
    )


def format_of(unit: str, nvfp4: Collection[str]) -> str:
    """Format of a unit, where these patterns are in NVFP4. The KV cache is in FP8."""
    if unit != KV_CACHE and any(fnmatchcase(unit, pattern) for pattern in nvfp4):
        return "nvfp4"
    return "fp8"


def unit_of(quantiser: str, model: PreTrainedModel) -> str:
    """The unit of a quantiser, by its name in the model."""
    path = quantiser.split(".")
    if path[-1] in ("k_bmm_quantizer", "v_bmm_quantizer"):
        return KV_CACHE
    layer = _LAYER.search(f"{quantiser}.")
    if layer is None:
        raise ConfigError(
            f"{type(model).__name__} has a matrix outside of its layers ({quantiser}), which is in "
            "no unit: this model cannot be quantised here"
        )
    number = int(layer[1])
    if any("shared_expert" in part for part in path):
        component = "shared_experts"
    elif "experts" in path:
        component = "experts"
    elif path[-2] in _ATTENTION:
        component = "attention"
    elif hasattr(model.get_submodule(".".join(path[:-2])), "conv1d"):
        feeds = number + 1 in attention_layers(model)
        component = "mamba_before_attention" if feeds else "mamba"
    elif any("attn" in part or "attention" in part for part in path):
        # matrices of other names, such as those of multi-head latent attention
        component = "attention"
    else:
        component = "mlp"
    return f"{component}.{number}"


def attention_layers(model: PreTrainedModel) -> set[int]:
    """Numbers of the layers with attention."""
    names = (name for name, _ in model.named_modules() if name.rpartition(".")[2] in _ATTENTION)
    return {int(layer[1]) for name in names if (layer := _LAYER.search(name))}
