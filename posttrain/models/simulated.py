"""A checkpoint that ModelOpt quantised, loaded so that it rounds as a server does.

The weights are what the values of the files stand for. Activations, keys and values are rounded by
ModelOpt's quantisers with the scales of the files. Products are computed in float32, where a server
multiplies in FP8 or FP4 and adds up in float32.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, PreTrainedModel

from posttrain.errors import ConfigError

QUANT_CONFIG = "hf_quant_config.json"
E4M3_MAX = 448.0
FP8 = torch.float8_e4m3fn
PACKED = torch.uint8  # two values of NVFP4 a byte
BLOCK = 16  # values of NVFP4 that share a scale
E2M1_MAX = 6.0
SCALES = ("weight_scale", "weight_scale_2", "input_scale", "k_scale", "v_scale")
# ModelOpt leaves convolutions out by their names in models that it knows, and rounds what a layer
# norm reads
_LEFT_OUT = [
    {"quantizer_name": "*", "parent_class": name, "enable": False}
    for name in ("nn.Conv1d", "nn.LayerNorm")
]
_ALGORITHMS = ("FP8", "NVFP4")
_NVFP4_BACKEND = "posttrain_nvfp4"
_FUSED_INPUT = re.compile(r"(.+\.experts)\.(\w+)_input_quantizer")


def tail(name: str) -> str:
    """Shorten a tensor's name to what follows the layers: files and models differ before it."""
    return re.sub(r"^.*?layers\.", "layers.", name)


def check_can_simulate(folder: Path) -> None:
    """Refuse a folder that cannot be simulated here.

    Raises:
        ConfigError: a format other than FP8 and NVFP4, or ModelOpt is not installed.
    """
    algorithms = _algorithms(folder)
    not_simulated = [name for name in algorithms if name not in _ALGORITHMS]
    if not_simulated or not algorithms:
        names = ", ".join(not_simulated) or "an unnamed format"
        raise ConfigError(
            f"{folder} is quantised to {names}; only FP8 and "
            "NVFP4 by ModelOpt are simulated in process: serve the folder (vllm serve) and name "
            "the server as backend"
        )
    if importlib.util.find_spec("modelopt") is None:
        raise ConfigError(
            f"{folder} is quantised by ModelOpt, and simulating it needs ModelOpt: pip install "
            "'posttrain[quantize]', or serve the folder (vllm serve) and name the server as backend"
        )


def _algorithms(folder: Path) -> list[str]:
    """Names of the formats of a folder's matrices."""
    file = folder / QUANT_CONFIG
    if not file.is_file():
        return []
    described: dict[str, Any] = json.loads(file.read_text("utf-8")).get("quantization", {})
    layers: dict[str, Any] = described.get("quantized_layers") or {"all": described}
    return sorted({layer.get("quant_algo") or "an unnamed format" for layer in layers.values()})


def stored_weight(name: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Weight that a tensor of a quantised checkpoint stands for, in float32."""
    tensor = tensors[name]
    if tensor.dtype == FP8:
        return tensor.float() * tensors[f"{name}_scale"]
    if tensor.dtype != PACKED:
        return tensor.float()
    from modelopt.torch.quantization.qtensor import NVFP4QTensor  # pyright: ignore[reportMissingImports]

    shape = torch.Size([*tensor.shape[:-1], 2 * tensor.shape[-1]])
    packed: Any = NVFP4QTensor(shape, torch.float32, tensor)
    return packed.dequantize(
        scale=tensors[f"{name}_scale"],
        double_scale=tensors[f"{name}_scale_2"],
        block_sizes={-1: BLOCK},
    )


def stored_weights(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights that the tensors of a checkpoint stand for, in float32; scales are left out."""
    weights: dict[str, torch.Tensor] = {}
    for name in tensors:
        if name.rpartition(".")[2] in SCALES:
            continue
        weights[name] = stored_weight(name, tensors)
    return weights


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of a checkpoint folder."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def plain_config(folder: Path) -> Any:
    """Read a model's config without its quantisation, which transformers might act on."""
    config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


def round_activations(model: PreTrainedModel, tensors: Mapping[str, torch.Tensor]) -> None:
    """Insert quantisers that round activations, keys and values with the scales of these tensors.

    Args:
        model: Model with the weights of `stored_weights`.
        tensors: Tensors of the checkpoint folder by name.

    Raises:
        ConfigError: a scale is of a module that this model does not round.
    """
    from modelopt.torch import quantization as mtq  # pyright: ignore[reportMissingImports]
    from modelopt.torch.quantization.nn import TensorQuantizer  # pyright: ignore[reportMissingImports]

    scales = {
        tail(name): tensor
        for name, tensor in tensors.items()
        if name.rpartition(".")[2] in SCALES and ".weight_scale" not in name
    }
    inputs_of_packed = {
        f"{tail(name).removesuffix('.weight')}.input_scale"
        for name in tensors
        if tensors[name].dtype == PACKED
    }
    with quiet():
        mtq.quantize(model, fp8_config(kv_cache=True), lambda _: None)
    applied = set[str]()
    for name, module in model.named_modules():
        if not isinstance(module, TensorQuantizer):
            continue
        quantiser: Any = module  # its methods are unknown where ModelOpt is not installed
        scale = _scale_name(name)
        if scale is None or scale not in scales:
            quantiser.disable()
            continue
        if scale in inputs_of_packed:
            round_to_nvfp4(quantiser)
        quantiser.amax = scales[scale].to(model.device) * largest_value(quantiser)
        quantiser.enable()
        applied.add(scale)
    # the experts of a layer share one quantiser, which reads the scale of the first
    first_scales = {re.sub(r"\.experts\.\d+\.", ".experts.0.", name) for name in scales}
    unread = first_scales - applied
    if unread:
        # a folder that another exporter has written: half of its rounding would be missing
        raise ConfigError(
            f"{len(unread)} scales belong to no module that is rounded in process, such as "
            f"{min(unread)}: serve the folder (vllm serve) and name the server as backend"
        )


def is_simulated(model: PreTrainedModel) -> bool:
    """Check whether a model rounds its activations through ModelOpt's quantisers."""
    return any(type(module).__name__ == "TensorQuantizer" for module in model.modules())


def _scale_name(quantiser: str) -> str | None:
    """Name of the scale of a quantiser from its layer on; None for one that rounds a weight."""
    module, _, kind = tail(quantiser).rpartition(".")
    fused = _FUSED_INPUT.fullmatch(tail(quantiser))
    if fused:
        # experts in one module
        return f"{fused[1]}.0.{fused[2]}.input_scale"
    if kind == "input_quantizer":
        return f"{module}.input_scale"
    if kind in ("k_bmm_quantizer", "v_bmm_quantizer"):
        letter = kind[0]
        return f"{module}.{letter}_proj.{letter}_scale"
    return None


def fp8_config(*, kv_cache: bool) -> Any:
    """ModelOpt's FP8 config: weights and activations, one static scale a tensor."""
    from modelopt.torch import quantization as mtq  # pyright: ignore[reportMissingImports]

    config: Any = copy.deepcopy(mtq.FP8_DEFAULT_CFG)
    config["quant_cfg"] += _LEFT_OUT
    if kv_cache:
        config["quant_cfg"] += mtq.FP8_KV_CFG["quant_cfg"]
    return config


def nvfp4_config() -> Any:
    """ModelOpt's NVFP4 config, which rounds as ModelOpt packs values for files.

    ModelOpt's simulation of the format is a CUDA kernel; its packing runs anywhere, and is what
    stands in the files.
    """
    from modelopt.torch import quantization as mtq  # pyright: ignore[reportMissingImports]
    from modelopt.torch.quantization.nn.modules import tensor_quantizer  # pyright: ignore[reportMissingImports]

    if not tensor_quantizer.is_registered_quant_backend(_NVFP4_BACKEND):
        tensor_quantizer.register_quant_backend(_NVFP4_BACKEND, _pack_and_unpack)
    config: Any = copy.deepcopy(mtq.NVFP4_DEFAULT_CFG)
    for rule in config["quant_cfg"]:
        if "cfg" in rule:
            rule["cfg"]["backend"] = _NVFP4_BACKEND
    config["quant_cfg"] += _LEFT_OUT
    return config


def _pack_and_unpack(values: torch.Tensor, quantiser: Any) -> torch.Tensor:
    if values.shape[-1] % BLOCK:
        raise ConfigError(
            f"NVFP4 has a scale for every {BLOCK} values that a matrix reads, and one reads "
            f"{values.shape[-1]}: take format: fp8"
        )
    rounded: Any = _RoundToNvfp4.apply(values, quantiser)
    return rounded


class _RoundToNvfp4(torch.autograd.Function):
    """Rounding to NVFP4 whose gradient passes straight through, as in ModelOpt's own quantisers.

    It passes to every value up to the largest that the scale of the tensor holds, and to none above
    it.
    """

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, quantiser: Any) -> torch.Tensor:
        from modelopt.torch.quantization.qtensor import NVFP4QTensor  # pyright: ignore[reportMissingImports]

        scale_2 = NVFP4QTensor.get_weights_scaling_factor_2_from_quantizer(quantiser)
        packed, scale, _ = NVFP4QTensor.quantize(values, BLOCK, weights_scaling_factor_2=scale_2)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(values.abs() <= quantiser.amax)
        return packed.dequantize(scale=scale, double_scale=scale_2, block_sizes={-1: BLOCK})

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        (grad,) = grad_outputs
        (within_scale,) = ctx.saved_tensors
        return grad * within_scale, None


def round_to_nvfp4(quantiser: Any) -> None:
    """Make a quantiser of FP8 round to NVFP4; the largest value that it has met stays its own."""
    rules = nvfp4_config()["quant_cfg"]
    quantiser.set_from_attribute_config(next(rule["cfg"] for rule in rules if "cfg" in rule))


def largest_value(quantiser: Any) -> float:
    """Largest value that a quantiser's numbers can hold, in units of the scale in the files."""
    return E4M3_MAX * E2M1_MAX if quantiser.num_bits == (2, 1) else E4M3_MAX


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Context in which what ModelOpt prints, warns of and logs is left out."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
