"""Synthetic rows: yield of the seeds, reasons of those without a row, variety of the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from posttrain.lineage import Node
from posttrain.pages.artifact import samples_to_read
from posttrain.pages.samples import prompts_by_source
from posttrain.report import section as ui


def sections(node: Node) -> ui.Sections:
    """Sections of a `synthetic_rows` artifact."""
    yield from figures_of(node.stats)
    if "skipped" in node.stats:
        yield prompts_by_source(node.stats)
    title = "Seeds and what came of them"
    yield samples_to_read(node, title, _example, examples="examples.jsonl")


def tiles(node: Node) -> list[ui.Tile]:
    """Tiles of the seeds, the yield, the requests, and the test of the checks."""
    stats = node.stats
    seeds = stats["seeds"]
    rows = stats["rows"]["rows"]
    seeds_kept = stats["kept_seeds"]["rows"]
    requests = sum(stats["requests"].values())
    tokens = sum(stats["tokens"].values())
    planted = stats["planted"]
    dropped = sum(planted["dropped"].values())
    planted_tile = (
        ui.ratio(dropped, planted["rows"]) or "–",
        "planted bad rows dropped",
        f"of {planted['rows']:,} rows that were spoiled",
    )
    return [
        (f"{seeds:,} → {rows:,}", "seeds → rows", f"{seeds_kept:,} seeds gave a row"),
        (ui.ratio(seeds_kept, seeds) or "–", "yield", "of the seeds that were tried"),
        (f"{requests:,}", "completions", f"{tokens / 1e6:,.2f} M tokens written"),
        planted_tile,
    ]


def figures_of(stats: ui.Row) -> Iterator[ui.Section]:
    """Sections that need no file."""
    yield outcomes(stats)
    yield planted_rows(stats)
    yield models(stats)
    yield variety(stats)


@ui.section("What became of the seeds")
def outcomes(stats: ui.Row) -> Iterator[ui.Block]:
    seeds_kept = stats["kept_seeds"]["rows"]
    rows: list[list[object]] = [["kept", seeds_kept, ui.ratio(seeds_kept, stats["seeds"])]]
    for reason, count in stats["dropped_after_requests"].items():
        rows.append([f"dropped: {reason}", count, ui.ratio(count, stats["seeds"])])
    yield ui.Table(["outcome", "seeds", "of all"], rows)
    for name, values in stats["figures"].items():
        yield ui.Table([name, "seeds"], [[value, count] for value, count in values.items()])


def planned(seeds: int, rows: Sequence[ui.Row], times: Mapping[str, str]) -> ui.Section:
    """Section of a dry run: requests, tokens and cost of each model, and its time in words."""
    head = ["role", "model", "seeds", "completions", "prompt tokens", "written", "cost"]
    keys = ("role", "model", "seeds", "completions", "input", "output", "money")
    table = ui.Table(head, [[row[key] for key in keys] for row in rows])
    note = (
        f"{seeds:,} seeds. Completions, tokens written and cost are at most; prompts of later "
        "rounds count as long as those of the first. Planted rows ask their judge again."
    )
    return ui.Section("Plan", [table, note, *(f"{name}: {time}" for name, time in times.items())])


def planted_line(rows: int, passed: int) -> str:
    """Sentence on the planted bad rows, of which `passed` passed all checks."""
    if passed == rows:
        return f"NO CHECK FOUND any of {rows:,} planted bad rows: none of these rows can be trusted"
    if passed:
        return f"the checks let {passed:,} of {rows:,} planted bad rows pass"
    return f"the checks dropped all of {rows:,} planted bad rows"


@ui.section("Planted bad rows")
def planted_rows(stats: ui.Row) -> Iterator[ui.Block]:
    planted = stats["planted"]
    if not planted["rows"]:
        yield "No row was spoiled to see whether the checks drop it."
        return
    passed = planted["rows"] - sum(planted["dropped"].values())
    yield (ui.Styled(planted_line(planted["rows"], passed), "bold"), ".")
    rows: list[list[object]] = []
    for reason, count in planted["dropped"].items():
        rows.append([f"dropped: {reason}", count, ui.ratio(count, planted["rows"])])
    rows.append(["passed every check", passed, None])
    yield ui.Table(["outcome", "planted rows", "of all"], rows)
    yield (
        "Finished rows of which one answer was replaced by a bad one and put through the same "
        "checks. They are in no file of rows."
    )
    for name, values in stats["figures"].items():
        if name.startswith("judge") and set(values) == {"yes"}:
            yield f"{name}: the judge said yes to all of {values['yes']:,} questions."


@ui.section("Models")
def models(stats: ui.Row) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for role, names in stats["models"].items():
        for name, (seeds, seeds_kept) in names.items():
            rows.append([role, name, seeds, seeds_kept, ui.ratio(seeds_kept, seeds)])
    if not rows:
        yield "No model was asked."
        return
    yield ui.Table(["role", "model", "seeds", "kept", "yield"], rows)
    written = [[role, n, stats["tokens"][role]] for role, n in stats["requests"].items()]
    yield ui.Table(["role", "completions", "tokens written"], written)
    spent = [
        [name, row["input"], row["output"], row["money"]] for name, row in stats["spent"].items()
    ]
    yield ui.Table(["model", "prompt tokens", "tokens written", "cost"], spent)


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
                " / ".join(f"{length:,}" for length in figures["lengths"]),
                f"{100 * figures['distinct_ngrams']:.1f} %",
                f"{100 * figures['near_duplicates']:.1f} %",
            ]
        )
    head = [
        "",
        "count",
        "user turns",
        "characters",
        "10 / 50 / 90 %",
        "distinct 4-grams",
        "near-duplicates",
    ]
    yield ui.Table(head, rows)
    turns = stats["rows"]["turns"]
    yield ui.Table(["user turns", "rows"], [[number, count] for number, count in turns.items()])
    yield (
        "Means of a conversation, and percentiles of its characters. A near-duplicate shares four "
        "fifths of its n-grams with an earlier one; a low share of distinct 4-grams is one text "
        "that returns."
    )


def _example(row: ui.Row, most: int) -> ui.Sample:
    shown = _messages_of(row["rows"][0]) if row.get("rows") else row["messages"]
    each = ui.each(most, len(shown))
    words: list[str | ui.Styled] = []
    for message in shown:
        style = "" if message["role"] in ("user", "system") else "mark"
        text = f" {ui.shortened(message['content'], each)}\n"
        words += [ui.Styled(f"[{message['role']}]", "faint")]
        words += [ui.Styled(text, style) if style else text]
    if row.get("detail"):
        words.append(ui.Styled(f"{row['outcome']}: {ui.shortened(row['detail'], each)}\n", "bold"))
    title = (ui.Styled(row["outcome"], "bold"), f" · {row['seed']}")
    return ui.Sample(title, [ui.Dialogue(words)], {"outcome": row["outcome"]}, {})


def _messages_of(row: ui.Row) -> list[ui.Row]:
    """Messages to read of a chat row, a preference row or a task."""
    if "messages" in row:
        return row["messages"]
    if "question" in row:
        gold = row.get("gold") or row.get("metadata")
        return [
            {"role": "user", "content": row["question"]},
            {"role": "gold", "content": str(gold)},
        ]
    messages = [*row["prompt"]]
    for side in ("chosen", "rejected"):
        messages += [{"role": side, "content": message["content"]} for message in row[side]]
    return messages
