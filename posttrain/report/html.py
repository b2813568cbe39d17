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

UNFINISHED = "data-unfinished"  # near the beginning of a page
_TAGS = {
    "bold": Markup("<b>{}</b>"),
    "faint": Markup('<span class="faint">{}</span>'),
    "mark": Markup("<mark>{}</mark>"),
    "code": Markup("<code>{}</code>"),
}
# a number and its unit, or the ends of an interval, never stand on two lines
_GLUED = re.compile(r"(?<=[\d%]) (?=%|[–…×+] ?[\d+−-])|(?<=[–…×+]) (?=[\d+−-])")


@dataclass(frozen=True, slots=True)
class RunState:
    """What a page says of a run that has not finished.

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
    """The page of the sections that have content; a script is in it only where there are samples to
    pick from, or a run goes on."""
    picks = any(isinstance(block, ui.Samples) for part in sections for block in part.blocks)
    page = _template().render(
        sections=[part for part in sections if part.blocks],
        title=title,
        kicker=kicker,
        tiles=tiles,
        lead=lead,
        state=state,
        script=_own("page.js") if picks or (state and state.due) else "",
    )
    # surrogates from damaged data would make the file unwritable
    return writable(page)


def _own(name: str) -> Markup:
    return Markup((Path(__file__).parent / name).read_text("utf-8").strip())  # noqa: S704


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        anchor=_anchor, cell=_cell, diagram=diagram_svg, headed=ui.headed, json=_json, kind=_kind,
        runs=_runs, svg=chart_svg, words=_words,
    )  # fmt: skip
    environment.globals |= {"style": _own("page.css"), "unfinished": UNFINISHED}
    return environment.get_template("page.html.jinja")


def _json(values: Sequence[object]) -> str:
    """JSON for an attribute; figures that are not finite are none."""
    finite = [None if isinstance(v, float) and not math.isfinite(v) else v for v in values]
    return json.dumps(finite, ensure_ascii=False)


def _kind(block: ui.Block) -> str:
    return type(block).__name__


def _runs(blocks: Sequence[ui.Block]) -> Iterator[tuple[bool, list[ui.Block]]]:
    """Blocks in their order, charts that follow each other as one group."""
    for charts, run in groupby(blocks, key=lambda block: isinstance(block, ui.Chart)):
        yield charts, list(run)


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _words(words: ui.Words) -> Markup:
    if isinstance(words, str):
        return escape(_GLUED.sub("\N{NO-BREAK SPACE}", words))
    return Markup("").join(map(_word, words))


def _word(part: str | ui.Styled | ui.Link) -> str:
    match part:
        case ui.Styled():
            return _TAGS[part.style].format(part.text)
        case ui.Link():
            return Markup('<a href="{}">{}</a>').format(quote(part.target), part.text)
        case _:
            return part


def _cell(value: object) -> Markup:
    match value:
        case None:
            return Markup('<span class="faint">–</span>')
        case ui.Digest(full=str()):
            return Markup('<code title="{}">{}</code>').format(value.full, ui.plain(value))
        case ui.Link():
            return _words([value])
        case ui.TableCell():
            lead = "\N{EM SPACE}" * max(value.indent - 1, 0) + "↳ " * (value.indent > 0)
            below = Markup("<br><small>{}</small>").format(value.below) if value.below else ""
            return escape(lead) + _cell(value.value) + below
        case _:
            return _words(ui.plain(value))
