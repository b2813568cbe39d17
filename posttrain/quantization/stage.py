"""Quantise a checkpoint: calibrate, measure what each part costs, choose what is kept, write."""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from posttrain.config.paths import cannot_use_quantised, checkpoint_dtype, is_quantised
from posttrain.config.quantize import FORMATS, QuantizeConfig
from posttrain.config.sft import ModelConfig
from posttrain.errors import ConfigError
from posttrain.evaluation.intervals import Estimate, ratio
from posttrain.models.inference import load_for_inference
from posttrain.models.load import embedding_rows
from posttrain.models.simulated import tail
from posttrain.publish.derive import (
    Derived,
    Source,
    copy_tokenizer,
    derive_checkpoint,
    read_source,
)
from posttrain.quantization.export import export
from posttrain.quantization.measure import (
    FigureLog,
    Measured,
    bisections,
    layers_to_compute,
    measure,
    most_sensitive,
    part_variants,
    sensitivity,
)
from posttrain.quantization.rows import Sequence as TokenSequence
from posttrain.quantization.rows import draw_sequences
from posttrain.quantization.search import (
    SCORED_ROWS,
    SEARCHED_FORMATS,
    choose_formats,
    mean_bits,
)
from posttrain.quantization.simulate import KV_CACHE, NANO_UNITS, Simulated, refuse_unknown_layout
from posttrain.runs import Run, atomic_write_json, read_artifact
from posttrain.timing import duration
from posttrain.tokens.tokenizer import (
    check_same_tokenizer,
    largest_id,
    load_any_tokenizer,
    load_tokenizer,
)

GIB = 1 << 30
WORK = "work"
_DTYPES = ("float32", "bfloat16")


def sources_of(recipe: QuantizeConfig) -> list[Source]:
    """Read the manifests of the checkpoint and of the data.

    Raises:
        DataError: one of them is no finished artifact, or its files have changed.
    """
    checkpoint = read_source(recipe.checkpoint)
    return [checkpoint, Source(recipe.data, read_artifact(recipe.data, kind="sft_data"))]


def config_of(recipe: QuantizeConfig, sources: list[Source]) -> dict[str, Any]:
    """The config that decides the weights, with checkpoint and data by digest."""
    checkpoint, data = sources
    digests = {"checkpoint": checkpoint.digest, "data": data.digest}
    return {"quantize": recipe.owner_config() | digests}


def quantize(
    run: Run, recipe: QuantizeConfig, sources: list[Source], *, show: Callable[[str], object]
) -> None:
    """Write the quantised checkpoint.

    Args:
        show: Prints a line on what goes on.

    Raises:
        ConfigError: the checkpoint cannot be loaded, is quantised, or `keep` names no unit of it.
        DataError: the data have no held-out rows.
    """
    derive_checkpoint(
        run,
        method="quantize",
        sources=sources,
        base=recipe.checkpoint,
        write=lambda folder: _write(recipe, folder, show=show),
    )


class _Inputs:
    """Rows and model of a recipe.

    Attributes:
        dtype_name: Precision of the checkpoint, such as `bfloat16`.
        measuring: Held-out sequences that measure the whole.
        measuring_parts: The first of these, which measure every part.
    """

    def __init__(self, recipe: QuantizeConfig) -> None:
        if is_quantised(recipe.checkpoint):
            raise cannot_use_quantised(recipe.checkpoint)
        self.recipe = recipe
        self.tokenizer: PreTrainedTokenizerBase = load_any_tokenizer(recipe.checkpoint)
        data_tokenizer = load_tokenizer(Path(recipe.data) / "tokenizer")
        check_same_tokenizer(data_tokenizer, ModelConfig(path=recipe.checkpoint))
        self.dtype_name = checkpoint_dtype(recipe.checkpoint) or "float32"
        if self.dtype_name not in _DTYPES:
            raise ConfigError(
                f"checkpoint {recipe.checkpoint} is in {self.dtype_name}: float32 or bfloat16"
            )
        self.measuring = draw_sequences(
            Path(recipe.data), "eval", recipe.measured, seed=recipe.seed, reasoning=False
        )
        self.measuring_parts = self.measuring[: recipe.measured_parts]
        enough = recipe.samples + 1
        if recipe.seeds > 1 and len(self._draw(recipe.seed, enough)) < enough:
            raise ConfigError(
                f"seeds {recipe.seeds}: every draw of samples {recipe.samples} has all training "
                "sequences that there are; take fewer samples, or seeds: 1"
            )

    def calibrating(self, seed: int) -> list[TokenSequence]:
        """Draw training sequences that calibrate."""
        return self._draw(seed, self.recipe.samples)

    def _draw(self, seed: int, count: int) -> list[TokenSequence]:
        folder = Path(self.recipe.data)
        return draw_sequences(folder, "train", count, seed=seed, reasoning=True)

    def load(self) -> PreTrainedModel:
        """Load the model in its own precision.

        Raises:
            ConfigError: it cannot be loaded, or is none that this package can quantise.
        """
        model = load_for_inference(
            self.recipe.checkpoint,
            dtype=self.dtype_name,
            device="auto",
            attention="sdpa",
            vocabulary=largest_id(self.tokenizer) + 1,
            transposed=False,
        )
        refuse_unknown_layout(model)
        return model


def _write(recipe: QuantizeConfig, folder: Path, *, show: Callable[[str], object]) -> Derived:
    inputs = _Inputs(recipe)
    dtype = getattr(torch, inputs.dtype_name)
    full = 8 * dtype.itemsize
    calibrating = inputs.calibrating(recipe.seed)
    chosen = _choose(inputs, calibrating, show=show) if recipe.format == "mixed" else {}
    model = inputs.load()
    tensors = model.state_dict()
    in_float32 = {tail(name) for name, tensor in tensors.items() if tensor.dtype == torch.float32}
    bytes_before = _distinct_bytes(tensors)
    del tensors
    show(f"calibrate on {len(calibrating):,} sequences, measure on {len(inputs.measuring):,}")
    in_nvfp4 = _nvfp4(recipe, chosen)
    simulated = Simulated(model.float(), calibrating, kv_cache=recipe.kv_cache, nvfp4=in_nvfp4)
    # a pattern without a unit is refused before hours of measuring
    if recipe.format == "mixed":
        kept = [unit for unit, name in chosen.items() if name is None]
    else:
        kept = _kept_by_name(recipe, simulated)

    variants = part_variants(simulated) | {"all": [*simulated.units]}
    show(f"measure {len(simulated.units)} units alone and in parts")
    journal = FigureLog(Path(recipe.out) / WORK / "figures.jsonl")
    by_part = measure(simulated, inputs.measuring_parts, variants, journal=journal)
    table = sensitivity(simulated, by_part, full=full)
    if kept is None:
        kept = most_sensitive(
            simulated, inputs.measuring, by_part, limit=recipe.limit, journal=journal
        )
    kept = [unit for unit in simulated.units if unit in kept]
    quantised = [unit for unit in simulated.units if unit not in kept]
    _refuse_no_weights(simulated, kept, advice="raise `limit`")
    show(f"kept in {inputs.dtype_name}: {', '.join(kept) or 'no unit'}")
    nano = simulated.matching(NANO_UNITS, strict=False)
    wholes = {
        "none": [],
        "all": [*simulated.units],
        "nano": [unit for unit in simulated.units if unit not in nano],
        "written": quantised,
    }
    measured = measure(simulated, inputs.measuring, wholes, journal=journal)
    bits = {name: simulated.bits(units, full=full) for name, units in wholes.items()}
    units = [*simulated.units]
    seeds = [_seed_row(simulated, by_part)]
    formats = simulated.formats
    bits_reached = None
    if chosen:
        reached = mean_bits(chosen, simulated.sizes)
        bits_reached = {"asked": recipe.bits, "reached": round(reached, 3)}
    checked = export(simulated, folder, units=quantised, dtype=dtype, in_float32=in_float32)
    copy_tokenizer(inputs.tokenizer, origin=recipe.checkpoint, folder=folder)
    del simulated, model
    for number in range(1, recipe.seeds):
        show(f"calibrate and measure again, draw {number + 1} of {recipe.seeds}")
        seeds.append(_measure_seed(inputs, number, journal, in_nvfp4))

    written = measured["written"]
    kv_cache = "FP8" if KV_CACHE in quantised else inputs.dtype_name
    stats = {
        "method": "quantize",
        "format": recipe.format,
        "formats": formats,
        "bits": bits_reached,
        "calibrated": len(calibrating),
        "calibrated_tokens": sum(len(row.ids_T) for row in calibrating),
        "measured": len(inputs.measuring),
        "measured_parts": len(inputs.measuring_parts),
        "dtype": inputs.dtype_name,
        "kv_cache": kv_cache,
        "keep": recipe.keep,
        "limit": recipe.limit if recipe.keeps_by_limit else None,
        "kept": kept,
        "units": units,
        "tensors_checked": checked,
        "bytes": sum(file.stat().st_size for file in folder.glob("*.safetensors")),
        "bytes_before": bytes_before,
        "variants": {
            name: measured[name].row() | {"bits": round(bits[name], 3)} for name in wholes
        },
        "sensitivity": table,
        "seeds": seeds,
        "over_seeds": _over_seeds(seeds),
    }
    kept_text = f"{len(kept)} of {len(units)} units ({', '.join(kept) or 'none'})"
    summary = [
        f"Weights and activations in {FORMATS[recipe.format]}, KV cache in {kv_cache}; in "
        f"{inputs.dtype_name}: {kept_text}, embeddings, head, norms, convolutions and routers.",
        f"KL from the original {_text(written.kl)} nats a trained token, loss "
        f"{_text(written.change, sign=True)}, on {len(inputs.measuring):,} held-out rows; "
        f"{bits['written']:.2f} bits a weight.",
        "transformers loads this folder without its scales: serve it with vLLM or TensorRT-LLM. "
        "posttrain eval, sample and chat simulate it.",
    ]
    return Derived(summary, stats)


def _component_variants(simulated: Simulated) -> dict[str, list[str]]:
    """Variants whose KL is measured with every draw of calibrating sequences."""
    variants = {f"only component {name}": units for name, units in simulated.components().items()}
    return variants | {"all": [*simulated.units]}


def _seed_row(simulated: Simulated, measured: Mapping[str, Measured]) -> dict[str, float]:
    """KL of every component alone and of all together, by name, of one draw."""
    return {
        variant.removeprefix("only component "): float(f"{measured[variant].kl.value:.4g}")
        for variant in _component_variants(simulated)
    }


def _choose(
    inputs: _Inputs, rows: Collection[TokenSequence], *, show: Callable[[str], object]
) -> dict[str, str | None]:
    """Format of every unit by AutoQuantize; a run that was killed after it reads what it chose."""
    recipe = inputs.recipe
    file = Path(recipe.out) / WORK / "formats.json"
    if not file.is_file():
        show(f"choose formats for at most {recipe.bits:g} bits an element")
        chosen = choose_formats(inputs.load().float(), [*rows], bits=recipe.bits)
        gc.collect()  # ModelOpt's state and the model hold each other, and another is loaded next
        atomic_write_json(file, chosen)
    formats: dict[str, str | None] = json.loads(file.read_text("utf-8"))
    if not any(formats.values()):
        raise ConfigError(
            f"bits {recipe.bits:g}: AutoQuantize keeps every unit with weights, none would "
            "change; lower `bits`"
        )
    return formats


def _kept_by_name(recipe: QuantizeConfig, simulated: Simulated) -> list[str] | None:
    """Units that `keep` names; None if their KL decides."""
    if recipe.keep == "auto":
        return None
    if recipe.keep == "nano":
        kept = simulated.matching(NANO_UNITS, strict=False)
    else:
        kept = simulated.matching(recipe.keep)
    _refuse_no_weights(simulated, kept, advice="name fewer in `keep`")
    return kept


def _refuse_no_weights(simulated: Simulated, kept: Collection[str], *, advice: str) -> None:
    """Refuse a choice without a quantised matrix; one of keys and values alone is not written."""
    if not any(simulated.sizes[unit] for unit in simulated.units if unit not in kept):
        raise ConfigError(f"keep: every unit with weights is kept, none would change; {advice}")


def _nvfp4(recipe: QuantizeConfig, chosen: Mapping[str, str | None]) -> list[str]:
    """Patterns of the units in NVFP4, of which `mixed` has chosen some."""
    if recipe.format == "nvfp4":
        return ["*"]
    return [unit for unit, name in chosen.items() if name == "nvfp4"]


def _measure_seed(
    inputs: _Inputs, draw: int, journal: FigureLog, in_nvfp4: Collection[str]
) -> dict[str, float]:
    rows = inputs.calibrating(inputs.recipe.seed + draw)
    kv_cache = inputs.recipe.kv_cache
    simulated = Simulated(inputs.load().float(), rows, kv_cache=kv_cache, nvfp4=in_nvfp4)
    variants = _component_variants(simulated)
    measured = measure(simulated, inputs.measuring_parts, variants, journal=journal, draw=draw)
    return _seed_row(simulated, measured)


def _over_seeds(seeds: list[dict[str, float]]) -> dict[str, dict[str, float | None]]:
    """Mean KL over draws by component, with the t interval of independent draws."""
    if len(seeds) < 2:
        return {}
    means: dict[str, dict[str, float | None]] = {}
    for name in seeds[0]:
        mean = ratio([row[name] for row in seeds], [1] * len(seeds))
        means[name] = {"value": mean.value, "low": mean.low, "high": mean.high}
    return means


def _distinct_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """Bytes of tensors; those that share their memory with another, as a tied head, count once."""
    distinct = {tensor.data_ptr(): tensor for tensor in tensors.values()}
    return sum(tensor.nbytes for tensor in distinct.values())


def _text(estimate: Estimate, *, sign: bool = False) -> str:
    value = f"{estimate.value:+.4f}" if sign else f"{estimate.value:.4f}"
    return f"{value} ({estimate.low:.4f} … {estimate.high:.4f})"


# -- what a run will take --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Speed:
    """Timings of a model on one row.

    Attributes:
        pass_token: Seconds that a pass over all layers takes a token, figures included.
        calibration_token: Seconds that calibration takes a token.
        settling: Seconds that scales and rounded weights take, once a draw.
        search: Seconds that the search of formats takes besides its rows; 0 without a search.
        search_token: Seconds that its scoring takes a token.
    """

    pass_token: float
    calibration_token: float
    settling: float
    search: float
    search_token: float


def plan(recipe: QuantizeConfig) -> Iterator[str]:
    """Lines on what a run will measure and take. Loads the model and times it on a few rows.

    Raises:
        ConfigError, DataError: as `quantize`.
    """
    inputs = _Inputs(recipe)
    calibrating = inputs.calibrating(recipe.seed)
    without_model = psutil.Process().memory_info().rss  # half a GiB and more, of imports
    search = 0.0
    search_token = 0.0
    search_peak = 0
    # before the model below is loaded: the run searches on a model that is gone when it measures
    if recipe.format == "mixed":
        search, search_token = _time_search(inputs, max(calibrating, key=_length))
        search_peak = _peak_memory()
        gc.collect()  # as after the search of a run
    started = time.perf_counter()
    model = inputs.load().float()
    loading = time.perf_counter() - started
    yield (
        f"calibrate on {len(calibrating):,} sequences ({_tokens(calibrating):,} tokens), "
        f"{recipe.seeds} draw(s); measure on {len(inputs.measuring):,} held-out sequences "
        f"({_tokens(inputs.measuring):,} tokens), every part on {len(inputs.measuring_parts):,}"
    )
    row = calibrating[0]
    with torch.inference_mode():
        model(row.ids_T[None].to(model.device), use_cache=False, logits_to_keep=1)
        started = time.perf_counter()
        model(row.ids_T[None].to(model.device), use_cache=False, logits_to_keep=1)
    calibration_token = (time.perf_counter() - started) / len(row.ids_T)
    started = time.perf_counter()
    # of `mixed` the slower of its formats
    in_nvfp4 = () if recipe.format == "fp8" else ("*",)
    simulated = Simulated(model, [row], kv_cache=recipe.kv_cache, nvfp4=in_nvfp4)
    settling = time.perf_counter() - started
    _kept_by_name(recipe, simulated)
    yield f"{len(simulated.units)} units: {', '.join(simulated.components())}"
    two_rows = inputs.measuring[:2]
    started = time.perf_counter()
    measure(simulated, two_rows, {"all": [*simulated.units]})
    # each row is passed over twice: with nothing in FP8, and with everything
    pass_token = (time.perf_counter() - started) / (2 * _tokens(two_rows))
    speed = Speed(pass_token, calibration_token, settling, search, search_token)
    seconds = _seconds(inputs, simulated, calibrating, speed)
    loads = recipe.seeds + (recipe.format == "mixed")
    total = sum(seconds.values()) + loading * loads
    steps = ", ".join(f"{name} {duration(value)}" for name, value in seconds.items())
    yield f"about {duration(total)} on this machine: {steps}"
    memory = _memory(inputs, simulated)
    if model.device.type == "cpu":
        memory = max(memory + without_model, search_peak)
    yield f"about {memory / GIB:.1f} GiB of memory"


class _TimedRows(list[TokenSequence]):
    """Rows that note when each of them is taken.

    Attributes:
        times: Seconds of the clock, one for each row of each pass.
    """

    def __init__(self, rows: Iterable[TokenSequence]) -> None:
        super().__init__(rows)
        self.times: list[float] = []

    def __iter__(self) -> Iterator[TokenSequence]:
        for row in super().__iter__():
            self.times.append(time.perf_counter())
            yield row


def _time_search(inputs: _Inputs, row: TokenSequence) -> tuple[float, float]:
    """Seconds of the search of formats besides its scoring, and of its scoring a token.

    Raises:
        ConfigError: no choice of formats is within `bits`.
    """
    rows = _TimedRows([row, row])
    model = inputs.load().float()
    started = time.perf_counter()
    choose_formats(model, rows, bits=inputs.recipe.bits)
    total = time.perf_counter() - started
    # the last pass scores, the others calibrate
    scoring = rows.times[-1] - rows.times[-2]
    return max(0.0, total - len(rows) * scoring), scoring / len(row.ids_T)


def _peak_memory() -> int:
    """Bytes of this process's memory at its peak."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _length(row: TokenSequence) -> int:
    return len(row.ids_T)


def _seconds(
    inputs: _Inputs, simulated: Simulated, calibrating: list[TokenSequence], speed: Speed
) -> dict[str, float]:
    """Seconds of each step of a run."""
    recipe = inputs.recipe
    units = [*simulated.units]
    parts_token = speed.pass_token * layers_to_compute(simulated, part_variants(simulated))
    # three variants of the whole besides the model itself; bisections share half of a pass
    whole_passes = 4.0 + (1.5 * bisections(len(units)) if recipe.keeps_by_limit else 0.0)
    seconds: dict[str, float] = {}
    if recipe.format == "mixed":
        calibrated = SEARCHED_FORMATS * _tokens(calibrating) * speed.calibration_token
        scored = _tokens(calibrating[:SCORED_ROWS]) * speed.search_token
        seconds["formats"] = speed.search + calibrated + scored
    seconds |= {
        "calibrate": _tokens(calibrating) * speed.calibration_token + speed.settling,
        "parts": _tokens(inputs.measuring_parts) * parts_token,
        "whole": _tokens(inputs.measuring) * whole_passes * speed.pass_token,
        "write": speed.settling,
    }
    if recipe.seeds > 1:
        passes = layers_to_compute(simulated, _component_variants(simulated))
        measuring = _tokens(inputs.measuring_parts) * passes * speed.pass_token
        seconds["other draws"] = (recipe.seeds - 1) * (seconds["calibrate"] + measuring)
    return seconds


def _memory(inputs: _Inputs, simulated: Simulated) -> float:
    """Bytes at the peak: weights in float32, their rounded copies, and figures or files."""
    weights = sum(parameter.numel() for parameter in simulated.model.parameters())
    rounded = sum(simulated.sizes.values())
    longest = max(len(row.ids_T) for row in inputs.measuring)
    vocabulary = embedding_rows(simulated.model)
    # log-probabilities of model and variant, and two products of them
    figures = 4 * 4 * longest * vocabulary
    files = 2 * (rounded + 4 * (weights - rounded))
    return 4 * (weights + rounded) + max(figures, files)


def _tokens(rows: Collection[TokenSequence]) -> int:
    return sum(len(row.ids_T) for row in rows)
