"""What masks teach, source by source, and the worst sequences to read; the page of an audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from posttrain.audit.limits import KIND_TITLES, share
from posttrain.report.lineage import Node, rows_to_read
from posttrain.report.section import (
    Block,
    Dialogue,
    Fold,
    Heading,
    Items,
    LeftOut,
    Row,
    Section,
    Styled,
    Table,
    TableCell,
    Tile,
    counted,
    percent,
    plain,
    ratio,
    section,
)

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


def audit_sections(node: Node) -> Iterator[Section | LeftOut]:
    """The page of an `audit` artifact."""
    yield audited_rows(node.stats["rows"])
    violations: Sequence[str] = node.stats["violations"]
    yield Section("Limits that were crossed", [Items(violations)] if violations else [])
    yield from sections(node)


def audit_tiles(node: Node) -> list[Tile]:
    """Sequences, the share of tokens trained, limits crossed."""
    sources: Mapping[str, Row] = node.stats["supervision"]
    sequences, tokens, trained = (
        sum(source[name] for source in sources.values())
        for name in ("sequences", "tokens", "trained")
    )
    crossed = len(node.stats["violations"])
    return [
        (f"{sequences:,}", "sequences", f"of {len(sources)} sources"),
        (ratio(trained, tokens) or "–", "of tokens trained", ""),
        (f"{crossed}", "limits crossed", "" if crossed else "all are kept"),
    ]


@section("Rows")
def audited_rows(sources: Mapping[str, Row]) -> Iterator[Block]:
    """Rows of each source, and why some cannot be audited."""
    rows = [
        [name, own["in"], own["in"] - sum(own["dropped"].values()), counted(own["dropped"])]
        for name, own in sources.items()
    ]
    yield "Rows of the data as it is on disk; those that cannot be audited, by reason."
    yield Table(["source", "in", "audited", "left out"], rows)


def sections(node: Node) -> Iterator[Section | LeftOut]:
    """The sections "Supervision" and "Worst offenders"."""
    sources: Mapping[str, Row] | None = node.stats.get("supervision")
    if sources is None:
        yield LeftOut("Supervision", f"{node.name} has no stats on supervision")
        return
    yield supervision(sources, node.stats.get("supervision_limits"))
    yield rows_to_read(node, ROWS, "Worst offenders", worst)


@section("Supervision")
def supervision(
    sources: Mapping[str, Row], limits: Mapping[str, str] | None = None
) -> Iterator[Block]:
    """One source a line; columns that are 0 or unknown everywhere are left out.

    Args:
        limits: of the figures that have one, in words; they stand beside the figures' names.
    """
    limits = limits or {}
    shown = [name for name in _COLUMNS if any(figures[name] for figures in sources.values())]
    rows: list[list[object]] = [
        [
            name,
            figures["sequences"],
            figures["tokens"],
            percent(share(figures, "trained")),
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
    yield Table(head, rows)


def _count(figures: Row, name: str) -> object:
    """A count with its share below."""
    count = figures[name]
    return TableCell(count, below=plain(percent(share(figures, name)))) if count else count


def worst(rows: Sequence[Row]) -> Iterator[Block]:
    """Excerpts by kind, each behind a line to click on."""
    if rows:
        yield (
            Styled("Highlighted", "mark"),
            " text is trained on; the rest is only read. Long sequences are shown by their "
            "beginning, the first trained token's neighbourhood and their end. Some of these are "
            "as they should be: the longest and the least trained of every source are always here.",
        )
    for kind, title in KIND_TITLES.items():
        own = [row for row in rows if row["kind"] == kind]
        if own:
            yield Heading(title[:1].upper() + title[1:])
        for row in own:
            times = f"{row['times']:,} times, " if row["times"] is not None else ""
            about = f" · {times}{row['tokens']:,} tokens, {row['trained']:,} trained · "
            words = (Styled(row["source"], "bold"), about, Styled(row["about"], "code"))
            yield Fold(words, [marked_segments(row["segments"])])


def marked_segments(segments: Sequence[Sequence[Any]]) -> Dialogue:
    """Text with what is trained highlighted, from [role, trained, text]; a long one is cut."""
    words: list[str | Styled] = []
    room = SHOWN_CHARACTERS
    for role, trained, text in segments:
        if role == "gap":
            words.append(Styled(text, "faint"))
            continue
        words.append(Styled(text[:room], "mark") if trained else text[:room])
        room -= len(text)
        if room <= 0:
            words.append(Styled(f" … {-room:,} characters more and what follows", "faint"))
            break
    return Dialogue(words)
