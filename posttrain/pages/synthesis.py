"""Synthetic rows: yield of the seeds, reasons of those without a row, variety of the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from posttrain.lineage import Node
from posttrain.pages.artifact import samples_to_read
from posttrain.pages.samples import prompts_by_source
from posttrain.report import section as ui

# kind → what its rows are
KINDS = {
    "rejection": "Completions of prompts that the prompts' grader passes.",
    "genselect": "Questions which of several solutions is right, and answers to them.",
    "continue_chat": "Chats that models carry on for some turns.",
    "translate": "Chat rows in another language.",
    "instructions": "Conversations that keep to constraints, which code verifies.",
    "twin": "Tasks of the same idea as others, with other numbers, names or order of options.",
    "open_question": "Open questions, made from multiple choice.",
    "safety": "Answers to harmful and harmless requests, and pairs of a safe and an unsafe one.",
    "long_documents": "Questions on many documents, of a given length in tokens.",
    "tool_conversation": "Conversations of a user and an agent with tools.",
}
_UNCHECKED = "Completions of prompts, whether a grader passes them or not: a control arm."
# file → what a row of it is, and the stages that read it
_FILES = {
    "rows.jsonl": ("conversations", "build_sft"),
    "pairs.jsonl": ("preference pairs", "build_dpo, build_genrm"),
    "tasks.jsonl": ("tasks of an environment", "sample, profile_prompts, eval"),
}


def sections(node: Node) -> ui.Sections:
    """Sections of a `synthetic_rows` artifact."""
    yield made(node)
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
    # the first of the files decides what is counted as rows
    names = [name.removesuffix(".jsonl") for name in _listed(node)]
    name = names[0] if names else "rows"
    tiles: list[ui.Tile] = [
        (f"{seeds:,} → {rows:,}", f"seeds → {name}", f"{seeds_kept:,} seeds gave some"),
        (ui.ratio(seeds_kept, seeds) or "–", "yield", "of the seeds that were tried"),
    ]
    requests = sum(stats["requests"].values())
    if requests:
        tokens = sum(row["output"] for row in stats["spent"].values())
        tiles.append((f"{requests:,}", "completions", f"{tokens:,} tokens written"))
    planted = stats["planted"]
    share = ui.ratio(sum(planted["dropped"].values()), planted["rows"])
    if share:
        remark = f"of {planted['rows']:,} rows that were spoiled"
        tiles.append((share, "planted bad rows dropped", remark))
    return tiles


def _listed(node: Node) -> dict[str, int | None]:
    """Files of finished rows and their numbers of rows."""
    sizes = {file.path: file.rows for file in node.artifact.files}
    return {name: sizes[name] for name in _FILES if name in sizes}


@ui.section("What was made")
def made(node: Node) -> Iterator[ui.Block]:
    make = node.artifact.config.get("make", {})
    yield _UNCHECKED if make.get("keep") == "any" else KINDS[node.stats["kind"]]
    rows = [[name, count, *_FILES[name]] for name, count in _listed(node).items()]
    yield ui.Table(["file", "rows", "what they are", "read by"], rows)


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
    by_source = stats.get("by_source", {})  # older artifacts have none
    if len(by_source) > 1:
        sources = [[name, n, kept, ui.ratio(kept, n)] for name, (n, kept) in by_source.items()]
        yield ui.Table(["source of the seeds", "seeds", "kept", "yield"], sources)
    for name, values in stats["figures"].items():
        yield ui.Table([name, "seeds"], [[value, count] for value, count in values.items()])


def planned(seeds: int, rows: Sequence[ui.Row], times: Mapping[str, str]) -> ui.Section:
    """Section of a dry run: requests, tokens and cost of each model, and its time in words."""
    if not rows:
        return ui.Section("Plan", [f"{seeds:,} seeds. No model is asked."])
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
        return f"The checks let {passed:,} of {rows:,} planted bad rows pass"
    return f"The checks dropped all of {rows:,} planted bad rows"


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
    yield ui.Table(["role", "completions"], [[*row] for row in stats["requests"].items()])
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
        "characters: 10 / 50 / 90 %",
        "distinct runs of 4 words",
        "near-duplicates",
    ]
    yield ui.Table(head, rows)
    turns = stats["rows"]["turns"]
    if len(turns) > 1:
        yield ui.Table(["user turns", "rows"], [[number, count] for number, count in turns.items()])
    yield (
        "Means of a conversation, and percentiles of its characters. A near-duplicate is nearly "
        "the same as an earlier one (four fifths in common); a low share of distinct runs of words "
        "is one text that returns."
    )


def _example(row: ui.Row, most: int) -> ui.Sample:
    shown = _messages_of(row["rows"][0]) if row.get("rows") else row["messages"]
    each = ui.each(most, len(shown))
    words: list[str | ui.Styled] = []
    for message in shown:
        words += _turn(message, each)
    if row.get("detail"):
        words.append(ui.Styled(f"{row['outcome']}: {ui.shortened(row['detail'], each)}\n", "bold"))
    title = (ui.Styled(row["outcome"], "bold"), f" · {row['seed']}")
    return ui.Sample(title, [ui.Dialogue(words)], {"outcome": row["outcome"]}, {})


def _turn(message: ui.Row, most: int) -> Iterator[str | ui.Styled]:
    """Role of a message, its reasoning faint, its text, and its calls; highlighted if made."""
    style = "" if message["role"] in ("user", "system", "tool", "gold") else "mark"
    yield ui.Styled(f"[{message['role']}]", "faint")
    if reasoning := message.get("reasoning_content"):
        yield ui.Styled(f" {ui.shortened(reasoning, most)}\n", "faint")
    text = f" {ui.shortened(message['content'], most)}\n"
    yield ui.Styled(text, style) if style else text
    for call in message.get("tool_calls", ()):
        called = f"{call['function']['name']} {call['function']['arguments']}"
        yield ui.Styled(f" {ui.shortened(called, most)}\n", "mark")


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
        messages += [{**message, "role": side} for message in row[side]]
    return messages
