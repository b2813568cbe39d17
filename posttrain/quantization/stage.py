"""Quantise a checkpoint: calibrate, measure what each part costs, choose what is kept, write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from posttrain.config.paths import checkpoint_dtype
from posttrain.config.quantize import QuantizeConfig
from posttrain.errors import ConfigError
from posttrain.evaluation.intervals import Estimate
from posttrain.models.inference import load_for_inference
from posttrain.publish.derive import (
    Derived,
    Source,
    copy_tokenizer,
    derive_checkpoint,
    read_source,
)
from posttrain.quantization.export import export, tail
from posttrain.quantization.measure import measure, most_sensitive, sensitivity
from posttrain.quantization.rows import draw_sequences
from posttrain.quantization.simulate import KV_CACHE, NANO, Simulated
from posttrain.runs import read_artifact
from posttrain.tokens.tokenizer import largest_id, load_any_tokenizer


def quantize(recipe: QuantizeConfig, *, show: Callable[[str], object]) -> Mapping[str, Any]:
    """Write the quantised checkpoint, or leave a complete one alone.

    Args:
        show: prints a line on what goes on.

    Returns:
        The stats of its manifest.

    Raises:
        ConfigError: the checkpoint cannot be loaded, is quantised, or `keep` names no unit of it.
        DataError: an input is no finished artifact, or has no held-out rows.
    """
    source = read_source(recipe.checkpoint)
    data = Source(recipe.data, read_artifact(recipe.data, kind="sft_data"))
    return derive_checkpoint(
        Path(recipe.out),
        stage="quantize",
        method="quantize",
        identity=recipe.owner_config() | {"checkpoint": source.digest, "data": data.digest},
        sources=[source, data],
        base=recipe.checkpoint,
        write=lambda folder: _write(recipe, folder, show=show),
    )


def _write(recipe: QuantizeConfig, folder: Path, *, show: Callable[[str], object]) -> Derived:
    tokenizer = load_any_tokenizer(recipe.checkpoint)
    named = checkpoint_dtype(recipe.checkpoint) or "float32"
    if named not in ("float32", "bfloat16"):
        raise ConfigError(f"checkpoint {recipe.checkpoint} is in {named}: float32 or bfloat16")
    dtype = getattr(torch, named)
    model = load_for_inference(
        recipe.checkpoint,
        dtype=named,
        device="auto",
        attention="sdpa",
        vocabulary=largest_id(tokenizer) + 1,
        transposed=False,
    )
    tensors = model.state_dict()
    in_float32 = {tail(name) for name, tensor in tensors.items() if tensor.dtype == torch.float32}
    data = Path(recipe.data)
    calibrating = draw_sequences(data, "train", recipe.samples, seed=recipe.seed, reasoning=True)
    measuring = draw_sequences(data, "eval", recipe.measured, seed=recipe.seed, reasoning=False)
    show(f"calibrate on {len(calibrating):,} sequences, measure on {len(measuring):,}")
    simulated = Simulated(model.float(), calibrating, kv_cache=recipe.kv_cache)

    full = 8 * dtype.itemsize
    table = sensitivity(simulated, measuring, full=full)
    if recipe.keep == "auto":
        kept = most_sensitive(simulated, measuring, limit=recipe.limit)
    elif recipe.keep == "nano":
        kept = simulated.matching(NANO, strict=False)
    else:
        kept = simulated.matching(recipe.keep)
    kept = [unit for unit in simulated.units if unit in kept]
    quantised = [unit for unit in simulated.units if unit not in kept]
    if not quantised:
        raise ConfigError("keep: every unit is kept, nothing would be in FP8")
    show(f"kept in {named}: {', '.join(kept) or 'no unit'}")
    nano = simulated.matching(NANO, strict=False)
    variants = {
        "none": [],
        "all": [*simulated.units],
        "nano": [unit for unit in simulated.units if unit not in nano],
        "written": quantised,
    }
    measured = measure(simulated, measuring, variants)
    bits = {name: simulated.bits(units, full=full) for name, units in variants.items()}
    checked = export(simulated, folder, units=quantised, dtype=dtype, in_float32=in_float32)
    copy_tokenizer(tokenizer, origin=recipe.checkpoint, folder=folder)

    written = measured["written"]
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    kv_cache = "FP8" if KV_CACHE in quantised else named
    kept_text = f"{len(kept)} of {len(simulated.units)} units ({', '.join(kept) or 'none'})"
    stats = {
        "method": "quantize",
        "format": "fp8",
        "calibrated": len(calibrating),
        "measured": len(measuring),
        "dtype": named,
        "kv_cache": kv_cache,
        "keep": recipe.keep,
        "limit": recipe.limit if recipe.keep == "auto" else None,
        "kept": kept,
        "units": [*simulated.units],
        "tensors_checked": checked,
        "bytes": weights,
        "bytes_before": sum(tensor.nbytes for tensor in _distinct(tensors)),
        "variants": {
            name: measured[name].row() | {"bits": round(bits[name], 3)} for name in variants
        },
        "sensitivity": table,
    }
    summary = [
        f"Weights and activations in FP8 (E4M3, one scale a tensor), KV cache in {kv_cache}; in "
        f"{named}: {kept_text}, embeddings, head, norms, convolutions and routers.",
        f"KL from the original {_text(written.kl)} nats a trained token, loss "
        f"{_text(written.change, sign=True)}, on {len(measuring):,} held-out rows; "
        f"{bits['written']:.2f} bits a weight.",
        "transformers loads this folder without its scales: serve it with vLLM or TensorRT-LLM.",
    ]
    return Derived(summary, stats)


def _distinct(tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Tensors without those that share their memory with another, such as a tied head."""
    return list({tensor.data_ptr(): tensor for tensor in tensors.values()}.values())


def _text(estimate: Estimate, *, sign: bool = False) -> str:
    value = f"{estimate.value:+.4f}" if sign else f"{estimate.value:.4f}"
    return f"{value} ({estimate.low:.4f} … {estimate.high:.4f})"
