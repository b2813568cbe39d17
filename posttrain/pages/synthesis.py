"""Synthetic rows: how many seeds gave one, why the others did not, and how varied the result is."""

from __future__ import annotations

from collections.abc import Iterator

from posttrain.lineage import Node
from posttrain.pages.artifact import samples_to_read
from posttrain.pages.samples import prompts_by_source
from posttrain.report import section as ui


def sections(node: Node) -> ui.Sections:
    yield from figures_of(node.stats)
    if "skipped" in node.stats:
        yield prompts_by_source(node.stats)
    yield samples_to_read(node, "Seeds and what came of them", _example, few="examples.jsonl")


def tiles(node: Node) -> list[ui.Tile]:
    stats = node.stats
    rows, seeds = stats["rows"]["rows"], stats["seeds"]
    kept = stats["kept_seeds"]["rows"]
    requests, tokens = sum(stats["requests"].values()), sum(stats["tokens"].values())
    return [
        (f"{seeds:,} → {rows:,}", "seeds → rows", f"{kept:,} seeds gave a row"),
        (ui.ratio(kept, seeds) or "–", "yield", "of the seeds that models were asked about"),
        (f"{requests:,}", "completions", f"{tokens / 1e6:,.2f} M tokens written"),
    ]


def figures_of(stats: ui.Row) -> Iterator[ui.Section]:
    """The sections that need no file."""
    yield outcomes(stats)
    yield models(stats)
    yield variety(stats)


@ui.section("What became of the seeds")
def outcomes(stats: ui.Row) -> Iterator[ui.Block]:
    kept = stats["kept_seeds"]["rows"]
    rows: list[list[object]] = [["kept", kept, ui.ratio(kept, stats["seeds"])]]
    for reason, count in stats["dropped_after_requests"].items():
        rows.append([f"dropped: {reason}", count, ui.ratio(count, stats["seeds"])])
    yield ui.Table(["outcome", "seeds", "of all"], rows)
    for name, values in stats["figures"].items():
        yield ui.Table([name, "seeds"], [[value, count] for value, count in values.items()])


@ui.section("Models")
def models(stats: ui.Row) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for role, names in stats["models"].items():
        for name, (seeds, kept) in names.items():
            rows.append([role, name, seeds, kept, ui.ratio(kept, seeds)])
    yield ui.Table(["role", "model", "seeds", "kept", "yield"], rows)
    written = [[role, n, stats["tokens"][role]] for role, n in stats["requests"].items()]
    yield ui.Table(["role", "completions", "tokens written"], written)


@ui.section("Variety")
def variety(stats: ui.Row) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for name, key in (("seeds that were kept", "kept_seeds"), ("rows", "rows")):
        figures = stats[key]
        rows.append(
            [
                name,
                figures["rows"],
                f"{figures['user_turns']:.1f}",
                f"{figures['characters']:,.0f}",
                f"{100 * figures['distinct_ngrams']:.1f} %",
                f"{100 * figures['near_duplicates']:.1f} %",
            ]
        )
    head = ["", "count", "user turns", "characters", "distinct 4-grams", "near-duplicates"]
    yield ui.Table(head, rows)
    yield (
        "Means of a conversation. A near-duplicate shares four fifths of its n-grams with an "
        "earlier one; a low share of distinct 4-grams is one text that returns."
    )


def _example(row: ui.Row, most: int) -> ui.Sample:
    shown = row["rows"][0]["messages"] if "rows" in row else row["messages"]
    each = ui.each(most, len(shown))
    words: list[str | ui.Styled] = []
    for message in shown:
        style = "mark" if message["role"] == "assistant" else ""
        text = f" {ui.shortened(message['content'], each)}\n"
        words += [ui.Styled(f"[{message['role']}]", "faint")]
        words += [ui.Styled(text, style) if style else text]
    if row.get("detail"):
        words.append(ui.Styled(f"{row['outcome']}: {ui.shortened(row['detail'], each)}\n", "bold"))
    title = (ui.Styled(row["outcome"], "bold"), f" · {row['seed']}")
    return ui.Sample(title, [ui.Dialogue(words)], {"outcome": row["outcome"]}, {})
