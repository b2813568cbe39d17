"""Sections of an accuracy file, as `benchmarks/tiny_accuracy.py` writes it.

{"prompts": 600, "families": […], "runs": [{"name": "sft", "checkpoint": "9c1e…", "conditions":
 [{"condition": "on", "all": {"accuracy": 0.82, "low": …, "high": …}, "families": {…}, …}]}]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.report.charts import Interval, Series, intervals, lines
from posttrain.report.html import (
    Markup,
    figure,
    folded,
    paragraph,
    percent,
    preformatted,
    short,
    table,
    text,
)
from posttrain.report.page import Page

Row = Mapping[str, Any]


def add_accuracy(page: Page, found: Row, *, checkpoint: str) -> None:
    """Accuracy of one or several checkpoints; `checkpoint` is the digest the page is about."""
    runs: Sequence[Row] = found["runs"]
    if all(run["checkpoint"] != checkpoint for run in runs):
        page.leave_out("Accuracy", "the file given is of other checkpoints than this one")
        return
    own = next(run for run in runs if run["checkpoint"] == checkpoint)
    intro = paragraph(
        f"{found['prompts']:,} held-out prompts of {len(found['families'])} families, greedy, at "
        f"most {found['max_new_tokens']:,} new tokens a completion. Intervals are Wilson's, 95 %. "
        "A budget closes the reasoning after so many tokens and lets the model go on to answer."
    )
    page.add(
        "Accuracy",
        intro,
        _overall(own),
        _conditions(runs),
        _budgets(own),
        "<h3>By family</h3>",
        _families(own),
        *(_arms(runs, own) if len(runs) > 1 else ()),
        "<h3>Outcomes</h3>",
        _reasons(own),
        "<h3>One episode of each family, reasoning on</h3>",
        *_samples(own),
    )


def condition_of(run: Row, name: str) -> Row | None:
    """One condition of a run by name."""
    return next((row for row in run["conditions"] if row["condition"] == name), None)


def _overall(run: Row) -> str:
    rows = [
        Interval(_named(row["condition"]), row["all"]["low"], row["all"]["accuracy"],
                 row["all"]["high"], "b" if row["condition"] == "off" else "a")
        for row in run["conditions"]
    ]  # fmt: skip
    return figure(intervals(rows, x="correct, with 95 % interval"), "All families together.")


def _named(condition: str) -> str:
    return f"reasoning {condition}" if condition in ("on", "off") else condition


def _conditions(runs: Sequence[Row]) -> str:
    rows: list[list[object]] = []
    for run in runs:
        for row in run["conditions"]:
            total = row["all"]
            rows.append(
                [
                    *([run["name"]] if len(runs) > 1 else []),
                    _named(row["condition"]),
                    f"{total['correct']:,} / {total['prompts']:,}",
                    percent(total["accuracy"]),
                    f"{percent(total['low'])} – {percent(total['high'])}",
                    f"{row['reasoning_tokens']:.1f}",
                    f"{row['answer_tokens']:.1f}",
                    percent(row["truncated"] / total["prompts"]),
                    percent(row["forced"] / row["completions"]),
                    percent(row["without_think_tag"] / row["completions"])
                    if row["condition"] == "off"
                    else None,
                ]
            )
    head = ["checkpoint"] if len(runs) > 1 else []
    head += ["condition", "correct", "accuracy", "95 % interval", "reasoning tokens"]
    head += ["answer tokens", "truncated", "closed by budget", "adheres to off"]
    first = len(head) - 8
    return table(head, rows, numeric=range(first, len(head))) + paragraph(
        "Tokens are means over completions. Truncated: episodes with a completion at its limit, "
        "or with too many steps. Adheres to off: completions without a think tag."
    )


def _budgets(run: Row) -> str:
    budgeted = [
        (int(row["condition"].removeprefix("budget ")), 100 * row["all"]["accuracy"])
        for row in run["conditions"]
        if row["condition"].startswith("budget ")
    ]
    if len(budgeted) < 2:
        return ""
    x, y = [float(b) for b, _ in budgeted], [accuracy for _, accuracy in budgeted]
    drawn = [Series("closed at the budget", x, y)]
    for name, style in (("on", "b"), ("off", "c")):
        row = condition_of(run, name)
        if row is not None:
            level = 100 * row["all"]["accuracy"]
            drawn.append(Series(f"reasoning {name}", [x[0], x[-1]], [level, level], style))
    chart = lines(drawn, x="budget, tokens of reasoning", y="correct, %")
    return figure(chart, "Accuracy as the budget grows, beside free reasoning and none.")


def _families(run: Row) -> str:
    conditions: Sequence[Row] = run["conditions"]
    rows: list[str] = []
    for family in conditions[0]["families"]:
        cells = "".join(_heat(row["families"][family]) for row in conditions)
        prompts = conditions[0]["families"][family]["prompts"]
        rows.append(f"<tr><td>{text(family)}</td><td class=n>{prompts:,}</td>{cells}</tr>")
    heads = "".join(f'<th class="n">{text(_named(row["condition"]))}</th>' for row in conditions)
    return (
        '<div class="scroll"><table><thead><tr><th>family</th><th class="n">prompts</th>'
        f"{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _heat(cell: Row) -> str:
    where = f"{percent(cell['low'])} – {percent(cell['high'])}"
    return (
        f'<td class="n heat" style="--share:{60 * cell["accuracy"]:.0f}%">'
        f"{text(percent(cell['accuracy']))}<br><small>{text(where)}</small></td>"
    )


def _arms(runs: Sequence[Row], own: Row) -> list[str]:
    """Each other checkpoint minus this one, in points of accuracy."""
    names = [row["condition"] for row in own["conditions"]]
    rows: list[list[object]] = []
    for run in runs:
        cells: list[object] = []
        for name in names:
            base, row = condition_of(own, name), condition_of(run, name)
            if base is None or row is None:
                cells.append(None)
            elif run is own:
                cells.append(percent(row["all"]["accuracy"]))
            else:
                cells.append(
                    f"{100 * (row['all']['accuracy'] - base['all']['accuracy']):+.1f}".replace(
                        "-", "−"
                    )
                )
        rows.append([run["name"], short(run["checkpoint"]), *cells])
    head = ["checkpoint", "digest", *(_named(name) for name in names)]
    return [
        "<h3>Arms</h3>",
        paragraph("This checkpoint, and the others as differences from it in percentage points."),
        table(head, rows, numeric=range(2, len(head))),
    ]


def _reasons(run: Row) -> str:
    conditions: Sequence[Row] = run["conditions"]
    reasons = dict.fromkeys(reason for row in conditions for reason in row["reasons"])
    ordered = sorted(reasons, key=lambda reason: reason != "correct")
    rows = [
        [reason.replace("_", " "), *(row["reasons"].get(reason) for row in conditions)]
        for reason in ordered
    ]
    head = ["outcome", *(_named(row["condition"]) for row in conditions)]
    return table(head, rows, numeric=range(1, len(head)))


def _samples(run: Row) -> list[str]:
    row = condition_of(run, "on") or run["conditions"][0]
    return [
        folded(
            Markup(
                f"<b>{text(one['family'])}</b> &middot; {text(one['reason'].replace('_', ' '))}"
                f" &middot; gold {text(one['gold'])}"
            ),
            preformatted("\n\n".join([one["prompt"], *one["completions"]])),
        )
        for one in row["samples"]
    ]


def headline(found: Row, checkpoint: str) -> list[tuple[str, str, str]]:
    """Tiles: accuracy with reasoning on and off."""
    run = next((run for run in found["runs"] if run["checkpoint"] == checkpoint), None)
    tiles: list[tuple[str, str, str]] = []
    for name in ("on", "off") if run else ():
        row = condition_of(run, name) if run else None
        if row is not None:
            total = row["all"]
            interval = f"{percent(total['low'])} – {percent(total['high'])}"
            tiles.append((percent(total["accuracy"]), f"correct, reasoning {name}", interval))
    return tiles
