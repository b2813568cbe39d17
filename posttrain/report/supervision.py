"""What masks teach, source by source, and the worst sequences to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.audit.titles import TITLES, share
from posttrain.report.html import Markup, folded, paragraph, percent, table, text
from posttrain.report.lineage import Node, listed_rows
from posttrain.report.page import Page
from posttrain.report.samples import marked_text

ROWS = "supervision.jsonl"
_COLUMNS = {
    "nothing_trained": "nothing trained",
    "end_trained": "end token trained",
    "end_masked": "end token there, untrained",
    "no_end": "no end token",
    "empty_think": "empty trace",
    "cut_trace": "trace cut to a budget",
    "clipped": "end clipped off",
    "turn_tokens": "turn opener or pad trained",
    "prompt_trained": "prompt turn trained",
    "everything_trained": "every token trained",
    "duplicated": "exact copies",
}


def add_audit(page: Page, node: Node) -> None:
    """The sections of an `audit` artifact."""
    assert node.manifest is not None
    stats = node.manifest.stats
    rows: list[list[object]] = [
        [name, books["in"], books["in"] - sum(books["dropped"].values()), _reasons(books)]
        for name, books in stats["rows"].items()
    ]
    page.add(
        "Rows",
        paragraph("Rows of the data as it was found; those that cannot be looked at, by reason."),
        table(["source", "in", "looked at", "left out"], rows, numeric={1, 2}),
    )
    crossed = "".join(f"<li>{text(line)}</li>" for line in stats["violations"])
    if crossed:
        page.add("Limits that were crossed", f"<ul>{crossed}</ul>")
    add_supervision(page, node)


def headline(stats: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Tiles of an audit."""
    sources: Mapping[str, Any] = stats["supervision"]
    whole = {name: sum(s[name] for s in sources.values()) for name in ("sequences", "tokens")}
    trained = sum(s["trained"] for s in sources.values())
    number = len(stats["violations"])
    return [
        (f"{whole['sequences']:,}", "sequences", f"of {len(sources)} sources"),
        (percent(trained / whole["tokens"]) if whole["tokens"] else "–", "of tokens trained", ""),
        (f"{number}", "limits crossed", "" if number else "all are kept"),
    ]


def _reasons(books: Mapping[str, Any]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in books["dropped"].items())


def add_supervision(page: Page, node: Node) -> None:
    """The sections "Supervision" and "Worst offenders"."""
    assert node.manifest is not None
    sources: Mapping[str, Any] | None = node.manifest.stats.get("supervision")
    if sources is None:
        page.leave_out("Supervision", f"{node.name} has no stats on supervision")
        return
    page.add(
        "Supervision",
        paragraph(
            "What the loss sees, counted in sequences, each once however often the mixture repeats "
            "it. An end token is trained when the last trained answer closes with one."
        ),
        _figures(sources),
    )
    rows = listed_rows(node, ROWS)
    if rows is None:
        page.leave_out("Worst offenders", f"{node.name} lists no {ROWS}")
    else:
        page.add("Worst offenders", *_worst(rows))


def _figures(sources: Mapping[str, Any]) -> str:
    """One source a line; columns that are 0 or unknown everywhere are left out."""
    shown = [name for name in _COLUMNS if any(figures[name] for figures in sources.values())]
    rows: list[list[object]] = [
        [
            name,
            figures["sequences"],
            figures["tokens"],
            _share(figures, "trained"),
            figures["longest"],
            *(_counted(figures, column) for column in shown),
        ]
        for name, figures in sources.items()
    ]
    head = ["source", "sequences", "tokens", "trained", "longest"]
    head += [_COLUMNS[name] for name in shown]
    return table(head, rows, numeric=range(1, len(head)))


def _share(figures: Mapping[str, Any], name: str) -> str | None:
    part = share(figures, name)
    return None if part is None else percent(part)


def _counted(figures: Mapping[str, Any], name: str) -> Markup | str | None:
    """A count with its share below."""
    count = figures[name]
    if not count:
        return Markup(text(count))
    return Markup(f'{text(count)}<br><span class="faint">{text(_share(figures, name))}</span>')


def _worst(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Excerpts by kind, each behind a line to click on."""
    parts = [
        paragraph(
            Markup('<mark style="background:var(--soft);color:var(--ink)">Highlighted</mark>'),
            " text is trained on; the rest is only read. Long sequences are shown by their "
            "beginning, the first trained token's neighbourhood and their end. Some of these are "
            "as they should be: the longest and the least trained of every source are always here.",
        )
    ]
    for kind, title in TITLES.items():
        own = [row for row in rows if row["kind"] == kind]
        if own:
            parts.append(f"<h3>{text(title[:1].upper() + title[1:])}</h3>")
            parts += [_excerpt(row) for row in own]
    return parts if len(parts) > 1 else []


def _excerpt(row: Mapping[str, Any]) -> str:
    times = f"{row['times']:,} times, " if row["times"] is not None else ""
    about = f"{times}{row['tokens']:,} tokens, {row['trained']:,} trained"
    summary = Markup(
        f"<b>{text(row['source'])}</b> &middot; {text(about)} &middot; "
        f"<code>{text(row['about'])}</code>"
    )
    return folded(summary, f'<pre class="chat">{marked_text(row["segments"])}</pre>')
