"""Sections of a judged comparison: wins, ties, losses, and answers to read side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.report.html import Markup, folded, paragraph, table, text
from posttrain.report.lineage import Node, listed_rows
from posttrain.report.page import Page

Row = Mapping[str, Any]
SHOWN, SHOWN_CHARACTERS = 12, 3000
_RATES = {
    "win": "won",
    "tie": "tied",
    "loss": "lost",
    "score": "won + tied / 2",
    "disagree": "orders disagree",
}
_OUTCOMES = {1.0: "won", 0.5: "tied", 0.0: "lost", None: "unjudged"}


def add_win_rate(page: Page, node: Node) -> None:
    """All sections of one `win_rate` artifact."""
    assert node.manifest is not None
    stats = node.manifest.stats
    metrics = json.loads((node.path / "metrics.json").read_text("utf-8"))
    page.add("Win rate", *_figures(metrics["rows"], stats))
    rows = listed_rows(node, "duels.jsonl") or []
    page.add("Answers side by side", *(_duel(row, n == 0) for n, row in enumerate(_spread(rows))))


def headline(node: Node) -> list[tuple[str, str, str]]:
    """Figures for the top of the page."""
    row = json.loads((node.path / "metrics.json").read_text("utf-8"))["rows"][-1]
    if row["score"] is None:
        return []
    return [(_share(row["score"]) or "", "won + tied / 2, per cent", f"{row['duels']:,} pairs")]


def _figures(rows: Sequence[Row], stats: Row) -> list[str]:
    cells = [
        [row["unit"], row["duels"], row["same"], row["unjudged"]]
        + [_share(row[name]) for name in _RATES]
        + [_tokens(row["tokens"])]
        for row in rows
    ]
    head = ["", "pairs", "same answer", "unjudged", *_RATES.values(), "tokens"]
    return [
        paragraph(f"{stats['after']} against {stats['before']}."),
        table(head, cells, numeric=range(1, len(head))),
        paragraph(
            "Every pair of answers is judged in both orders. Won: both orders prefer the new "
            "answer; lost: both prefer the old one; all else is a tie, also where the orders "
            "disagree. The same answer is a tie that nobody judged. Per cent with 95 % intervals, "
            "all samples of a question one cluster; unjudged pairs are in no figure."
        ),
    ]


def _share(found: Row | None) -> str | None:
    if found is None:
        return None
    between = f"{100 * found['low']:.1f}–{100 * found['high']:.1f}"
    return f"{100 * found['value']:.1f} ({between})"


def _tokens(found: Row | None) -> str | None:
    if found is None:
        return None
    between = f"{found['low']:+.1f} … {found['high']:+.1f}"
    return f"{found['a']:.1f} → {found['b']:.1f} ({between})"


def _spread(rows: Sequence[Row]) -> list[Row]:
    """Some of each outcome."""
    found: list[Row] = []
    for outcome in _OUTCOMES:
        found += [row for row in rows if row["outcome"] == outcome][: SHOWN // len(_OUTCOMES)]
    return found


def _duel(row: Row, opened: bool) -> str:
    title = Markup(f"<b>{_OUTCOMES[row['outcome']]}</b> · {text(row['prompt'])}")
    parts = [f'<span class="faint">[asked]</span> {text(_cut(row["asked"]))}\n']
    for name in ("before", "after"):
        parts.append(f'<span class="faint">[{name}]</span> <mark>{text(_cut(row[name]))}</mark>\n')
    for name, where in (("before_first", "old first"), ("after_first", "new first")):
        if name in row:
            said = row[name]["verdict"] or row[name]["reason"]
            parts.append(f'<span class="faint">[{where}]</span> {text(said)}\n')
    return folded(title, f'<pre class="chat">{"".join(parts)}</pre>', opened=opened)


def _cut(value: str) -> str:
    rest = len(value) - SHOWN_CHARACTERS
    return value if rest <= 0 else f"{value[:SHOWN_CHARACTERS]} … {rest:,} characters more"
