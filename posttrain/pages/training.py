"""Pages of trained and merged checkpoints; SFT and DPO are here: losses, groups, margins."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from posttrain.lineage import Node, listed_rows, side_rows
from posttrain.pages import rl
from posttrain.report import section as ui
from posttrain.report.curves import Curve, curves, points

# standard errors of a two-sided 95 % interval; evaluation/intervals.py is too heavy for a page
_TWO_SIDED = 1.96


def sections(node: Node) -> ui.Sections:
    """Sections of a trained checkpoint, its speed last, or of one with an adapter merged in."""
    if "check" in node.stats:
        yield merged(node.stats)
        return
    rows = listed_rows(node, "log.jsonl")
    if rows is None:
        yield ui.Section("Loss", missing=f"{node.name} lists no log.jsonl")
        return
    method = node.stats.get("method")
    if method == "dpo":
        finite_rows = [row for row in rows if math.isfinite(row.get("preference_loss", math.nan))]
        if finite_rows:
            yield preferences(node.stats, finite_rows)
            yield margins(node.stats, finite_rows)
            yield by_category(node.stats, finite_rows)
        else:
            yield ui.Section("Preference training", missing="no logged loss is finite")
    elif "num_generations" in node.stats:
        yield from rl.sections(node, node.stats, rows)
    else:
        yield supervised(node.stats, rows)
    if starts := side_rows(node, "speed.jsonl"):
        title = f"Speed of {rl.method_title(method)}" if method else "Speed"
        yield ui.Section(title, _speed(starts, rows))
    else:
        yield ui.Section("Speed", missing=f"{node.name} has no speed.jsonl")


@ui.section("Merged adapter")
def merged(stats: ui.Row) -> Iterator[ui.Block]:
    check = stats["check"]
    yield (
        f"A LoRA adapter merged into its base, as plain weights in {stats['dtype']}. The logits of "
        "base and adapter were compared with those of the written weights on random tokens: root "
        "mean square of the difference, over that of the logits."
    )
    yield ui.Table(
        ["logits", "difference"],
        [
            ["merged weights, from base and adapter", f"{check['difference']:.1g}"],
            ["allowed in this dtype", f"{check['tolerance']:.1g}"],
            ["base alone, from base and adapter", f"{check['effect']:.1g}"],
        ],
    )


def curve_groups(rows: Sequence[ui.Row]) -> dict[str, Sequence[Curve]]:
    """Charts of a log by section; the method shows in the log's keys."""
    keys: set[str] = set()
    for row in rows:
        keys |= row.keys()
    if "preference_loss" in keys:
        return {"Preference training": _PREFERENCE_CURVES, "Margins": _MARGIN_CURVES}
    return rl.CURVE_GROUPS if "rollouts" in keys else {"Training": _SFT_CURVES}


def so_far(rows: Sequence[ui.Row]) -> Iterator[ui.Section]:
    """Sections of a run that has not finished, from its log alone."""
    for title, charts in curve_groups(rows).items():
        yield ui.Section(title, curves(rows, charts))
    yield rl.verdicts(rows)
    yield rl.the_judge(rows)


def tiles(node: Node) -> list[ui.Tile]:
    """Figures that the stage is for, before and after, as the run itself measured them."""
    stats = node.stats
    if check := stats.get("check"):
        share = f"of the logits' size; at most {check['tolerance']:.1g} is allowed"
        return [(f"{check['difference']:.1g}", "difference of the merged model", share)]
    rows = listed_rows(node, "log.jsonl") or []
    if "num_generations" in stats:
        return rl.tiles(stats, rows)
    if stats.get("method") == "dpo":
        return _pair_tiles(stats)
    share = ui.ratio(stats["trained"], stats["tokens"], 0)
    size = f"{stats['tokens'] / 1e6:,.2f} M"
    return [
        *_loss_tile(rows, "eval_loss", "held-out loss"),
        *_loss_tile(rows, "loss", "training loss"),
        (size, "tokens read", f"{stats['steps']:,} steps, {share} trained"),
    ]


def _loss_tile(rows: Sequence[ui.Row], key: str, name: str) -> Iterator[ui.Tile]:
    """Tile of a loss at its first and last logged step; nothing without a logged value.

    With the interval of the last, over batches, where its standard error was logged.
    """
    steps, losses = points(rows, key)
    if len(losses) == 1:
        yield f"{losses[0]:.3f}", name, f"nats a trained token, step {steps[0]:,.0f}"
    elif losses:
        span = f"nats a trained token, steps {steps[0]:,.0f} and {steps[-1]:,.0f}"
        _, errors = points(rows, key.replace("loss", "error"))
        if errors:
            low, high = (losses[-1] + sign * _TWO_SIDED * errors[-1] for sign in (-1, 1))
            span = f"last {low:.3f} … {high:.3f}; {span}"
        yield f"{losses[0]:.3f} → {losses[-1]:.3f}", name, span


def _pair_tiles(stats: ui.Row) -> list[ui.Tile]:
    """Tiles of DPO at the last logged step: pairs ranked right, loss, chosen completions.

    Before training every margin is 0, which counts as half right.
    """
    # imported here: a report needs no numpy
    from posttrain.evaluation.intervals import wilson

    end = stats["last"]
    low, high = wilson(end["accuracy"], stats["global_batch"])
    span = f"({100 * low:.1f} … {100 * high:.1f}), {stats['global_batch']:,} pairs of the last step"
    loss = f"{stats['first_preference_loss']:.3f} → {end['preference_loss']:.3f}"
    change = f"of the rejected {ui.signed(end['rejected_change'], 2)}; {stats['steps']} steps"
    return [
        (f"50.0 → {100 * end['accuracy']:.1f} %", "pairs ranked right", span),
        (loss, "preference loss", f"nats; margin {ui.signed(end['margin'], 3)}"),
        (f"0 → {ui.signed(end['chosen_change'], 2)}", "nats, chosen completions", change),
    ]


# SFT

_LOSSES = {"training loss": "loss", "held-out loss": "eval_loss"}
_SFT_CURVES = (
    Curve("Loss per trained token.", "nats", _LOSSES),
    Curve("Learning rate at each logged step.", "learning rate", "learning_rate"),
    Curve("Gradient norm at each logged step.", "gradient norm", "grad_norm"),
)
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


@ui.section("Training")
def supervised(stats: ui.Row, rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    run = [(name, _rounded(stats[key])) for key, name in _RUN.items() if key in stats]
    yield ui.Table(["run", "value"], run)
    bad = sum(not math.isfinite(loss) for loss in points(rows, "loss")[1])
    if bad:
        yield f"{bad} logged losses are not finite and are not shown."
    yield from curves(rows, _SFT_CURVES)
    if groups := _held_out(rows):
        head = ["held-out group", "first → last", "lowest", "trained tokens"]
        yield "Held-out loss per trained token; a group is a source with reasoning on or off."
        yield ui.Table(head, groups)


def _rounded(value: object) -> object:
    return f"{value:.2g}" if isinstance(value, float) and value < 1 else value


def _held_out(rows: Sequence[ui.Row]) -> list[list[object]]:
    """Rows of the held-out loss over all groups, and by group, `<source>/<on|off>`."""
    keys: set[str] = set()
    for row in rows:
        keys |= {key for key in row if key.startswith("eval_") and key.endswith("loss")}
    table: list[list[object]] = []
    for key in sorted(keys, key=lambda key: (key != "eval_loss", key)):
        stem = key.removesuffix("loss")
        _, losses = points(rows, key)
        _, trained_tokens = points(rows, f"{stem}trained")
        span = " → ".join(f"{loss:.3f}" for loss in dict.fromkeys((losses[0], losses[-1])))
        tokens = int(trained_tokens[-1]) if trained_tokens else None
        name = stem.removeprefix("eval_").rstrip("_") or "all"
        table.append([name, span, f"{min(losses):.3f}", tokens])
    return table


def _speed(starts: Sequence[ui.Row], rows: Sequence[ui.Row]) -> list[ui.Block]:
    """Tokens and seconds of each start of the run that came to its end."""
    table: list[list[object]] = []
    for start in starts:
        seconds = start["seconds"]
        from_step = start["from_step"]
        # tokens of the log count from the first start of the run
        earlier = [row["tokens"] for row in rows if "tokens" in row and row["step"] <= from_step]
        tokens = start["tokens"] - max(earlier, default=0)
        rate = f"{tokens / seconds:,.0f}" if seconds else None
        span = f"{from_step:,} – {start['to_step']:,}"
        table.append([span, start["processes"], f"{seconds:,.1f}", f"{tokens:,.0f}", rate])
    note = "A line for each start; evaluation and saving are included, starts that were killed not."
    return [note, ui.Table(["steps", "processes", "seconds", "tokens", "tokens/s"], table)]


# DPO


@ui.section("Preference training")
def preferences(stats: ui.Row, rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    sft = stats["first_sft"]
    term = f"{sft['sum']:.3f} as a sum a completion, {sft['mean']:.3f} as a mean a token; "
    run = {
        "steps": f"{stats['steps']} of {stats['global_batch']} pairs",
        "pairs drawn": f"{stats['pairs_drawn']:,}, {stats['epochs']:.2f} epochs",
        "β": f"{stats['beta']:g}",
        "first preference loss": f"{stats['first_preference_loss']:.6f} (ln 2 = 0.693147)",
        "first SFT term": f"{term}the {stats['sft_form']} is trained",
        "processes": f"{stats['world_size']}, sharding {stats['sharding']}",
        "layout": stats["layout"],
    }
    yield ui.Table(["run", "value"], [*run.items()])
    yield from curves(rows, _PREFERENCE_CURVES)


def _sides(figure: str) -> dict[str, str]:
    return {side: f"{side}_{figure}" for side in ("chosen", "rejected")}


_PREFERENCE_CURVES = (
    Curve("−log σ(β × margin), mean over the pairs of a step.", "nats", "preference_loss"),
    Curve("Pairs whose chosen gained more.", "share", "accuracy"),
    Curve("Gradient norm before clipping.", "norm", "grad_norm"),
)
_MARGIN_CURVES = (
    Curve("Reward margin, mean over pairs.", "β × nats", "margin"),
    Curve("Change against the reference, mean over pairs.", "nats", _sides("change")),
    Curve("Log-probability a completion, mean over a step's pairs.", "nats", _sides("logp")),
)


@ui.section("Margins and log-probabilities")
def margins(stats: ui.Row, rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    if "fitted_to_pairs" in stats:
        yield f"Fitted to the data. {stats['fitted_to_pairs']}."
    yield from curves(rows, _MARGIN_CURVES)
    if stats["chosen_fell"]:
        fall = -stats["lowest_chosen_change_per_token"]
        yield (
            f"The chosen completions became less likely: by {fall:.4f} nats a token at the "
            "lowest. Pairs that differ in a few tokens do that; so does a small SFT weight."
        )


@ui.section("By category")
def by_category(stats: ui.Row, rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    table_rows: list[list[object]] = []
    for category, pairs in stats["pairs_by_category"].items():
        # the last logged step that drew a pair of the category
        logged = [row for row in rows if f"{category}/margin" in row]
        if logged:
            last_row = logged[-1]
            ranked_right = ui.percent(last_row[f"{category}/accuracy"])
            margin = ui.signed(last_row[f"{category}/margin"], 4)
            chosen = ui.signed(last_row[f"{category}/chosen_change"], 3)
            rejected = ui.signed(last_row[f"{category}/rejected_change"], 3)
            table_rows.append([category, pairs, ranked_right, margin, chosen, rejected])
    head = ["category", "pairs", "ranked right", "margin", "chosen, change", "rejected, change"]
    yield "At the last logged step, on the pairs it drew; changes in nats a completion."
    yield ui.Table(head, table_rows)
