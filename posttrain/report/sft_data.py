"""Sections of an SFT data set: mixture, drops, lengths, reasoning control, packing, samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.report.charts import Bar, bars
from posttrain.report.html import (
    Markup,
    bar,
    figure,
    folded,
    paragraph,
    percent,
    signed_percent,
    table,
    text,
)
from posttrain.report.lineage import Node, listed_rows
from posttrain.report.page import Page

SHOWN_SAMPLES = 12
SHOWN_CHARACTERS = 6000
Facts = Mapping[str, Any]


def add_sft_data(page: Page, node: Node) -> None:
    """All sections of one `sft_data` artifact; each is left out, and said to be, without facts."""
    assert node.manifest is not None
    facts = node.manifest.facts
    for title, needed, write in (
        ("Mixture", ("sources",), _mixture),
        ("Drops by source", ("sources",), _drops),
        ("Lengths", ("histograms",), _lengths),
        ("Reasoning control", ("control", "histograms"), _control),
        ("Packing", ("splits", "capacity", "histograms"), _packing),
    ):
        missing = [name for name in needed if name not in facts]
        if missing:
            page.leave_out(title, f"{node.name} has no facts on {', '.join(missing)}")
        else:
            page.add(title, *write(facts))
    rows = listed_rows(node, "samples.jsonl")
    if rows is None:
        page.leave_out("Sample conversations", f"{node.name} lists no samples.jsonl")
    else:
        page.add("Sample conversations", *_samples(rows))


def _mixture(facts: Facts) -> list[str]:
    sources: Mapping[str, Any] = facts["sources"]
    largest = max((s["shares"]["tokens"] for s in sources.values()), default=1.0)
    rows: list[list[object]] = []
    for name, source in sources.items():
        asked, got, shares = source["requested"], source["realised"], source["shares"]
        rows.append(
            [
                name,
                _asked(asked),
                None if asked is None else signed_percent(asked["difference"]),
                f"{got['epochs']:.2f}",
                got["rows"],
                got["tokens"],
                got["trained"],
                *(percent(shares[unit]) for unit in ("rows", "tokens", "trained")),
                bar(shares["tokens"], of=largest),
            ]
        )
    sums = [sum(s["realised"][u] for s in sources.values()) for u in ("rows", "tokens", "trained")]
    rows.append(["all", "", "", "", *sums, "", "", "", ""])
    head = ["source", "asked for", "off by", "epochs", "rows", "tokens", "trained"]
    head += ["% rows", "% tokens", "% trained", ""]
    return [
        paragraph(
            "What the recipe asked for, and what was realised; repeats over epochs count. "
            "“Off by” is the relative difference in the unit asked for."
        ),
        table(head, rows, numeric=range(1, 10), total=True),
    ]


def _asked(asked: Mapping[str, Any] | None) -> str:
    if asked is None:
        return "each once"
    share = "" if asked["share"] is None else f" ({percent(asked['share'])})"
    return f"{asked['amount']:,.0f} {asked['unit']}{share}"


def _drops(facts: Facts) -> list[str]:
    sources: Mapping[str, Any] = facts["sources"]
    reasons = sorted({reason for s in sources.values() for reason in s["dropped"]})
    head = ["source", "in", "kept", "held out", "dropped"]
    if len(reasons) <= 5:
        rows: list[list[object]] = [
            [*_books(name, s), *(s["dropped"].get(reason, 0) or None for reason in reasons)]
            for name, s in sources.items()
        ]
        totals = [sum(s["dropped"].get(r, 0) for s in sources.values()) for r in reasons]
        rows.append([*_all_books(sources), *totals])
        counted = table([*head, *reasons], rows, numeric=range(1, 5 + len(reasons)), total=True)
    else:
        rows = [[*_books(name, s), _by_reason(s["dropped"])] for name, s in sources.items()]
        rows.append([*_all_books(sources), ""])
        counted = table([*head, "by reason"], rows, numeric=range(1, 5), total=True)
    lost = {name: s["sequences_lost"] for name, s in sources.items() if s.get("sequences_lost")}
    return [
        paragraph(
            "Rows. Kept includes those held out for evaluation; not_sampled are rows that the "
            "mixture did not need."
        ),
        counted,
        _lost_sequences(lost),
    ]


def _books(name: str, source: Mapping[str, Any]) -> list[object]:
    dropped = sum(source["dropped"].values())
    return [name, source["in"], source["kept"], source["held_out"], dropped]


def _all_books(sources: Mapping[str, Any]) -> list[object]:
    columns = zip(*(_books(name, s)[1:] for name, s in sources.items()), strict=True)
    return ["all", *(sum(int(str(value)) for value in column) for column in columns)]


def _by_reason(dropped: Mapping[str, int]) -> str:
    ordered = sorted(dropped.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{reason} {number:,}" for reason, number in ordered if number)


def _lost_sequences(lost: Mapping[str, Mapping[str, int]]) -> str:
    if not lost:
        return ""
    rows = [[name, _by_reason(reasons)] for name, reasons in lost.items()]
    return paragraph("Sequences lost from conversations that were kept or dropped:") + table(
        ["source", "sequences"], rows
    )


def _lengths(facts: Facts) -> list[str]:
    histogram: Sequence[Mapping[str, int]] = facts["histograms"]["length"]
    if not histogram:
        return []
    first, last = histogram[0]["up_to"], histogram[-1]["up_to"]
    by_bin = {row["up_to"]: row for row in histogram}
    empty = {"sequences": 0, "trained": 0, "untrained": 0}
    bins = [first << k for k in range((last // first).bit_length())]
    rows = [(f"≤ {size:,}", by_bin.get(size, empty)) for size in bins]
    return [
        figure(
            bars(
                [Bar(label, [row["sequences"]]) for label, row in rows],
                x="length of a sequence, tokens",
                y="sequences",
            ),
            "Sequences of the training split by length; each bin reaches from half its label.",
        ),
        figure(
            bars(
                [Bar(label, [row["trained"], row["untrained"]]) for label, row in rows],
                names=("trained", "not trained"),
                x="length of a sequence, tokens",
                y="tokens",
            ),
            "The same bins by the tokens they hold: those in the loss, and those only read.",
        ),
    ]


def _control(facts: Facts) -> list[str]:
    sources: Mapping[str, Any] = facts.get("sources", {})
    rows: list[list[object]] = [
        [name, *_control_row(source["control"])] for name, source in sources.items()
    ]
    rows.append(["all", *_control_row(facts["control"])])
    head = ["source", "records with reasoning", "stripped", "share"]
    head += ["traces", "cut to a budget", "share", "too short to cut"]
    parts = [
        paragraph(
            "Reasoning is switched off for some records, and some traces are cut to a budget, "
            "chosen by a keyed hash of the record's id. Counted before the mixture is drawn."
        ),
        table(head, rows, numeric=range(1, 8), total=True),
    ]
    budgets: Sequence[tuple[int, int]] = facts["histograms"]["budgets"]
    if budgets:
        drawn = [Bar(label, [number]) for label, number in _binned(budgets)]
        chart = bars(drawn, x="budget, tokens of reasoning kept", y="traces")
        parts.append(figure(chart, "Budgets of the traces that were cut."))
    return parts


def _control_row(control: Mapping[str, int]) -> list[object]:
    reasoned, stripped = control.get("reasoned", 0), control.get("stripped", 0)
    traces, cut = control.get("traces", 0), control.get("truncated", 0)
    return [
        reasoned,
        stripped,
        percent(stripped / reasoned, 2) if reasoned else None,
        traces,
        cut,
        percent(cut / traces, 2) if traces else None,
        control.get("too_short", 0),
    ]


def _binned(budgets: Sequence[tuple[int, int]], most: int = 12) -> list[tuple[str, int]]:
    """Few budgets one bar each, many by powers of two."""
    if len(budgets) <= most:
        return [(f"{budget:,}", number) for budget, number in budgets]
    counts: dict[int, int] = {}
    for budget, number in budgets:
        power = budget.bit_length() - 1
        counts[power] = counts.get(power, 0) + number
    bins = range(min(counts), max(counts) + 1)
    return [(f"{1 << k:,} – {(2 << k) - 1:,}", counts.get(k, 0)) for k in bins]


def _packing(facts: Facts) -> list[str]:
    groups: Mapping[str, Any] = facts.get("eval_groups", {})
    named = {**facts["splits"], **{f"  {name}": split for name, split in groups.items()}}
    rows: list[list[object]] = [
        [
            Markup(("&emsp;" if name.startswith(" ") else "") + text(name.strip())),
            split["packs"],
            split["sequences"],
            split["tokens"],
            percent(split["trained"] / split["tokens"]) if split["tokens"] else None,
            percent(split["fill"], 2),
            f"{split['sequences_per_pack']:.1f}",
            split["longest"],
        ]
        for name, split in named.items()
    ]
    head = ["split", "packs", "sequences", "tokens", "trained", "fill"]
    head += ["sequences a pack", "longest"]
    parts = [
        paragraph(f"Packs of {facts['capacity']:,} tokens."),
        table(head, rows, numeric=range(1, 8)),
    ]
    fills: Sequence[int] = facts["histograms"]["fill_percent"]
    if sum(fills):
        chart = bars(_fill_bars(fills), x="fill, rounded down to whole percent", y="packs")
        parts.append(figure(chart, "How full the packs of the training split are."))
    return parts


def _fill_bars(fills: Sequence[int]) -> list[Bar]:
    """Single percents from 90 on; where many packs are emptier than that, steps of ten."""
    if sum(fills[:90]) <= 0.1 * sum(fills):
        return [Bar("< 90 %", [sum(fills[:90])])] + [
            Bar(f"{k} %", [fills[k]]) for k in range(90, 101)
        ]
    tens = [sum(fills[k : k + 10]) for k in range(0, 100, 10)] + [fills[100]]
    return [Bar(f"{10 * k} %", [number]) for k, number in enumerate(tens)]


def _samples(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Samples of as many sources as there is room for, one of each in turn."""
    by_source: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_source.setdefault(row["source"], []).append(row)
    turns = max((len(some) for some in by_source.values()), default=0)
    dealt = [some[k] for k in range(turns) for some in by_source.values() if k < len(some)]
    chats = [_sample(row, opened=place == 0) for place, row in enumerate(dealt[:SHOWN_SAMPLES])]
    key = Markup('<mark style="background:var(--soft);color:var(--ink)">Highlighted</mark>')
    note = paragraph(key, " text is trained on; the rest is only read.")
    return [note, *chats] if chats else []


def _sample(row: Mapping[str, Any], *, opened: bool) -> str:
    pieces: list[str] = []
    room = SHOWN_CHARACTERS
    for _, trained, words in row["segments"]:
        shown = text(words[:room])
        pieces.append(f"<mark>{shown}</mark>" if trained else shown)
        room -= len(words)
        if room <= 0:
            pieces.append(
                f'<span class="faint"> … {-room:,} characters more and what follows</span>'
            )
            break
    budget = f", cut to {row['budget']} tokens" if row["budget"] is not None else ""
    about = f"turn {row['turn']}, reasoning {row['reasoning']}{budget}, {row['tokens']:,} tokens"
    summary = Markup(
        f"<b>{text(row['source'])}</b> &middot; {text(about)} &middot; "
        f"<code>{text(row['record_id'][:12])}</code>"
    )
    return folded(summary, f'<pre class="chat">{"".join(pieces)}</pre>', opened=opened)
