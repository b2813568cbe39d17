"""Sections on the console, with rich: the same figures that a page draws, charts as their numbers.

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
# columns that a text needs at least to be read in a table
_WORDS = 12
# neighbours of one style in two shades, so that tokens can be told apart
_SHADES = {"mark": ("green", "bright_green"), "": ("bright_black", "white")}


def open_console() -> Console:
    """A console as wide as the terminal, or, where there is none, as the widest table; names of
    data and folders are no markup in it."""
    width = None if sys.stdout.isatty() else 180
    return Console(width=width, markup=False, emoji=False, highlight=False)


def print_sections(
    console: Console, sections: Iterable[ui.Section], *, charts: bool = True
) -> None:
    """Print each section that has content: its title, then its blocks; charts as their numbers."""
    for section in sections:
        if section.blocks:
            console.print(Text(printable(section.title), "bold"))
            for block in section.blocks:
                if charts or not isinstance(block, ui.Chart):
                    _print(console, block)


def _print(console: Console, block: ui.Block) -> None:
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
            console.print(Text("── ", "cyan").append(_text(block.title)).append(" ──"))
            for inner in block.blocks:
                _print(console, inner)
        case ui.Samples() | ui.Columns() | ui.Diagram():
            pass  # a page's alone: to be filtered, read side by side, or followed
        case _:
            console.print(_text(block))


def _spans(words: ui.Words) -> list[ui.Styled]:
    parts = [words] if isinstance(words, str) else words
    plain = (part.text if isinstance(part, ui.Link) else part for part in parts)
    return [ui.Styled(part, "") if isinstance(part, str) else part for part in plain]


def _text(words: ui.Words) -> Text:
    return Text.assemble(*((printable(p.text), _STYLES[p.style]) for p in _spans(words)))


def dialogue_text(words: ui.Words, *, colour: bool) -> Text:
    """A text with what is highlighted in it: green on a terminal, otherwise between 【 and 】."""
    text = Text()
    for style, run in itertools.groupby(_spans(words), key=lambda part: part.style):
        shades: Iterator[str] = itertools.cycle(_SHADES.get(style, (_STYLES[style],)))
        if not colour and style == "mark":
            text.append(f"【{printable(''.join(part.text for part in run))}】")
            continue
        for part in run:
            text.append(printable(part.text), next(shades) if colour else "")
    return text


def _grid(table: ui.Table, width: int) -> Grid:
    grid, aligned = Grid(), table.numeric()
    columns = zip(table.head, *([_cell(value) for value in row] for row in table.rows), strict=True)
    needed = [max(map(cell_len, column)) for column in columns]
    # words give way before numbers do, unless nothing would be left of them
    least = sum(n if k in aligned else min(n, _WORDS) for k, n in enumerate(needed))
    fits = least + 3 * len(needed) + 1 <= width
    for k, name in enumerate(table.head):
        numeric = k in aligned
        justify = "right" if numeric else "left"
        grid.add_column(printable(name), justify=justify, overflow="fold", no_wrap=numeric and fits)
    for number, row in enumerate(table.rows, start=1):
        if table.total and number == len(table.rows):
            grid.add_section()
        grid.add_row(*(Text(_cell(value)) for value in row))
    return grid


def _cell(value: object) -> str:
    below = f" ({value.below})" if isinstance(value, ui.TableCell) and value.below else ""
    return printable(ui.plain(value) + below)


def chart_table(chart: ui.Chart) -> ui.Table:
    """The numbers of a chart."""
    match chart:
        case ui.IntervalChart():
            rows = [
                [r.label, ui.percent(r.share), f"{ui.percent(r.low)} – {ui.percent(r.high)}"]
                for r in chart.rows
            ]
            return ui.Table(["", chart.x, ""], rows)
        case ui.BarChart():
            names = chart.parts or [chart.y]
            rows = [[label, *(f"{part:,.0f}" for part in parts)] for label, parts in chart.bars]
            return ui.Table([chart.x, *names], rows)
        case ui.LineChart():
            rows = []
            for one in chart.series:
                finite = [value for value in one.y if math.isfinite(value)] or [math.nan]
                levels = (finite[0], min(finite), max(finite), finite[-1])
                rows.append([one.name, *(f"{level:.4g}" for level in levels)])
            head = [f"{chart.y} over {chart.x}", "first", "lowest", "highest", "last"]
            return ui.Table(head, rows)
