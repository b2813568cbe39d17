"""What masks teach, source by source, and the worst sequences to read; the page of an audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from posttrain.audit.limits import KIND_TITLES, share
from posttrain.report import section as ui
from posttrain.report.lineage import Node, rows_to_read

ROWS = "supervision.jsonl"
SHOWN_CHARACTERS = 6000
_COLUMNS = {
    "nothing_trained": "nothing trained",
    "end_trained": "end token trained",
    "end_masked": "end token there, untrained",
    "no_end": "no end token",
    "empty_think": "empty trace",
    "cut_trace": "trace cut to a budget",
    "clipped": "end clipped off",
    "empty_answer": "empty answer",
    "think_header": "prompt's think tag trained",
    "turn_tokens": "turn opener or pad trained",
    "prompt_trained": "prompt turn trained",
    "everything_trained": "every token trained",
    "duplicated": "exact copies",
}


def audit_sections(node: Node) -> ui.Sections:
    yield audited_rows(node.stats["rows"])
    yield ui.Section("Limits that were crossed", node.stats["violations"])
    yield from sections(node)


def audit_tiles(node: Node) -> list[ui.Tile]:
    sources: Mapping[str, ui.Row] = node.stats["supervision"]
    names = ("sequences", "tokens", "trained")
    sums = {name: sum(source[name] for source in sources.values()) for name in names}
    crossed = len(node.stats["violations"])
    return [
        (f"{sums['sequences']:,}", "sequences", f"of {len(sources)} sources"),
        (ui.ratio(sums["trained"], sums["tokens"]) or "–", "of tokens trained", ""),
        (f"{crossed}", "limits crossed", "" if crossed else "all are kept"),
    ]


@ui.section("Rows")
def audited_rows(sources: Mapping[str, ui.Row]) -> Iterator[ui.Block]:
    rows = [
        [name, own["in"], own["in"] - sum(own["dropped"].values()), ui.counted(own["dropped"])]
        for name, own in sources.items()
    ]
    yield "Rows of the data as it is on disk; those that cannot be audited, by reason."
    yield ui.Table(["source", "in", "audited", "left out"], rows)


def sections(node: Node) -> ui.Sections:
    yield supervision(node.stats["supervision"], node.stats["supervision_limits"])
    yield rows_to_read(node, ROWS, "Worst offenders", worst)


@ui.section("Supervision")
def supervision(sources: Mapping[str, ui.Row], limits: Mapping[str, str]) -> Iterator[ui.Block]:
    """One source a line; columns that are 0 or unknown everywhere are left out.

    Args:
        limits: of the figures that have one, in words; they stand beside the figures' names.
    """
    shown = [name for name in _COLUMNS if any(figures[name] for figures in sources.values())]
    rows: list[list[object]] = [
        [
            name,
            figures["sequences"],
            figures["tokens"],
            ui.percent(share(figures, "trained")),
            figures["longest"],
            *(_count(figures, column) for column in shown),
        ]
        for name, figures in sources.items()
    ]
    head = ["source", "sequences", "tokens", "trained", "longest"]
    head += [_COLUMNS[name] + (f" ({limits[name]})" if name in limits else "") for name in shown]
    yield (
        "What the loss sees, counted in sequences, each once however often the mixture repeats "
        "it. An end token is trained when the last trained answer closes with one."
    )
    yield ui.Table(head, rows)


def _count(figures: ui.Row, name: str) -> object:
    count = figures[name]
    return ui.TableCell(count, below=ui.plain(ui.percent(share(figures, name)))) if count else count


def worst(rows: Sequence[ui.Row]) -> Iterator[ui.Block]:
    """Excerpts by kind, each behind a line to click on."""
    if rows:
        yield (
            ui.Styled("Highlighted", "mark"),
            " text is trained on; the rest is only read. Long sequences are shown by their "
            "beginning, the first trained token's neighbourhood and their end. Some of these are "
            "as they should be: the longest and the least trained of every source are always here.",
        )
    for kind, title in KIND_TITLES.items():
        own = [row for row in rows if row["kind"] == kind]
        if own:
            yield ui.Heading(title[:1].upper() + title[1:])
        for row in own:
            times = f"{row['times']:,} times, " if row["times"] is not None else ""
            about = f" · {times}{row['tokens']:,} tokens, {row['trained']:,} trained · "
            words = (ui.Styled(row["source"], "bold"), about, ui.Styled(row["about"], "code"))
            yield ui.Fold(words, [marked_segments(row["segments"])])


def marked_segments(segments: Sequence[Sequence[Any]]) -> ui.Dialogue:
    """Text with what is trained highlighted, from [role, trained, text]; a long one is cut."""
    words: list[str | ui.Styled] = []
    room = SHOWN_CHARACTERS
    for role, trained, text in segments:
        if role == "gap":
            words.append(ui.Styled(text, "faint"))
            continue
        words.append(ui.Styled(text[:room], "mark") if trained else text[:room])
        room -= len(text)
        if room <= 0:
            words.append(ui.Styled(f" … {-room:,} characters more and what follows", "faint"))
            break
    return ui.Dialogue(words)
