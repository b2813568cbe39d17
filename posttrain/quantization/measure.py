"""Loss and KL of quantised variants on held-out rows, paired with the model at full precision."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from posttrain.evaluation.intervals import Estimate, ratio
from posttrain.quantization.rows import Sequence as TokenSequence
from posttrain.quantization.rows import trained_targets
from posttrain.quantization.simulate import Simulated


@dataclass(frozen=True, slots=True)
class Measured:
    """One variant against the model at full precision, in nats a trained token.

    Attributes:
        loss: of the variant.
        change: loss of the variant less that of the model, paired by row.
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


@torch.inference_mode()
def measure(
    simulated: Simulated,
    rows: Sequence[TokenSequence],
    variants: Mapping[str, Collection[str]],
) -> dict[str, Measured]:
    """Measure variants, each a collection of units in FP8.

    KL is KL(model ‖ variant): by how much the variant misses what the model would say.
    """
    tokens: list[int] = []
    losses: dict[str, list[float]] = {name: [] for name in variants}
    changes: dict[str, list[float]] = {name: [] for name in variants}
    divergences: dict[str, list[float]] = {name: [] for name in variants}
    for row in rows:
        positions_N, targets_N = trained_targets(row)
        tokens.append(len(targets_N))
        simulated.switch_on(())
        logps_N_V = _logps(simulated, row, positions_N)
        full_loss = _loss(logps_N_V, targets_N)
        for name, units in variants.items():
            simulated.switch_on(units)
            variant_logps_N_V = _logps(simulated, row, positions_N)
            loss = _loss(variant_logps_N_V, targets_N)
            losses[name].append(loss)
            changes[name].append(loss - full_loss)
            kl_N_V = logps_N_V.exp() * (logps_N_V - variant_logps_N_V)
            divergences[name].append(float(kl_N_V.sum()))
    return {
        name: Measured(
            ratio(losses[name], tokens),
            ratio(changes[name], tokens),
            ratio(divergences[name], tokens),
        )
        for name in variants
    }


def _logps(simulated: Simulated, row: TokenSequence, positions_N: torch.Tensor) -> torch.Tensor:
    """Log-probabilities (N, V) of the next token at these positions."""
    ids_1_T = row.ids_T[None].to(simulated.model.device)
    logits_T_V = simulated.model(ids_1_T, use_cache=False).logits[0]
    return logits_T_V[positions_N].float().log_softmax(-1)


def _loss(logps_N_V: torch.Tensor, targets_N: torch.Tensor) -> float:
    """Sum of the negative log-probabilities of the targets."""
    return -float(logps_N_V.gather(1, targets_N.to(logps_N_V.device)[:, None]).sum())


def sensitivity(
    simulated: Simulated, rows: Sequence[TokenSequence], *, full: int
) -> list[dict[str, Any]]:
    """Measure every component and every layer: with only it in FP8, and with all but it.

    Args:
        full: bits of a weight in the checkpoint's own precision.

    Returns:
        A row for each, with the bits a weight of both variants.
    """
    parts = {("component", name): units for name, units in simulated.components().items()}
    parts |= {("layer", name): units for name, units in simulated.layers().items()}
    variants: dict[str, list[str]] = {}
    for (kind, name), units in parts.items():
        variants[f"only {kind} {name}"] = units
        variants[f"but {kind} {name}"] = [u for u in simulated.units if u not in units]
    measured = measure(simulated, rows, variants)
    table: list[dict[str, Any]] = []
    for kind, name in parts:
        row: dict[str, Any] = {"kind": kind, "name": name}
        for side in ("only", "but"):
            variant = f"{side} {kind} {name}"
            bits = simulated.bits(variants[variant], full=full)
            row[side] = measured[variant].row() | {"bits": round(bits, 3)}
        table.append(row)
    return table


def most_sensitive(
    simulated: Simulated, rows: Sequence[TokenSequence], *, limit: float
) -> list[str]:
    """The shortest list of units, the most sensitive first, without which the KL is within a limit.

    Units are ranked by their KL alone; how many are kept is found by bisection.
    """
    alone = measure(simulated, rows, {unit: [unit] for unit in simulated.units})
    ranked = sorted(simulated.units, key=lambda unit: -alone[unit].kl.value)
    fewest = 0
    most = len(ranked)
    while fewest < most:
        kept = (fewest + most) // 2
        whole = measure(simulated, rows, {"whole": ranked[kept:]})["whole"]
        if whole.kl.value <= limit:
            most = kept
        else:
            fewest = kept + 1
    return ranked[:fewest]
