"""Sections as one HTML page: self-contained, the same bytes for the same sections."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from markupsafe import Markup, escape

from posttrain.jsontext import writable
from posttrain.report import section as ui
from posttrain.report.charts import chart_svg
from posttrain.report.diagram import diagram_svg

if TYPE_CHECKING:
    from jinja2 import Template

UNFINISHED = "data-unfinished"  # attribute near the beginning of an unfinished run's page
_TAGS = {
    "bold": Markup("<b>{}</b>"),
    "faint": Markup('<span class="faint">{}</span>'),
    "mark": Markup("<mark>{}</mark>"),
    "code": Markup("<code>{}</code>"),
}
# a number and its unit, the ends of an interval, or p and its value never stand on two lines
_GLUED = re.compile(r"(?<=[\d%]) (?=%|[–…×+] ?[\d+−-])|(?<=[–…×+]) (?=[\d+−-])|(?<=\bp) (?=\d)")


@dataclass(frozen=True, slots=True)
class RunState:
    """State of a run that has not finished, as its page tells it.

    Attributes:
        refresh: seconds after which a browser reads the page again; None: the run has stopped.
        due: when the next page is written at the latest, in seconds since 1970.
    """

    text: str
    refresh: int | None = None
    due: int | None = None


def page_html(
    sections: Sequence[ui.Section],
    *,
    title: str,
    kicker: str = "",
    tiles: Sequence[ui.Tile] = (),
    lead: ui.Words = (),
    state: RunState | None = None,
) -> str:
    """Render the sections that have content as one HTML page.

    Args:
        kicker: small line above the title.
        tiles: headline figures.
        lead: paragraph below the title.
        state: of a run that has not finished; None: it has.
    """
    blocks = (block for section in sections for block in section.blocks)
    has_samples = any(isinstance(block, ui.Samples) for block in blocks)
    # without samples to filter or a run to follow, the page needs no script
    needs_script = has_samples or (state is not None and state.due)
    page = _template().render(
        sections=[section for section in sections if section.blocks],
        title=title,
        kicker=kicker,
        tiles=tiles,
        lead=lead,
        state=state,
        script=_read_asset("page.js") if needs_script else "",
    )
    # surrogates from damaged data would make the file unwritable
    return writable(page)


def _read_asset(name: str) -> Markup:
    """Read a file of this folder, to be put into the page as it is."""
    return Markup((Path(__file__).parent / name).read_text("utf-8").strip())  # noqa: S704


@cache
def _template() -> Template:
    """Load the page's Jinja template with its filters, once."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        anchor=_anchor,
        cell=_cell_markup,
        diagram=diagram_svg,
        headed=ui.headed,
        json=_attribute_json,
        kind=_kind,
        runs=_chart_runs,
        svg=chart_svg,
        words=_words_markup,
    )
    environment.globals |= {"style": _read_asset("page.css"), "unfinished": UNFINISHED}
    return environment.get_template("page.html.jinja")


def _attribute_json(values: Sequence[object]) -> str:
    """JSON for an attribute; figures that are not finite become null."""
    finite: list[object] = []
    for value in values:
        is_finite = not isinstance(value, float) or math.isfinite(value)
        finite.append(value if is_finite else None)
    return json.dumps(finite, ensure_ascii=False)


def _kind(block: ui.Block) -> str:
    """Class of a block, by which the template chooses its markup."""
    return type(block).__name__


def _chart_runs(blocks: Sequence[ui.Block]) -> Iterator[tuple[bool, list[ui.Block]]]:
    """Split blocks into runs of charts (True), which share a row of the page, and of others."""
    for are_charts, run in groupby(blocks, key=lambda block: isinstance(block, ui.Chart)):
        yield are_charts, list(run)


def _anchor(title: str) -> str:
    """Id of a section, for links to it: "Before and after" → before-and-after."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _words_markup(words: ui.Words) -> Markup:
    """Markup of a text, escaped; a plain string keeps numbers and units on one line."""
    if isinstance(words, str):
        return escape(_GLUED.sub("\N{NO-BREAK SPACE}", words))
    return Markup("").join(map(_part_markup, words))


def _part_markup(part: str | ui.Styled | ui.Link) -> str:
    """Markup of a part of a text; a plain string is escaped when it is joined."""
    match part:
        case ui.Styled():
            return _TAGS[part.style].format(part.text)
        case ui.Link():
            return Markup('<a href="{}">{}</a>').format(quote(part.target), part.text)
        case _:
            return part


def _cell_markup(value: object) -> Markup:
    """Markup of a table's cell: a dash for nothing, a digest, a link, indented or shaded text."""
    match value:
        case None:
            return Markup('<span class="faint">–</span>')
        case ui.Digest(full=str()):
            return Markup('<code title="{}">{}</code>').format(value.full, ui.plain(value))
        case ui.Link():
            return _words_markup([value])
        case ui.TableCell():
            indent = ""
            if value.indent > 0:
                indent = "\N{EM SPACE}" * (value.indent - 1) + "↳ "
            below = ""
            if value.below:
                below = Markup("<br><small>{}</small>").format(_words_markup(value.below))
            content = escape(indent) + _cell_markup(value.value) + below
            if value.shade is None:
                return content
            shaded = Markup('<span class="shade" style="--shade:{:.0f}%">{}</span>')
            return shaded.format(100 * value.shade, content)
        case _:
            return _words_markup(ui.plain(value))
