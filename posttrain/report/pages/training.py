"""A checkpoint by its method; SFT and DPO are here: losses, held-out groups, margins, speed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from posttrain.report import section as ui
from posttrain.report.curves import Curve, curves, points
from posttrain.report.lineage import Node, listed_rows, side_rows
from posttrain.report.pages import rl


def sections(node: Node) -> ui.Sections:
    """The sections of one `checkpoint` artifact, its speed last."""
    rows = listed_rows(node, "log.jsonl")
    if rows is None:
        yield ui.LeftOut("Loss", f"{node.name} lists no log.jsonl")
        return
    stats = node.stats
    method = stats.get("method")
    if method == "dpo":
        yield from _dpo(stats, rows)
    elif "num_generations" in stats:
        yield from rl.sections(node, stats, rows)
    else:
        yield supervised(stats, rows)
    starts = side_rows(node, "speed.jsonl")
    if starts:
        yield speed(f"Speed of {method.upper()}" if method else "Speed", starts, rows)
    else:
        yield ui.LeftOut("Speed", f"{node.name} has no speed.jsonl")


def curve_groups(rows: Sequence[ui.Row]) -> dict[str, Sequence[Curve]]:
    """The charts of a log of any method, by section; for rows `with_held_out`."""
    keys = {key for row in rows for key in row}
    if "preference_loss" in keys:
        return {"Preference training": _PREFERENCE_CURVES, "Margins": _MARGIN_CURVES}
    return rl.CURVE_GROUPS if "rollouts" in keys else {"Training": (_LOSS, *_SETTINGS)}


def so_far(rows: Sequence[ui.Row]) -> Iterator[ui.Section]:
    """The sections of a run that has not finished, from its log alone."""
    for title, wanted in curve_groups(rows).items():
        yield ui.Section(title, curves(with_held_out(rows), wanted))
    yield rl.verdicts(rows)
    yield rl.the_judge(rows)


def tiles(node: Node) -> list[ui.Tile]:
    stats = node.stats
    if "num_generations" in stats:
        return rl.tiles(stats)
    if stats.get("method") == "dpo":
        last = stats["last"]
        margin = f"last logged step; margin {last['margin']:+.3f}"
        change = f"rejected {last['rejected_change']:+.2f}; {stats['steps']} steps"
        return [
            (f"{last['accuracy']:.1%}", "pairs ranked right", margin),
            (f"{last['chosen_change']:+.2f}", "change of the chosen, nats", change),
        ]
    found: list[ui.Tile] = []
    if stats.get("train_loss") is not None:
        found.append((f"{stats['train_loss']:.3f}", "last training loss", "nats per trained token"))
    if stats.get("tokens") and "steps" in stats:
        remark = (
            f"{stats['steps']:,} steps, {ui.ratio(stats['trained'], stats['tokens'], 0)} trained"
        )
        found.append((f"{stats['tokens'] / 1e6:,.2f} M", "tokens read", remark))
    return found


# SFT

_RUN = {
    "steps": "steps",
    "epochs": "epochs",
    "global_batch": "packs a step",
    "tokens": "tokens read",
    "trained": "of them trained",
    "world_size": "processes",
    "sharding": "sharding",
    "document_masking": "packed sequences",
    "packed_vs_alone": "largest logit difference, packed versus alone",
}


@dataclass(frozen=True, slots=True)
class HeldOutRow:
    """Held-out loss of one group over the run. `trained`: tokens it was measured on, if logged."""

    steps: list[float]
    losses: list[float]
    trained: int | None


@ui.section("Training")
def supervised(stats: ui.Row, rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    pairs = [(name, _rounded(stats[key])) for key, name in _RUN.items() if key in stats]
    if pairs:
        yield ui.Definitions(pairs)
    bad = sum(not math.isfinite(loss) for loss in points(rows, "loss")[1])
    if bad:
        yield f"{bad} logged losses are not finite and are not shown."
    yield from curves(with_held_out(rows), (_LOSS, *_SETTINGS))
    if groups := _held_out_groups(rows):
        yield from _held_out(groups)


def _rounded(value: object) -> object:
    return f"{value:.2g}" if isinstance(value, float) and value < 1 else value


def _held_out_groups(rows: Sequence[ui.Row]) -> dict[str, HeldOutRow]:
    """Held-out loss by group, named `<source>/<on|off>`; "all" is the one over all groups."""
    found: dict[str, HeldOutRow] = {}
    for key in sorted({key for row in rows for key in row}):
        if key.startswith("eval_") and key.endswith("loss"):
            stem = key.removesuffix("loss")
            _, counts = points(rows, f"{stem}trained")
            name = stem.removeprefix("eval_").rstrip("_") or "all"
            found[name] = HeldOutRow(*points(rows, key), int(counts[-1]) if counts else None)
    return found


_LOSS = Curve(
    "Loss per trained token, in nats.",
    "loss",
    {"training loss": "loss", "held-out loss": "held_out"},
)
_SETTINGS = (
    Curve("Learning rate at each logged step.", "learning rate", "learning_rate"),
    Curve("Gradient norm at each logged step.", "gradient norm", "grad_norm"),
)


def with_held_out(rows: Sequence[ui.Row]) -> list[ui.Row]:
    """The rows and, as `held_out`, the held-out loss over all groups."""
    whole = _over_groups(_held_out_groups(rows))
    held_out = zip(whole.steps, whole.losses, strict=True) if whole else ()
    return [*rows, *({"step": step, "held_out": loss} for step, loss in held_out)]


def _over_groups(groups: Mapping[str, HeldOutRow]) -> HeldOutRow | None:
    """Over all groups, per trained token, at the steps where every group was evaluated."""
    if "all" in groups or not groups:
        return groups.get("all")
    if any(not group.trained for group in groups.values()):
        return None
    by_step: dict[float, list[float]] = {}
    for group in groups.values():
        for step, loss in zip(group.steps, group.losses, strict=True):
            by_step.setdefault(step, []).append(loss * (group.trained or 0))
    total = sum(group.trained or 0 for group in groups.values())
    steps = sorted(step for step, sums in by_step.items() if len(sums) == len(groups))
    return HeldOutRow(steps, [sum(by_step[step]) / total for step in steps], total)


def _held_out(groups: Mapping[str, HeldOutRow]) -> list[ui.Block]:
    table_rows: list[list[object]] = []
    for name, group in sorted(groups.items(), key=lambda pair: pair[0] == "all"):
        losses = (group.losses[0], min(group.losses), group.losses[-1])
        table_rows.append([name, group.trained, *(f"{loss:.3f}" for loss in losses)])
    head = ["held-out group", "trained tokens", "first", "lowest", "last"]
    return [
        ui.Heading("Held-out loss by group"),
        "Per trained token; a group is a source with reasoning on or off. A group of few tokens "
        "says little.",
        ui.Table(head, table_rows, total="all" in groups),
    ]


def speed(title: str, starts: Sequence[ui.Row], rows: Sequence[ui.Row]) -> ui.Section:
    """Tokens and seconds of each start of the run."""
    steps, tokens = points(rows, "tokens")
    table_rows: list[list[object]] = []
    for start in starts:
        seconds, begin = start["seconds"], start["from_step"]
        known = [t for s, t in zip(steps, tokens, strict=True) if s <= begin]
        read = start["tokens"] - max(known, default=0.0)
        rate = f"{read / seconds:,.0f}" if seconds else None
        span = f"{begin:,} – {start['to_step']:,}"
        table_rows.append([span, start["processes"], f"{seconds:,.1f}", f"{read:,.0f}", rate])
    note = (
        "One line for each time the run was started to its end; evaluation and saving are "
        "included. A start that was killed left no line."
    )
    head = ["steps", "processes", "seconds", "tokens", "tokens/s"]
    return ui.Section(title, [note, ui.Table(head, table_rows)])


# DPO


def _dpo(stats: ui.Row, rows: Sequence[ui.Row]) -> ui.Sections:
    logged = [row for row in rows if math.isfinite(row.get("preference_loss", math.nan))]
    if not logged:
        yield ui.LeftOut("Preference training", "no logged loss is finite")
        return
    yield preferences(stats, logged)
    yield margins(stats, logged)
    yield by_category(stats, logged)


@ui.section("Preference training")
def preferences(stats: ui.Row, rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    first = stats["first_sft"]
    run = [
        ("steps", f"{stats['steps']} of {stats['global_batch']} pairs"),
        ("pairs drawn", f"{stats['pairs_drawn']:,}, {stats['epochs']:.2f} epochs"),
        ("β", f"{stats['beta']:g}"),
        ("first preference loss", f"{stats['first_preference_loss']:.6f} (ln 2 = 0.693147)"),
        (
            "first SFT term",
            f"{first['sum']:.3f} as a sum a completion, {first['mean']:.3f} as a mean a token; "
            f"the {stats['sft_form']} is trained",
        ),
        ("processes", f"{stats['world_size']}, sharding {stats['sharding']}"),
        ("layout", stats["layout"]),
    ]
    yield ui.Definitions(run)
    yield from curves(rows, _PREFERENCE_CURVES)


_PREFERENCE_CURVES = (
    Curve(
        "−log σ(β × margin in log-probability), mean over the pairs of a step.",
        "nats",
        "preference_loss",
    ),
    Curve("Pairs whose chosen gained more.", "share", "accuracy"),
    Curve("Gradient norm before clipping.", "norm", "grad_norm"),
)
_MARGIN_CURVES = (
    Curve("Reward margin, mean over pairs.", "β × nats", "margin"),
    Curve(
        "Change against the reference, mean over pairs: chosen and rejected.",
        "nats",
        {"chosen": "chosen_change", "rejected": "rejected_change"},
    ),
    Curve(
        "Log-probability a completion, mean over pairs; other pairs each step.",
        "nats",
        {"chosen": "chosen_logp", "rejected": "rejected_logp"},
    ),
)


def margins(stats: ui.Row, rows: Sequence[ui.Row]) -> ui.Section:
    """Reward margin, change against the reference, and level of both sides."""
    blocks = curves(rows, _MARGIN_CURVES)
    if stats["chosen_fell"]:
        fall = -stats["lowest_chosen_change_per_token"]
        blocks.append(
            f"The chosen completions became less likely: by {fall:.4f} nats a token at the "
            "lowest. Pairs that differ in a few tokens do that; so does a small SFT weight."
        )
    return ui.Section("Margins and log-probabilities", blocks)


_BY_CATEGORY = {
    "accuracy": "{:.1%}",
    "margin": "{:+.4f}",
    "chosen_change": "{:+.3f}",
    "rejected_change": "{:+.3f}",
}


@ui.section("By category")
def by_category(stats: ui.Row, rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    table_rows: list[list[object]] = []
    for name, pairs in stats["pairs_by_category"].items():
        for row in [row for row in rows if f"{name}/margin" in row][-1:]:
            figures = [form.format(row[f"{name}/{key}"]) for key, form in _BY_CATEGORY.items()]
            table_rows.append([name, pairs, *figures])
    head = ["category", "pairs", "ranked right", "margin", "chosen, change", "rejected, change"]
    yield "At the last logged step, on the pairs it drew; changes in nats a completion."
    yield ui.Table(head, table_rows)
