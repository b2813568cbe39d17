"""Supervision by the masks, source by source, and the worst sequences to read; audits' pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from posttrain.audit.limits import FIGURES, share
from posttrain.lineage import Node
from posttrain.pages.artifact import kept_tile, samples_to_read
from posttrain.report import section as ui

ROWS = "supervision.jsonl"
SHOWN_CHARACTERS = 6000
MARKED = "What is highlighted is trained on; the rest is only read."


def audit_sections(node: Node) -> ui.Sections:
    """Sections of an `audit` artifact."""
    yield audited_rows(node.stats["rows"])
    yield ui.Section("Limits that were crossed", node.stats["violations"])
    yield from sections(node)


def audit_tiles(node: Node) -> list[ui.Tile]:
    """Tiles of the crossed limits, the rows, the sequences and the trained tokens."""
    sources: Mapping[str, ui.Row] = node.stats["supervision"]
    sequences = sum(figures["sequences"] for figures in sources.values())
    tokens = sum(figures["tokens"] for figures in sources.values())
    trained = sum(figures["trained"] for figures in sources.values())
    crossed = len(node.stats["violations"])
    return [
        (f"{crossed}", "limits crossed", "" if crossed else "all are kept"),
        kept_tile(node, "rows audited"),
        (f"{sequences:,}", "sequences", f"of {len(sources)} sources"),
        (ui.ratio(trained, tokens) or "–", "of tokens trained", ""),
    ]


def left_out_lines(sources: Mapping[str, ui.Row]) -> Iterator[str]:
    """Yield a line for each source with rows that could not be audited."""
    for source, counts in sources.items():
        if counts["dropped"]:
            yield f"{source}: of {counts['in']:,} rows left out: {ui.counted(counts['dropped'])}"


@ui.section("Rows")
def audited_rows(sources: Mapping[str, ui.Row]) -> Iterator[ui.Block]:
    rows: list[list[object]] = []
    for name, counts in sources.items():
        audited = counts["in"] - sum(counts["dropped"].values())
        rows.append([name, counts["in"], audited, ui.counted(counts["dropped"])])
    yield "Rows of the data as it is on disk; those that cannot be audited, by reason."
    yield ui.Table(["source", "in", "audited", "left out"], rows)


def sections(node: Node) -> ui.Sections:
    """Sections on supervision, of an audit or of an SFT data set."""
    yield supervision(node.stats["supervision"], node.stats["supervision_limits"])
    note = f"{MARKED} The longest and the least trained of every source are always here."
    yield samples_to_read(
        node, "Worst offenders", lambda row, most: _offender(row), examples=ROWS, note=note
    )


@ui.section("Supervision")
def supervision(sources: Mapping[str, ui.Row], limits: Mapping[str, str]) -> Iterator[ui.Block]:
    """A line for each source; columns that are 0 or unknown everywhere are left out."""
    columns: dict[str, str] = {}
    for name, figure in FIGURES.items():
        if figure.column and any(figures[name] for figures in sources.values()):
            limit = f" ({limits[name]})" if name in limits else ""
            columns[name] = f"{figure.column}{limit}"
    rows: list[list[object]] = []
    for source, figures in sources.items():
        trained = ui.percent(share(figures, "trained"))
        row = [source, figures["sequences"], figures["tokens"], trained, figures["longest"]]
        rows.append([*row, *(_count(figures, name) for name in columns)])
    head = ["source", "sequences", "tokens", "trained", "longest", *columns.values()]
    yield (
        "What the loss sees, counted in sequences, each once however often the mixture repeats "
        "it. An end token is trained when the last trained answer closes with one."
    )
    yield ui.Table(head, rows)


def _count(figures: ui.Row, name: str) -> object:
    """Count of a figure, above its share; a count of 0 or None alone."""
    count = figures[name]
    if not count:
        return count
    return ui.TableCell(count, below=ui.plain(ui.percent(share(figures, name))))


def _offender(row: ui.Row) -> ui.Sample:
    means = FIGURES[row["kind"]].means
    times = f"{row['times']:,} times, " if row["times"] is not None else ""
    size = f"{row['tokens']:,} tokens, {row['trained']:,} trained"
    title = (
        ui.Styled(row["source"], "bold"),
        f" · {means} · {times}{size} · ",
        ui.Styled(row["about"], "code"),
    )
    values = {"source": row["source"], "kind": means}
    figures = {"tokens": row["tokens"], "trained": row["trained"]}
    return ui.Sample(title, [marked_segments(row["segments"])], values, figures)


def marked_segments(segments: Sequence[Sequence[Any]]) -> ui.Dialogue:
    """Text whose trained parts are highlighted, from [role, trained, text]; a long one is cut."""
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
