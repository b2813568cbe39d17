"""Loss and KL of quantised variants on held-out rows, paired with the model at full precision."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from posttrain.evaluation.intervals import Estimate, ratio
from posttrain.hashing import digest_of
from posttrain.quantization.rows import Sequence as TokenSequence
from posttrain.quantization.rows import trained_targets
from posttrain.quantization.simulate import KV_CACHE, Simulated


@dataclass(frozen=True, slots=True)
class Measured:
    """One variant against the model at full precision, in nats a trained token.

    Attributes:
        loss: Loss of the variant.
        change: Loss of the variant less that of the model, paired by row.
        kl: KL divergence of the variant from the model.
    """

    loss: Estimate
    change: Estimate
    kl: Estimate

    def row(self) -> dict[str, Any]:
        """The estimates as plain values, rounded: sums differ between machines in the last bits."""
        return {
            name: {key: float(f"{value:.4g}") for key, value in estimate.items()}
            for name, estimate in asdict(self).items()
        }


@dataclass(frozen=True, slots=True)
class RowFigures:
    """Sums over the trained tokens of one row.

    Attributes:
        loss: Loss of the variant.
        change: Loss of the variant less that of the model.
        kl: KL divergence of the variant from the model.
    """

    loss: float
    change: float
    kl: float


class FigureLog:
    """Figures by row and variant, kept in a file so that a killed run continues where it was."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._figures: dict[str, RowFigures] = {}
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_file():
            for line in file.read_text("utf-8").splitlines(keepends=True):
                if line.endswith("\n"):  # the last line of a killed run may be cut
                    key, *values = json.loads(line)
                    self._figures[key] = RowFigures(*values)
        lines = [self._line(key, figures) for key, figures in self._figures.items()]
        file.write_text("".join(lines), "utf-8")

    @staticmethod
    def _line(key: str, figures: RowFigures) -> str:
        return json.dumps([key, *asdict(figures).values()]) + "\n"

    def get(self, key: str) -> RowFigures | None:
        """Figures under a key; None where they are still to be measured."""
        return self._figures.get(key)

    def add(self, key: str, figures: RowFigures) -> None:
        """Keep figures under a key."""
        self._figures[key] = figures
        with self._file.open("a", encoding="utf-8") as lines:
            lines.write(self._line(key, figures))


class LayerOutputs:
    """Outputs of a model's layers in one pass, for another pass that shares its first layers.

    Most variants round in one layer alone, or in all but one. Up to there they compute what the
    model at full precision or the wholly rounded one has computed, which is half of the work.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        layers = next(
            module
            for name, module in model.named_modules()
            if name.rpartition(".")[2] == "layers" and isinstance(module, torch.nn.ModuleList)
        )
        self.count = len(layers)
        self._shared: Sequence[Any] = ()
        self._outputs: list[Any] = []
        self._forwards: list[tuple[Any, Callable[..., Any]]] = []
        for number, layer in enumerate(layers):
            self._forwards.append((layer, layer.forward))
            layer.forward = self._recording(layer.forward, number)

    def _recording(self, forward: Callable[..., Any], number: int) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if number < len(self._shared):
                output = self._shared[number]
            else:
                output = forward(*args, **kwargs)
            self._outputs.append(output)
            return output

        return recorded

    def run(self, call: Callable[[], torch.Tensor], shared: Sequence[Any]) -> torch.Tensor:
        """Run a pass whose first layers give these outputs."""
        self._shared = shared
        self._outputs = []
        return call()

    def outputs(self) -> list[Any]:
        """Outputs of every layer in the last pass."""
        return self._outputs

    def remove(self) -> None:
        """Give the layers their own forward pass back."""
        for layer, forward in self._forwards:
            layer.forward = forward


def layer_of(unit: str) -> int:
    """Number of a unit's layer. The KV cache begins in the first."""
    return 0 if unit == KV_CACHE else int(unit.rpartition(".")[2])


@torch.inference_mode()
def measure(
    simulated: Simulated,
    rows: Sequence[TokenSequence],
    variants: Mapping[str, Collection[str]],
    *,
    journal: FigureLog | None = None,
    draw: int = 0,
) -> dict[str, Measured]:
    """Measure variants, each a collection of units that are quantised.

    KL is KL(model ‖ variant): by how much the variant misses what the model would say.

    Args:
        journal: Keeps the figures of each row and variant, and has those of a run that was killed.
        draw: Number of the draw that calibrated the model, which tells its figures in the journal
            from those of other draws.
    """
    # variants with the same units are computed once
    sets = {name: frozenset(units) for name, units in variants.items()}
    figures: dict[frozenset[str], list[RowFigures]] = {units: [] for units in sets.values()}
    tokens: list[int] = []
    layers = LayerOutputs(simulated.model)
    try:
        for row in rows:
            positions_N, targets_N = trained_targets(row)
            tokens.append(len(targets_N))
            passes = _Passes(simulated, layers, row, positions_N)
            row_key = digest_of([draw, row.ids_T.tolist()])
            for units, row_figures in figures.items():
                key = digest_of([row_key, sorted(units)])
                measured = journal.get(key) if journal is not None else None
                if measured is None:
                    measured = _measure_row(passes, units, targets_N)
                    if journal is not None:
                        journal.add(key, measured)
                row_figures.append(measured)
    finally:
        layers.remove()
    estimates = {
        units: Measured(
            loss=ratio([row.loss for row in row_figures], tokens),
            change=ratio([row.change for row in row_figures], tokens),
            kl=ratio([row.kl for row in row_figures], tokens),
        )
        for units, row_figures in figures.items()
    }
    return {name: estimates[units] for name, units in sets.items()}


def _measure_row(passes: _Passes, units: frozenset[str], targets_N: torch.Tensor) -> RowFigures:
    logps_N_V = passes.full_logps()
    variant_logps_N_V = passes.logps(units)
    loss = _loss(variant_logps_N_V, targets_N)
    kl_N_V = logps_N_V.exp() * (logps_N_V - variant_logps_N_V)
    return RowFigures(loss, loss - _loss(logps_N_V, targets_N), float(kl_N_V.sum()))


class _Passes:
    """Passes of variants over one row, each from the first layer that it does not share on."""

    def __init__(
        self,
        simulated: Simulated,
        layers: LayerOutputs,
        row: TokenSequence,
        positions_N: torch.Tensor,
    ) -> None:
        self.simulated = simulated
        self.layers = layers
        self.ids_1_T = row.ids_T[None].to(simulated.model.device)
        self.positions_N = positions_N.to(simulated.model.device)
        # outputs of all layers with nothing in FP8, and with everything
        self._nothing: list[Any] | None = None
        self._everything: list[Any] | None = None

        self._full_logps_N_V: torch.Tensor | None = None

    def full_logps(self) -> torch.Tensor:
        """Log-probabilities (N, V) of the model at full precision."""
        if self._full_logps_N_V is None:
            self._full_logps_N_V = self.logps(frozenset())
        return self._full_logps_N_V

    def logps(self, units: frozenset[str]) -> torch.Tensor:
        """Log-probabilities (N, V) of the next token at the trained positions."""
        others = [unit for unit in self.simulated.units if unit not in units]
        first_rounded = min((layer_of(unit) for unit in units), default=self.layers.count)
        first_full = min((layer_of(unit) for unit in others), default=self.layers.count)
        shared: list[Any] = []
        if first_rounded >= first_full:
            if units and self._nothing is None:
                self.logps(frozenset())
            shared = (self._nothing or [])[:first_rounded]
        else:
            if others and self._everything is None:
                self.logps(frozenset(self.simulated.units))
            shared = (self._everything or [])[:first_full]
        self.simulated.switch_on(units)
        logps_N_V = self.layers.run(self._pass, shared)
        if not units:
            self._nothing = self.layers.outputs()
        elif not others:
            self._everything = self.layers.outputs()
        return logps_N_V

    def _pass(self) -> torch.Tensor:
        output = self.simulated.model(
            self.ids_1_T, use_cache=False, logits_to_keep=self.positions_N
        )
        return output.logits[0].float().log_softmax(-1)


def _loss(logps_N_V: torch.Tensor, targets_N: torch.Tensor) -> float:
    """Sum of the negative log-probabilities of the targets."""
    return -float(logps_N_V.gather(1, targets_N.to(logps_N_V.device)[:, None]).sum())


def parts(simulated: Simulated) -> dict[tuple[str, str], list[str]]:
    """Units of every component and of every layer, by kind and name."""
    components = {("component", name): units for name, units in simulated.components().items()}
    layers = {("layer", name): units for name, units in simulated.layers().items()}
    return components | layers


def part_variants(simulated: Simulated) -> dict[str, list[str]]:
    """Variants with only one part quantised, with all but one, and with only one unit."""
    variants: dict[str, list[str]] = {}
    for (kind, name), units in parts(simulated).items():
        variants[f"only {kind} {name}"] = units
        variants[f"but {kind} {name}"] = [u for u in simulated.units if u not in units]
    for unit in simulated.units:
        variants[f"only unit {unit}"] = [unit]
    return variants


def sensitivity(
    simulated: Simulated, measured: Mapping[str, Measured], *, full: int
) -> list[dict[str, Any]]:
    """Sensitivity of every component and layer: with only it quantised, and with all but it.

    Args:
        measured: Figures of `part_variants`.
        full: Bits of a weight in the checkpoint's own precision.

    Returns:
        A row for each, with the bits a weight of both variants.
    """
    variants = part_variants(simulated)
    table: list[dict[str, Any]] = []
    for kind, name in parts(simulated):
        row: dict[str, Any] = {"kind": kind, "name": name}
        for side in ("only", "but"):
            variant = f"{side} {kind} {name}"
            bits = simulated.bits(variants[variant], full=full)
            row[side] = measured[variant].row() | {"bits": round(bits, 3)}
        table.append(row)
    return table


def most_sensitive(
    simulated: Simulated,
    rows: Sequence[TokenSequence],
    measured: Mapping[str, Measured],
    *,
    limit: float,
    journal: FigureLog | None = None,
) -> list[str]:
    """The shortest list of units, the most sensitive first, without which the KL is within a limit.

    Units are ranked by their KL alone; how many are kept is found by bisection.

    Args:
        measured: Figures of `part_variants`.
    """
    ranked = sorted(simulated.units, key=lambda unit: -measured[f"only unit {unit}"].kl.value)
    fewest = 0
    most = len(ranked)
    while fewest < most:
        kept = (fewest + most) // 2
        whole = measure(simulated, rows, {"whole": ranked[kept:]}, journal=journal)["whole"]
        if whole.kl.value <= limit:
            most = kept
        else:
            fewest = kept + 1
    return ranked[:fewest]


def layers_to_compute(simulated: Simulated, variants: Mapping[str, Collection[str]]) -> float:
    """Passes over all layers that measuring these variants takes a row, the two shared included."""
    count = len(simulated.layers())
    total = 2.0
    for units in {frozenset(units) for units in variants.values()}:
        others = [unit for unit in simulated.units if unit not in units]
        shared = max(
            min((layer_of(unit) for unit in units), default=count),
            min((layer_of(unit) for unit in others), default=count),
        )
        total += 1 - shared / count
    return total


def bisections(units: int) -> int:
    """Measurements of the whole that `most_sensitive` makes at most."""
    return math.ceil(math.log2(units + 1))
