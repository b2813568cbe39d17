"""What masks teach, source by source, and the worst sequences to read; the page of an audit."""

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
    yield audited_rows(node.stats["rows"])
    yield ui.Section("Limits that were crossed", node.stats["violations"])
    yield from sections(node)


def audit_tiles(node: Node) -> list[ui.Tile]:
    sources: Mapping[str, ui.Row] = node.stats["supervision"]
    names = ("sequences", "tokens", "trained")
    sequences, tokens, trained = (sum(own[name] for own in sources.values()) for name in names)
    crossed = len(node.stats["violations"])
    return [
        (f"{crossed}", "limits crossed", "" if crossed else "all are kept"),
        kept_tile(node, "rows audited"),
        (f"{sequences:,}", "sequences", f"of {len(sources)} sources"),
        (ui.ratio(trained, tokens) or "–", "of tokens trained", ""),
    ]


def left_out_lines(sources: Mapping[str, ui.Row]) -> Iterator[str]:
    """A line for each source that has rows which could not be audited."""
    for source, counts in sources.items():
        if counts["dropped"]:
            yield f"{source}: of {counts['in']:,} rows left out: {ui.counted(counts['dropped'])}"


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
    note = f"{MARKED} The longest and the least trained of every source are always here."
    yield samples_to_read(
        node, "Worst offenders", lambda row, most: _offender(row), few=ROWS, note=note
    )


@ui.section("Supervision")
def supervision(sources: Mapping[str, ui.Row], limits: Mapping[str, str]) -> Iterator[ui.Block]:
    """One source a line; columns that are 0 or unknown everywhere are left out."""
    named = {name: figure.column for name, figure in FIGURES.items() if figure.column}
    shown = [name for name in named if any(own[name] for own in sources.values())]
    rows: list[list[object]] = [
        [name, own["sequences"], own["tokens"], ui.percent(share(own, "trained")), own["longest"]]
        + [_count(own, column) for column in shown]
        for name, own in sources.items()
    ]
    head = ["source", "sequences", "tokens", "trained", "longest"]
    head += [named[name] + (f" ({limits[name]})" if name in limits else "") for name in shown]
    yield (
        "What the loss sees, counted in sequences, each once however often the mixture repeats "
        "it. An end token is trained when the last trained answer closes with one."
    )
    yield ui.Table(head, rows)


def _count(figures: ui.Row, name: str) -> object:
    count = figures[name]
    return ui.TableCell(count, below=ui.plain(ui.percent(share(figures, name)))) if count else count


def _offender(row: ui.Row) -> ui.Sample:
    means = FIGURES[row["kind"]].means
    times = f"{row['times']:,} times, " if row["times"] is not None else ""
    about = f" · {means} · {times}{row['tokens']:,} tokens, {row['trained']:,} trained · "
    title = (ui.Styled(row["source"], "bold"), about, ui.Styled(row["about"], "code"))
    values = {"source": row["source"], "kind": means}
    figures = {"tokens": row["tokens"], "trained": row["trained"]}
    return ui.Sample(title, [marked_segments(row["segments"])], values, figures)


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
