"""Sections of a checkpoint, by its method; SFT's are here: loss, held-out loss by group, speed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.report.charts import HALF, Series, lines, spark
from posttrain.report.dpo import add_dpo
from posttrain.report.dpo import headline as dpo_headline
from posttrain.report.genrm import add_genrm
from posttrain.report.group_training import headline as group_headline
from posttrain.report.html import Markup, figure, paragraph, percent, stats_list, table
from posttrain.report.lineage import Node, listed_rows
from posttrain.report.log_charts import points
from posttrain.report.page import Page
from posttrain.report.rlhf import add_rlhf

Row = Mapping[str, Any]


def add_training(page: Page, node: Node) -> None:
    """Run, loss and speed of one `checkpoint` artifact."""
    assert node.manifest is not None
    rows = listed_rows(node, "log.jsonl")
    if rows is None:
        page.leave_out("Loss", f"{node.name} lists no log.jsonl")
        return
    stats = node.manifest.stats
    method = stats.get("method")
    if method == "dpo":
        add_dpo(page, stats, rows)
    elif method == "genrm":
        add_genrm(page, node, stats, rows)
    elif "num_generations" in stats:
        add_rlhf(page, node, stats, rows)
    else:
        page.add("Training", _run(stats), *_curves(rows), *_held_out(rows))
    speeds = node.path / "speed.jsonl"
    if not speeds.is_file():
        page.leave_out("Speed", f"{node.name} has no speed.jsonl")
        return
    starts = [json.loads(line) for line in speeds.read_text("utf-8").splitlines()]
    page.add(f"Speed of {method.upper()}" if method else "Speed", *_speed(starts, rows))


def _run(stats: Row) -> str:
    named = {
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
    pairs = [(name, _shown(stats[key])) for key, name in named.items() if key in stats]
    return stats_list(pairs) if pairs else ""


def _shown(value: object) -> object:
    return f"{value:.2g}" if isinstance(value, float) and value < 1 else value


@dataclass(frozen=True, slots=True)
class Group:
    """Held-out loss of one group over the run. `trained`: tokens it was measured on, if logged."""

    steps: list[float]
    losses: list[float]
    trained: int | None


def eval_groups(rows: Sequence[Row]) -> dict[str, Group]:
    """Held-out loss by group, named `<source>/<on|off>`; "all" is the one over all groups."""
    found: dict[str, Group] = {}
    for key in sorted({key for row in rows for key in row}):
        if key.startswith("eval_") and key.endswith("loss"):
            stem = key.removesuffix("loss")
            _, counts = points(rows, f"{stem}trained")
            name = stem.removeprefix("eval_").rstrip("_") or "all"
            found[name] = Group(*points(rows, key), int(counts[-1]) if counts else None)
    return found


def _curves(rows: Sequence[Row]) -> list[str]:
    steps, losses = points(rows, "loss")
    if not any(math.isfinite(loss) for loss in losses):
        return []
    drawn = [Series("training loss", steps, losses)]
    whole = _overall(eval_groups(rows))
    if whole and any(math.isfinite(loss) for loss in whole.losses):
        drawn.append(Series("held-out loss", whole.steps, whole.losses, "b"))
    bad = sum(not math.isfinite(loss) for loss in losses)
    note = f" {bad} logged losses are not finite and are not drawn." if bad else ""
    parts = [figure(lines(drawn, x="step", y="loss"), f"Loss per trained token, in nats.{note}")]
    small: list[str] = []
    for key, name in (("learning_rate", "learning rate"), ("grad_norm", "gradient norm")):
        x, y = points(rows, key)
        if any(math.isfinite(value) and value for value in y):
            chart = lines([Series(name, x, y)], x="step", y=name, width=HALF)
            small.append(figure(chart, f"{name.capitalize()} at each logged step."))
    parts.append(f'<div class="pair">{"".join(small)}</div>')
    return parts


def _overall(groups: Mapping[str, Group]) -> Group | None:
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
    return Group(steps, [sum(by_step[step]) / total for step in steps], total)


def _held_out(rows: Sequence[Row]) -> list[str]:
    groups = eval_groups(rows)
    finite = [v for group in groups.values() for v in group.losses if math.isfinite(v)]
    highest = max(finite, default=0.0)
    table_rows: list[list[object]] = [
        [
            name,
            group.trained,
            *(f"{loss:.3f}" for loss in (group.losses[0], min(group.losses), group.losses[-1])),
            Markup(spark(f"{name} over the run", group.losses, highest=highest)),
        ]
        for name, group in sorted(groups.items(), key=lambda pair: pair[0] == "all")
    ]
    if not table_rows:
        return []
    head = ["held-out group", "trained tokens", "first", "lowest", "last", "over the run, from 0"]
    return [
        "<h3>Held-out loss by group</h3>",
        paragraph(
            "Per trained token; a group is a source with reasoning on or off. All curves share "
            "one scale. A group of few tokens says little."
        ),
        table(head, table_rows, numeric={1, 2, 3, 4}, total="all" in groups),
    ]


def _speed(starts: Sequence[Row], rows: Sequence[Row]) -> list[str]:
    steps, tokens = points(rows, "tokens")
    table_rows: list[list[object]] = []
    for start in starts:
        seconds = start["seconds"]
        before = max(
            (t for s, t in zip(steps, tokens, strict=True) if s <= start["from_step"]), default=0.0
        )
        read = start["tokens"] - before
        table_rows.append(
            [
                f"{start['from_step']:,} – {start['to_step']:,}",
                start["processes"],
                f"{seconds:,.1f}",
                f"{read:,.0f}",
                f"{read / seconds:,.0f}" if seconds else None,
            ]
        )
    return [
        paragraph(
            "One line for each time the run was started to its end; evaluation and saving are "
            "included. A start that was killed left no line."
        ),
        table(
            ["steps", "processes", "seconds", "tokens", "tokens/s"],
            table_rows,
            numeric={1, 2, 3, 4},
        ),
    ]


def headline(stats: Row) -> list[tuple[str, str, str]]:
    """Tiles of a checkpoint."""
    if stats.get("method") == "dpo":
        return dpo_headline(stats)
    if "num_generations" in stats:
        return group_headline(stats)
    found: list[tuple[str, str, str]] = []
    if stats.get("train_loss") is not None:
        found.append((f"{stats['train_loss']:.3f}", "last training loss", "nats per trained token"))
    if stats.get("tokens") and "steps" in stats:
        share = percent(stats["trained"] / stats["tokens"], 0)
        remark = f"{stats['steps']:,} steps, {share} trained"
        found.append((f"{stats['tokens'] / 1e6:,.2f} M", "tokens read", remark))
    return found
