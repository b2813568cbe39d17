"""A checkpoint that ModelOpt quantised to FP8, loaded so that it rounds as a server does.

The weights are what the FP8 values stand for. Activations, keys and values are rounded by
ModelOpt's quantisers with the scales of the files. Products are computed in float32, where a server
multiplies in FP8 and adds up in float32.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import json
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
SCALES = ("weight_scale", "input_scale", "k_scale", "v_scale")
_FUSED_INPUT = re.compile(r"(.+\.experts)\.(\w+)_input_quantizer")


def tail(name: str) -> str:
    """Shorten a tensor's name to what follows the layers: files and models differ before it."""
    return re.sub(r"^.*?layers\.", "layers.", name)


def check_can_simulate(folder: Path) -> None:
    """Refuse a folder that cannot be simulated here.

    Raises:
        ConfigError: a format other than FP8, or ModelOpt is not installed.
    """
    file = folder / QUANT_CONFIG
    algorithm = None
    if file.is_file():
        algorithm = json.loads(file.read_text("utf-8")).get("quantization", {}).get("quant_algo")
    if algorithm != "FP8":
        raise ConfigError(
            f"{folder} is quantised to {algorithm or 'an unnamed format'}; only FP8 by ModelOpt is "
            "simulated in process: serve the folder (vllm serve) and name the server as backend"
        )
    if importlib.util.find_spec("modelopt") is None:
        raise ConfigError(
            f"{folder} is quantised by ModelOpt, and simulating it needs ModelOpt: pip install "
            "'posttrain[quantize]', or serve the folder (vllm serve) and name the server as backend"
        )


def stored_weights(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights that the tensors of an FP8 checkpoint stand for, in float32; scales are left out."""
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name.rpartition(".")[2] in SCALES:
            continue
        weights[name] = tensor.float()
        if tensor.dtype == FP8:
            weights[name] = weights[name] * tensors[f"{name}_scale"]
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
        if name.rpartition(".")[2] in SCALES and not name.endswith("weight_scale")
    }
    with quiet():
        mtq.quantize(model, fp8_config(kv_cache=True), lambda _: None)
    applied = set[str]()
    for name, module in model.named_modules():
        if not isinstance(module, TensorQuantizer):
            continue
        quantiser: Any = module  # its methods are unknown where ModelOpt is not installed
        scale = _scale_name(name)
        if scale not in scales:
            quantiser.disable()
            continue
        quantiser.amax = scales[scale].to(model.device) * E4M3_MAX
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
    if kv_cache:
        config["quant_cfg"] += mtq.FP8_KV_CFG["quant_cfg"]
    return config


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Context in which what ModelOpt prints and warns of is left out."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
