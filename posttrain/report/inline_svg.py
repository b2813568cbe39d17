"""A matplotlib figure as SVG inside a page: the page's colours and font, and always the same bytes.

    with drawing("loss over step", width=912, height=250) as (axes, markup):
        axes.plot([10, 20], [3.1, 2.2], color=ACCENT)
    markup.html  →  '<svg viewBox="0 0 912 250" role="img" aria-label="loss over step">…</svg>'

matplotlib is imported when the first chart is drawn, never by importing the report. A drawing uses
only the colours below; each becomes a variable of the style sheet, so it follows the page into dark
mode. One unit of the drawing is one pixel of the page.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# stand-ins that no drawing of ours uses for anything else → the style sheet's variables
INK, MUTED, RULE, ACCENT, SECOND, THIRD = (f"#f00d0{k}" for k in range(1, 7))
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    RULE: "rule",
    ACCENT: "accent",
    SECOND: "second",
    THIRD: "third",
}
TITLE = "title: "
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "figure.dpi": 72,
    "font.family": "DejaVu Sans",  # comes with matplotlib: text is measured alike everywhere
    "font.size": 12,
    "text.parse_math": False,
    "text.color": MUTED,
    "axes.edgecolor": THIRD,
    "axes.labelcolor": MUTED,
    "axes.labelpad": 7,
    "axes.linewidth": 1,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.autolimit_mode": "round_numbers",
    "axes.xmargin": 0,
    "axes.ymargin": 0,
    "grid.color": RULE,
    "grid.linewidth": 1,
    "legend.frameon": False,
    "lines.solid_joinstyle": "round",
    "lines.linewidth": 1.8,
    "path.simplify_threshold": 0.5,
    "lines.markersize": 6,
    "lines.markeredgewidth": 0,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.major.pad": 7,
    "ytick.major.pad": 7,
}


@dataclass
class Inline:
    """The finished drawing, once its block has ended."""

    html: str = ""


@contextmanager
def drawing(
    name: str, *, width: int, height: int, data: object = None
) -> Iterator[tuple[Axes, Inline]]:
    """Axes to draw on, and the SVG they become.

    Args:
        name: what the drawing shows, for those who cannot see it.
        width, height: in pixels.
        data: what is drawn; with the name it makes the ids unique on a page.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    out, result = io.StringIO(), Inline()
    salt = hashlib.sha256(repr((name, data)).encode("utf-8", "surrogatepass")).hexdigest()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's matplotlibrc must not change our bytes
        matplotlib.rcParams.update(SETTINGS)
        matplotlib.rcParams["svg.hashsalt"] = salt
        layout = ConstrainedLayoutEngine(w_pad=2 / 72, h_pad=2 / 72)
        figure = Figure(figsize=(width / 72, height / 72), layout=layout, frameon=False)
        axes = figure.add_subplot()
        axes.patch.set_visible(False)
        yield axes, result
        figure.savefig(
            out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    result.html = _inline(out.getvalue(), name)


def titled(text: str) -> str:
    """A group id that becomes the tooltip of what is drawn: `set_gid(titled("≤ 64: 12"))`."""
    return f"{TITLE}{text}"


def _inline(document: str, name: str) -> str:
    """An SVG document of matplotlib's as an element of a page."""
    root = ElementTree.fromstring(document)  # noqa: S314 - written by matplotlib just now
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', document))
    for element in root.iter():
        _clean(element, used)
    for element in list(root):
        if element.find("style") is not None:  # it would apply to the whole page
            root.remove(element)
    # a name may hold text of the data, and surrogates would make the page unwritable
    label = name.encode("utf-8", "backslashreplace").decode()
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    markup = ElementTree.tostring(root, encoding="unicode")
    for colour, variable in VARIABLES.items():
        markup = markup.replace(colour, f"var(--{variable})")
    return re.sub(r"\s*\n\s*", "", markup)


def _clean(element: ElementTree.Element, used: set[str]) -> None:
    """Tooltips for ids that ask for one; no ids that nothing refers to, and no namespaces."""
    element.tag = element.tag.rpartition("}")[2]
    for key in [key for key in element.attrib if "}" in key]:
        element.attrib[key.rpartition("}")[2]] = element.attrib.pop(key)
    own = element.get("id", "")
    if own not in used:
        element.attrib.pop("id", None)
    if own.startswith(TITLE):
        tooltip = ElementTree.Element("title")
        tooltip.text = own.removeprefix(TITLE)
        element.insert(0, tooltip)
