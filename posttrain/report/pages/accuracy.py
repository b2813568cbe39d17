"""An accuracy file, as `benchmarks/tiny_accuracy.py` writes it.

{"prompts": 600, "families": […], "runs": [{"name": "sft", "checkpoint": "9c1e…", "conditions":
 [{"condition": "on", "all": {"accuracy": 0.82, "low": …, "high": …}, "families": {…}, …}]}]}
"""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.report.pages.evaluation import between
from posttrain.report.section import (
    Block,
    Dialogue,
    Digest,
    Fold,
    Heading,
    Interval,
    IntervalChart,
    LeftOut,
    LineChart,
    Row,
    Section,
    Series,
    Styled,
    Table,
    TableCell,
    Tile,
    percent,
    signed,
)


def measured_section(found: Row, *, checkpoint: str) -> Section | LeftOut:
    """Accuracy of one or several checkpoints; `checkpoint` is the digest the page is about."""
    runs: Sequence[Row] = found["runs"]
    own = next((run for run in runs if run["checkpoint"] == checkpoint), None)
    if own is None:
        return LeftOut("Accuracy", "the file given is of other checkpoints than this one")
    intro = (
        f"{found['prompts']:,} held-out prompts of {len(found['families'])} families, greedy, at "
        f"most {found['max_new_tokens']:,} new tokens a completion. Intervals are Wilson's, 95 %. "
        "A budget closes the reasoning after so many tokens and lets the model go on to answer."
    )
    return Section(
        "Accuracy",
        [
            intro,
            _all_families(own),
            *_conditions(runs),
            *_budgets(own),
            Heading("By family"),
            _families(own),
            *(_arms(runs, own) if len(runs) > 1 else ()),
            Heading("Outcomes"),
            _outcomes(own),
            Heading("One episode of each family, reasoning on"),
            *_episodes(own),
        ],
    )


def tiles(found: Row, checkpoint: str) -> list[Tile]:
    """Accuracy with reasoning on and off."""
    run = next((run for run in found["runs"] if run["checkpoint"] == checkpoint), None)
    rows = [(name, _condition(run, name)) for name in ("on", "off")] if run else []
    return [
        (percent(row["all"]["accuracy"]) or "", f"correct, reasoning {name}", between(row["all"]))
        for name, row in rows
        if row is not None
    ]


def _condition(run: Row, name: str) -> Row | None:
    return next((row for row in run["conditions"] if row["condition"] == name), None)


def _title(row: Row) -> str:
    condition: str = row["condition"]
    return f"reasoning {condition}" if condition in ("on", "off") else condition


def _all_families(run: Row) -> IntervalChart:
    rows = [
        Interval(_title(row), row["all"]["low"], row["all"]["accuracy"],
                 row["all"]["high"], "b" if row["condition"] == "off" else "a")
        for row in run["conditions"]
    ]  # fmt: skip
    return IntervalChart(rows, "correct, with 95 % interval", "All families.")


def _conditions(runs: Sequence[Row]) -> list[Block]:
    several = len(runs) > 1
    rows: list[list[object]] = []
    for run in runs:
        for row in run["conditions"]:
            total, completions = row["all"], row["completions"]
            off = row["condition"] == "off"
            rows.append(
                [
                    *([run["name"]] if several else []),
                    _title(row),
                    f"{total['correct']:,} / {total['prompts']:,}",
                    percent(total["accuracy"]),
                    between(total),
                    f"{row['reasoning_tokens']:.1f}",
                    f"{row['answer_tokens']:.1f}",
                    percent(row["truncated"] / total["prompts"]),
                    percent(row["forced"] / completions),
                    percent(row["without_think_tag"] / completions) if off else None,
                ]
            )
    head = [*(["checkpoint"] if several else []), "condition", "correct", "accuracy"]
    head += ["95 % interval", "reasoning tokens", "answer tokens", "truncated"]
    head += ["closed by budget", "adheres to off"]
    return [
        Table(head, rows),
        "Tokens are means over completions. Truncated: episodes with a completion at its limit, "
        "or with too many steps. Adheres to off: completions without a think tag.",
    ]


def _budgets(run: Row) -> list[Block]:
    budgeted = [
        (float(row["condition"].removeprefix("budget ")), 100 * row["all"]["accuracy"])
        for row in run["conditions"]
        if row["condition"].startswith("budget ")
    ]
    if len(budgeted) < 2:
        return []
    x, y = [budget for budget, _ in budgeted], [accuracy for _, accuracy in budgeted]
    series = [Series("closed at the budget", x, y)]
    for name, style in (("on", "b"), ("off", "c")):
        row = _condition(run, name)
        if row is not None:
            level = 100 * row["all"]["accuracy"]
            series.append(Series(f"reasoning {name}", [x[0], x[-1]], [level, level], style))
    caption = "Accuracy as the budget grows, beside free reasoning and none."
    return [LineChart(series, "budget, tokens of reasoning", "correct, %", caption)]


def _families(run: Row) -> Table:
    conditions: Sequence[Row] = run["conditions"]
    rows = [
        [family, conditions[0]["families"][family]["prompts"]]
        + [_heat(row["families"][family]) for row in conditions]
        for family in conditions[0]["families"]
    ]
    head = ["family", "prompts", *map(_title, conditions)]
    return Table(head, rows)


def _heat(cell: Row) -> TableCell:
    return TableCell(percent(cell["accuracy"]), below=between(cell), share=cell["accuracy"])


def _arms(runs: Sequence[Row], own: Row) -> list[Block]:
    """Each other checkpoint minus this one, in points of accuracy."""
    rows: list[list[object]] = []
    for run in runs:
        cells: list[object] = []
        for base in own["conditions"]:
            row = _condition(run, base["condition"])
            if row is None:
                cells.append(None)
            elif run is own:
                cells.append(percent(row["all"]["accuracy"]))
            else:
                change = 100 * (row["all"]["accuracy"] - base["all"]["accuracy"])
                cells.append(signed(change, 1))
        rows.append([run["name"], Digest(run["checkpoint"]), *cells])
    head = ["checkpoint", "digest", *map(_title, own["conditions"])]
    return [
        Heading("Arms"),
        "This checkpoint, and the others as differences from it in percentage points.",
        Table(head, rows),
    ]


def _outcomes(run: Row) -> Table:
    conditions: Sequence[Row] = run["conditions"]
    reasons = dict.fromkeys(reason for row in conditions for reason in row["reasons"])
    rows = [
        [reason.replace("_", " "), *(row["reasons"].get(reason) for row in conditions)]
        for reason in sorted(reasons, key=lambda reason: reason != "correct")
    ]
    return Table(["outcome", *map(_title, conditions)], rows)


def _episodes(run: Row) -> list[Block]:
    row = _condition(run, "on") or run["conditions"][0]
    return [
        Fold(
            (
                Styled(one["family"], "bold"),
                f" · {one['reason'].replace('_', ' ')} · gold {one['gold']}",
            ),
            [Dialogue("\n\n".join([one["prompt"], *one["completions"]]))],
        )
        for one in row["samples"]
    ]
