"""A quantised model as files that servers read, checked tensor by tensor against the simulation."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from modelopt.torch.export import export_hf_checkpoint  # pyright: ignore[reportMissingImports]
from safetensors.torch import load_file, save_file

from posttrain.models.simulated import (
    BLOCK,
    FP8,
    PACKED,
    QUANT_CONFIG,
    SCALES,
    quiet,
    stored_weight,
    tail,
)
from posttrain.quantization.simulate import KV_CACHE, Simulated

_ALGORITHMS = {
    FP8: {"quant_algo": "FP8"},
    PACKED: {"quant_algo": "NVFP4", "group_size": BLOCK},
}


def export(
    simulated: Simulated,
    folder: Path,
    *,
    units: Collection[str],
    dtype: torch.dtype,
    in_float32: Collection[str],
) -> int:
    """Write the model with these units quantised, and compare what was written with the simulation.

    Args:
        dtype: the checkpoint's own, of all that is not quantised.
        in_float32: tensors that the checkpoint holds in float32 whatever its dtype, by `tail`.

    Returns:
        Quantised tensors, each equal to its simulation to the bit.
    """
    simulated.prepare_export(units)
    expected = simulated.simulated_weights([unit for unit in units if unit != KV_CACHE])
    with quiet():
        # in float32: in bfloat16 ModelOpt rounds twice, to bfloat16 and then to FP8
        export_hf_checkpoint(simulated.model, dtype=torch.float32, export_dir=folder)
    kept: list[str] = []
    layers: dict[str, dict[str, Any]] = {}
    simulations = {tail(name): weight for name, weight in expected.items()}
    for file in sorted(folder.glob("*.safetensors")):
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if name.rpartition(".")[2] in SCALES:
                continue
            if tensor.dtype in _ALGORITHMS:
                written = stored_weight(name, tensors)
                simulation = simulations.pop(tail(name)).cpu()
                assert torch.equal(written, simulation), f"{name} differs from its simulation"
                layers[name.removesuffix(".weight")] = _ALGORITHMS[tensor.dtype]
                continue
            if name.endswith(".weight") and tensor.ndim > 1:
                kept.append(name.removesuffix(".weight"))
            if tensor.is_floating_point() and tail(name) not in in_float32:
                tensors[name] = tensor.to(dtype)
        save_file(tensors, file, metadata={"format": "pt"})
    assert not simulations, f"not written: {', '.join(simulations)}"
    _describe(folder, kept=sorted(kept), layers=layers, dtype=dtype)
    return len(expected)


def _describe(
    folder: Path, *, kept: list[str], layers: dict[str, dict[str, Any]], dtype: torch.dtype
) -> None:
    """Name every matrix that is not quantised, one by one, and the dtype of all else.

    ModelOpt 0.47 shortens the list to patterns that may reach further than they should (layer 2 and
    layer 20), and leaves marks of its own in names that transformers renames (NemotronH).
    """
    quantisation = json.loads((folder / QUANT_CONFIG).read_text("utf-8"))
    config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    if config.get("tie_word_embeddings"):
        # the head has no tensor of its own, and servers would take it for a quantised one
        kept = sorted([*kept, "lm_head"])
    quantisation["quantization"]["exclude_modules"] = kept
    config["quantization_config"]["ignore"] = kept
    if "quantized_layers" in quantisation["quantization"]:
        _describe_mixed(quantisation["quantization"], config["quantization_config"], layers)
    config["dtype"] = str(dtype).removeprefix("torch.")
    config.pop("torch_dtype", None)
    for name, body in ((QUANT_CONFIG, quantisation), ("config.json", config)):
        (folder / name).write_text(json.dumps(body, indent=2) + "\n", "utf-8")


def _describe_mixed(
    quantisation: dict[str, Any], config: dict[str, Any], layers: dict[str, dict[str, Any]]
) -> None:
    """Name the format of every quantised matrix by its tensor, in both files."""
    names = dict(sorted(layers.items()))
    quantisation["quantized_layers"] = names
    config["quantized_layers"] = names
    for group in config["config_groups"].values():
        algorithm = "FP8" if group["weights"]["num_bits"] == 8 else "NVFP4"
        group["targets"] = [name for name in names if names[name]["quant_algo"] == algorithm]
