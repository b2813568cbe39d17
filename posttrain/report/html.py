"""HTML in pieces: everything that is not markup of ours goes through `text`.

table(["source", "rows"], [["maths", 900]], numeric={1})  →  "<table>…<td class=n>900</td>…"
"""

from __future__ import annotations

import html
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Markup:
    """HTML that is finished and is put in as it is."""

    html: str


def text(value: object) -> str:
    """A value as HTML text. Counts get thousands separators, `None` a dash."""
    if isinstance(value, Markup):
        return value.html
    if value is None:
        return '<span class="faint">–</span>'
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    # surrogates from damaged data would make the file unwritable
    return html.escape(str(value).encode("utf-8", "backslashreplace").decode())


def percent(share: float, digits: int = 1) -> str:
    """A share as text, e.g. "97.3 %"."""
    return f"{100 * share:.{digits}f} %"


def signed_percent(share: float) -> str:
    """A relative difference as text, with its sign."""
    return f"{100 * share:+.2f} %".replace("-", "−")


def short(digest: str | None) -> Markup:
    """The first characters of a digest, the whole one on hover."""
    if digest is None:
        return Markup(text(None))
    return Markup(f'<code title="{text(digest)}">{text(digest[:12])}</code>')


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    numeric: Collection[int] = (),
    total: bool = False,
) -> str:
    """A table; columns in `numeric` are right-aligned. `total`: the last row is a sum."""

    def cell(tag: str, place: int, value: object) -> str:
        kind = ' class="n"' if place in numeric else ""
        return f"<{tag}{kind}>{text(value)}</{tag}>"

    def row(tag: str, values: Sequence[object]) -> str:
        return "".join(cell(tag, place, value) for place, value in enumerate(values))

    body = [
        f"<tr{' class=total' if total and k == len(rows) - 1 else ''}>{row('td', values)}</tr>"
        for k, values in enumerate(rows)
    ]
    return (
        f'<div class="scroll"><table><thead><tr>{row("th", head)}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def stats_list(pairs: Sequence[tuple[str, object]]) -> str:
    """Names and values, one a line."""
    rows = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in pairs)
    return f'<dl class="stats">{rows}</dl>'


def tiles(items: Sequence[tuple[str, str, str]]) -> str:
    """Headline figures: (figure, what it is, a remark)."""
    cells = "".join(
        f'<div class="tile"><b>{text(figure)}</b><span>{text(name)}</span>'
        f"<small>{text(remark)}</small></div>"
        for figure, name, remark in items
    )
    return f'<div class="tiles">{cells}</div>'


def paragraph(*parts: object) -> str:
    """One paragraph."""
    return f"<p>{''.join(text(part) for part in parts)}</p>"


def figure(svg: str, caption: str) -> str:
    """A drawing with its caption."""
    return f"<figure>{svg}<figcaption>{text(caption)}</figcaption></figure>"


def folded(summary: object, body: str, *, opened: bool = False) -> str:
    """Content behind a line to click on."""
    state = " open" if opened else ""
    return f"<details{state}><summary>{text(summary)}</summary>{body}</details>"


def preformatted(value: str) -> str:
    """Text as it is."""
    return f"<pre>{text(value)}</pre>"


def json_block(value: Mapping[str, object]) -> str:
    """Indented JSON."""
    return preformatted(json.dumps(value, ensure_ascii=False, indent=2))


def bar(share: float, *, of: float = 1.0) -> Markup:
    """A share as a bar inside a table cell; `of` is the share that fills it."""
    width = 100 * max(0.0, min(1.0, share / of if of else 0.0))
    return Markup(f'<span class="bar"><i style="width:{width:.1f}%"></i></span>')
