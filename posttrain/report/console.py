"""Sections printed on the console with rich: the figures of a page, charts as tables of numbers.

Control characters of data and models are replaced: none may steer the terminal.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Iterator

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from posttrain.jsontext import printable
from posttrain.report import section as ui

_STYLES = {"": "", "bold": "bold", "faint": "dim", "code": "", "mark": "green"}
# characters of width that a text needs at least to be read in a table
_MIN_TEXT_WIDTH = 12
# neighbours of one style alternate between two shades, so that tokens can be told apart
_SHADES = {"mark": ("green", "bright_green"), "": ("bright_black", "white")}


def open_console() -> Console:
    """Open a console as wide as the terminal; without a terminal, as wide as the widest table."""
    width = None if sys.stdout.isatty() else 180
    # a name of data or of a folder may look like markup
    return Console(width=width, markup=False, emoji=False, highlight=False)


def print_sections(
    console: Console, sections: Iterable[ui.Section], *, charts: bool = True
) -> None:
    """Print each section that has content: its title, then its blocks.

    Args:
        charts: print charts too, as tables of their numbers.
    """
    for section in sections:
        if section.blocks:
            console.print(Text(printable(section.title), "bold"))
            for block in section.blocks:
                if charts or not isinstance(block, ui.Chart):
                    _print_block(console, block)


def _print_block(console: Console, block: ui.Block) -> None:
    match block:
        case ui.Table():
            console.print(_grid(block, console.width))
        case ui.LineChart() | ui.BarChart() | ui.IntervalChart():
            console.print(Text(printable(block.caption), "italic"))
            console.print(_grid(chart_table(block), console.width))
        case ui.Dialogue():
            colour = console.is_terminal and not console.no_color
            console.print(dialogue_text(block.words, colour=colour))
        case ui.Fold():
            console.print(Text("── ", "cyan").append(_styled_text(block.title)).append(" ──"))
            for folded_block in block.blocks:
                _print_block(console, folded_block)
        case ui.Samples() | ui.Columns() | ui.Diagram():
            pass  # for a page alone: they are filtered, read side by side, or followed
        case _:
            console.print(_styled_text(block))


def _spans(words: ui.Words) -> list[ui.Styled]:
    """Parts of a text with their styles; links are plain text."""
    spans: list[ui.Styled] = []
    for part in [words] if isinstance(words, str) else words:
        match part:
            case ui.Styled():
                spans.append(part)
            case ui.Link():
                spans.append(ui.Styled(part.text, ""))
            case str():
                spans.append(ui.Styled(part, ""))
    return spans


def _styled_text(words: ui.Words) -> Text:
    text = Text()
    for span in _spans(words):
        text.append(printable(span.text), _STYLES[span.style])
    return text


def dialogue_text(words: ui.Words, *, colour: bool) -> Text:
    """Text with its highlights: green on a terminal, otherwise between 【 and 】."""
    text = Text()
    for style, spans in itertools.groupby(_spans(words), key=lambda span: span.style):
        if not colour and style == "mark":
            highlighted = "".join(span.text for span in spans)
            text.append(f"【{printable(highlighted)}】")
            continue
        shades: Iterator[str] = itertools.cycle(_SHADES.get(style, (_STYLES[style],)))
        for span in spans:
            text.append(printable(span.text), next(shades) if colour else "")
    return text


def _grid(table: ui.Table, width: int) -> Grid:
    """Table of rich; its numbers are not wrapped where a console of this width has room."""
    grid = Grid()
    numeric_columns = table.numeric()
    text_rows = [[_cell_text(value) for value in row] for row in table.rows]
    min_widths: list[int] = []
    for index, column in enumerate(zip(table.head, *text_rows, strict=True)):
        needed = max(map(cell_len, column))
        # words give way before numbers do, unless nothing would be left of them
        min_widths.append(needed if index in numeric_columns else min(needed, _MIN_TEXT_WIDTH))
    # rich draws a border and two spaces for each column, and a border at the end
    numbers_fit = sum(min_widths) + 3 * len(min_widths) + 1 <= width
    for index, name in enumerate(table.head):
        numeric = index in numeric_columns
        grid.add_column(
            printable(name),
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=numeric and numbers_fit,
        )
    for number, texts in enumerate(text_rows, start=1):
        if table.total and number == len(text_rows):
            grid.add_section()
        grid.add_row(*map(Text, texts))
    return grid


def _cell_text(value: object) -> str:
    below = f" ({value.below})" if isinstance(value, ui.TableCell) and value.below else ""
    return printable(ui.plain(value) + below)


def chart_table(chart: ui.Chart) -> ui.Table:
    """Table of the numbers of a chart; of a line its first, lowest, highest and last value."""
    rows: list[list[object]] = []
    match chart:
        case ui.IntervalChart():
            for row in chart.rows:
                interval = f"{ui.percent(row.low)} – {ui.percent(row.high)}"
                rows.append([chart.full_label(row), ui.percent(row.share), interval])
            return ui.Table(["", chart.x, ""], rows)
        case ui.BarChart():
            names = chart.parts or [chart.y]
            for label, parts in chart.bars:
                rows.append([label, *(f"{part:,.0f}" for part in parts)])
            return ui.Table([chart.x, *names], rows)
        case ui.LineChart():
            for series in chart.series:
                finite = [value for value in series.y if math.isfinite(value)] or [math.nan]
                levels = (finite[0], min(finite), max(finite), finite[-1])
                rows.append([series.name, *(f"{level:.4g}" for level in levels)])
            head = [f"{chart.y} over {chart.x}", "first", "lowest", "highest", "last"]
            return ui.Table(head, rows)
