"""A quantised checkpoint: units in full precision, and the cost of each part in KL and loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from posttrain.config.quantize import FORMATS, NANO
from posttrain.lineage import Node
from posttrain.pages import effects
from posttrain.report import section as ui

_VARIANTS = {
    "none": "nothing",
    "all": "every unit",
    "nano": "all but NVIDIA's choice for Nano",
    "written": "this checkpoint",
}


def sections(node: Node) -> ui.Sections:
    """Sections of a quantised checkpoint."""
    yield variants(node.stats)
    yield sensitivity(node.stats)
    yield kept_units(node.stats)


def tiles(node: Node) -> list[ui.Tile]:
    """Tiles of size, KL and loss, of the original and the quantised model."""
    stats = node.stats
    original = stats["variants"]["none"]
    written = stats["variants"]["written"]
    rows = f"{stats['measured']:,} held-out rows"
    bits = f"{written['bits']:.2f} bits a weight, before {original['bits']:.0f}"
    size = f"{stats['bytes_before'] / 1e6:,.1f} → {stats['bytes'] / 1e6:,.1f} MB"
    loss = f"{original['loss']['value']:.3f} → {written['loss']['value']:.3f}"
    change = _change(written)
    return [
        (size, "weights", bits),
        (_kl(written["kl"]), "KL from the original", f"10⁻³ nats a trained token, {rows}"),
        (loss, "held-out loss", f"nats a trained token; change {change}"),
    ]


@ui.section("Quantised and original")
def variants(stats: ui.Row) -> Iterator[ui.Block]:
    yield (
        f"{FORMATS[stats['format']]}, KV cache in {stats['kv_cache']}, calibrated on "
        f"{stats['calibrated']:,} sequences of the training data; the rest is in "
        f"{stats['dtype']}. {stats['measured']:,} held-out rows, paired: nats a trained token "
        "with 95 % intervals over rows. All "
        f"{stats['tensors_checked']:,} tensors that were written equal the simulation to the bit. "
        "NVIDIA's choice for Nemotron 3 Nano keeps attention and the Mamba layers that feed it."
    )
    yield verdict(stats["variants"]["written"]["change"])
    rows: list[list[object]] = []
    for variant, name in _VARIANTS.items():
        figures = stats["variants"][variant]
        # the original differs by nothing from itself
        shown = [None, None] if variant == "none" else _divergence_and_change(figures)
        divergence, change = shown
        loss = ui.estimate(figures["loss"], digits=4)
        rows.append([name, _bits(figures), divergence, loss, change])
    head = ["quantised", "bits a weight", "KL, 10⁻³ nats", "loss", "change of the loss"]
    yield ui.Table(head, rows)


def verdict(change: ui.Row | None) -> ui.Words:
    """Say whether the loss on held-out rows rises by the quantisation."""
    if change is None:
        return "The change of the held-out loss was not measured."
    if change["low"] > 0:
        verb = "rises"
    elif change["high"] < 0:
        verb = "falls"
    else:
        verb = "does not change beyond its interval"
    text = f"Quantised as it was written, the model's held-out loss {verb}"
    return (ui.Styled(text, "bold"), ". An evaluation of both models says what tasks lose.")


@ui.section("Sensitivity")
def sensitivity(stats: ui.Row) -> Iterator[ui.Block]:
    yield (
        "Every component and every layer: KL (in 10⁻³ nats) and change of the loss with only it "
        f"quantised, and with all but it, on {stats['measured_parts']:,} held-out rows. Bits a "
        "weight are those of the whole model."
    )
    head = ["part", "only it: bits", "KL", "change", "all but it: bits", "KL", "change"]
    rows: list[list[object]] = []
    for row in stats["sensitivity"]:
        name = row["name"] if row["kind"] == "component" else f"layer {row['name']}"
        cells: list[object] = [name]
        for side in ("only", "but"):
            figures = row[side]
            cells += [_bits(figures), *_divergence_and_change(figures)]
        rows.append(cells)
    yield ui.Table(head, rows)
    agreement = nano_agreement(stats["sensitivity"])
    if agreement is not None:
        yield agreement
    if stats["over_seeds"]:
        draws = len(stats["seeds"])
        yield (
            f"Calibrated with {draws} draws of {stats['calibrated']:,} sequences: mean KL with "
            "only the component quantised, and with every unit; intervals are over draws."
        )
        over_seeds = [[name, _kl(mean)] for name, mean in stats["over_seeds"].items()]
        yield ui.Table(["quantised", "KL, 10⁻³ nats"], over_seeds)


def nano_agreement(sensitivity: Iterable[ui.Row]) -> str | None:
    """Say if what NVIDIA keeps measures as the most sensitive here; None without both.

    Of components with weights, each alone: the keys and values have none to keep.
    """
    kept: dict[str, ui.Row] = {}
    others: dict[str, ui.Row] = {}
    for row in sensitivity:
        if row["kind"] == "component" and row["name"] != "kv_cache":
            side = kept if row["name"] in NANO else others
            side[row["name"]] = row["only"]["kl"]
    if not kept or not others:
        return None
    weakest = min(kept, key=lambda name: kept[name]["value"])
    strongest = max(others, key=lambda name: others[name]["value"])
    figures = f"{weakest} {_kl(kept[weakest])}, {strongest} {_kl(others[strongest])}, 10⁻³ nats"
    if kept[weakest]["low"] > others[strongest]["high"]:
        verdict = "agrees: all that it keeps costs more than anything else with weights"
    elif kept[weakest]["high"] < others[strongest]["low"]:
        verdict = f"does not agree: {strongest} costs more than {weakest}"
    else:
        verdict = "neither agrees nor contradicts: the intervals overlap"
    return (
        f"NVIDIA's choice for Nano ({' and '.join(kept)}): the measurement {verdict} ({figures})."
    )


@ui.section("Precision of each unit")
def kept_units(stats: ui.Row) -> Iterator[ui.Block]:
    kept = f"{len(stats['kept'])} of {len(stats['units'])} units are kept in {stats['dtype']}"
    rule = stats["keep"]
    if stats["format"] == "mixed":
        bits = stats["bits"]
        rule = (
            f"ModelOpt's AutoQuantize, at most {bits['asked']:g} bits an element of all units, "
            f"where one that is kept counts as 16: {bits['reached']:.2f} reached. Above, a unit "
            "that is kept is measured in FP8"
        )
    elif rule == "auto":
        rule = (
            "the most sensitive units, as few as bring the KL of all others together to at most "
            f"{1000 * stats['limit']:g} (10⁻³ nats a trained token)"
        )
    elif rule == "nano":
        rule = "NVIDIA's choice for Nano"
    else:
        rule = ", ".join(rule)
    units = [
        [unit, stats["dtype"] if unit in stats["kept"] else stats["formats"][unit].upper()]
        for unit in stats["units"]
    ]
    yield f"{kept}: {rule}. Embeddings, head, norms, convolutions and routers stay as they are."
    yield ui.Table(["unit", "precision"], units)


def _bits(figures: ui.Row) -> str:
    return f"{figures['bits']:.2f}"


def _kl(estimate: ui.Row) -> str:
    """KL in thousandths of a nat."""
    return ui.estimate(estimate, scale=1000, digits=3) or ""


def _divergence_and_change(figures: ui.Row) -> list[object]:
    return [_kl(figures["kl"]), _change(figures)]


def _change(figures: ui.Row) -> str | None:
    """Change of the loss with its interval; None where it was not measured."""
    change = figures["change"]
    if change is None:
        return None
    return effects.interval(change["value"], change["low"], change["high"], digits=4)
