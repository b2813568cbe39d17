"""A report in values: sections of text, tables and charts, drawn by `html` or `console`.

Blocks hold plain values: both renderers write counts with separators and `None` as a dash, align
columns of values on the right, and escape all text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec

Row = Mapping[str, Any]
Args = ParamSpec("Args")
SHOWN_CHARACTERS = 3000
# of a section to read: a page stays below about 5 MB
MOST_SAMPLES, MOST_CHARACTERS = 2000, 2_000_000
_WORD = re.compile(r"[^\W\d_]{2}|…$")


@dataclass(frozen=True, slots=True)
class Styled:
    """Text in a style: bold, faint, code, or mark (highlighted: trained on, or the model's own)."""

    text: str
    style: str


@dataclass(frozen=True, slots=True)
class Link:
    """Text that leads to another page; `target` is an address relative to this one."""

    text: str
    target: str


Words = str | Sequence[str | Styled | Link]


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell with a smaller line below its value, or an indent."""

    value: object
    below: str = ""
    indent: int = 0


@dataclass(frozen=True, slots=True)
class Digest:
    """A digest: shown by its first characters."""

    full: str | None


@dataclass(frozen=True, slots=True)
class Table:
    """A head and rows of values. `total`: the last row is a sum."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    total: bool = False

    def numeric(self) -> set[int]:
        """The columns to align on the right: values and no words, the first column apart."""
        columns = [[plain(value) for value in column] for column in zip(*self.rows, strict=True)]
        return {
            k
            for k, column in enumerate(columns)
            if k and any(column) and not any(_WORD.search(text) for text in column)
        }


@dataclass(frozen=True, slots=True)
class Series:
    """One line; `style` is `a` (accent), `b` (muted) or `d` (dark), or one of these dashed and
    without dots: `e`, `c`, `f`."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "a"


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over a shared x axis. `from_zero`: the y axis includes 0."""

    series: Sequence[Series]
    x: str
    y: str
    caption: str = ""
    from_zero: bool = True


@dataclass(frozen=True, slots=True)
class BarChart:
    """Vertical bars, each a label and the heights of its parts from below, named in `parts`."""

    bars: Sequence[tuple[str, Sequence[float]]]
    x: str
    y: str
    caption: str = ""
    parts: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Interval:
    """A share with its interval; `style` as for `Series`."""

    label: str
    low: float
    share: float
    high: float
    style: str = "a"


@dataclass(frozen=True, slots=True)
class IntervalChart:
    """Shares in [0, 1] as dots on their intervals, one line each; lines that follow each other and
    have one label are a group. `keys`: what styles mean, by style."""

    rows: Sequence[Interval]
    x: str
    caption: str = ""
    keys: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class DiagramNode:
    """A box of a diagram: its name, a smaller line below it, and the page that it leads to."""

    name: str
    below: str = ""
    target: str = ""


@dataclass(frozen=True, slots=True)
class Diagram:
    """Boxes joined by arrows, drawn from above to below; edges are (from, to), by place."""

    nodes: Sequence[DiagramNode]
    edges: Sequence[tuple[int, int]]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Text as it is, with its line ends: a conversation, what counts in it highlighted."""

    words: Words


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks behind a line to click on."""

    title: Words
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Sample:
    """A `Fold` to read, with the values that it is filtered by and the figures it is sorted by."""

    title: Words
    blocks: Sequence[Block]
    values: Mapping[str, str]
    figures: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Samples:
    """Texts that a page filters and sorts; all have the same values and figures."""

    items: Sequence[Sample]


@dataclass(frozen=True, slots=True)
class Columns:
    """Groups of blocks beside each other, as far as there is room."""

    groups: Sequence[Sequence[Block]]


Chart = LineChart | BarChart | IntervalChart


def headed(chart: Chart) -> tuple[str, str]:
    """A chart's title, the first sentence of its caption, and what follows that."""
    first, point, rest = chart.caption.partition(". ")
    return (first if point else first.removesuffix(".")), rest


# plain words are a paragraph
Block = Words | Table | Chart | Diagram | Dialogue | Fold | Samples | Columns


@dataclass(frozen=True, slots=True)
class Section:
    """A title and what stands below it; without blocks it is not shown. `missing`: why not."""

    title: str
    blocks: Sequence[Block] = ()
    missing: str = ""


def section(
    title: str,
) -> Callable[[Callable[Args, Iterable[Block]]], Callable[Args, Section]]:
    """Make a function that yields blocks one that returns a section."""
    return lambda blocks: lambda *args, **kwargs: Section(title, list(blocks(*args, **kwargs)))


Sections = Iterator[Section]
Tile = tuple[str, str, str]  # a headline figure, what it is, a remark


def percent(share: float | None, digits: int = 1) -> str | None:
    """A share as text, e.g. "97.3 %"; None stays."""
    return None if share is None else f"{100 * share:.{digits}f} %"


def ratio(part: float, whole: float, digits: int = 1) -> str | None:
    """A part of a whole as text; None where there is no whole."""
    return percent(part / whole, digits) if whole else None


def estimate(found: Row | None, *, scale: float = 1.0, digits: int = 1) -> str | None:
    """A value with its interval, e.g. "61.0 (55.2–66.4)"; None stays."""
    if found is None:
        return None
    value, low, high = (f"{scale * found[key]:.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} ({low}–{high})"


def on_off(thinking: bool) -> str:
    return "on" if thinking else "off"


def graded(score: float | None) -> str:
    """A grader's score in words."""
    if score is None:
        return "unscored"
    return {1.0: "right", 0.0: "wrong"}.get(score, "partly right")


def signed(value: float, digits: int, unit: str = "") -> str:
    """A difference with its sign, as typographic minus."""
    return f"{value:+.{digits}f}{unit}".replace("-", "−")


def counted(counts: Mapping[str, int]) -> str:
    """Counts by name in one line, "duplicate 12, no_answer 3"; those of 0 are left out."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)


def nested(counts: Mapping[str, Mapping[str, int]]) -> list[list[object]]:
    """Counts of counts, one row each."""
    return [[name, key, count] for name, own in counts.items() for key, count in own.items()]


def dropped_rows(sources: Mapping[str, Row]) -> list[list[object]]:
    """Of each source: a reason, how many rows it took, and one of them."""
    return [
        [name, reason, count, own["examples"].get(reason)]
        for name, own in sources.items()
        for reason, count in own["dropped"].items()
    ]


def shortened(text: str, most: int = SHOWN_CHARACTERS) -> str:
    """The beginning and the end of a text, with the number of characters left out between them."""
    rest, half = len(text) - most, most // 2
    return text if rest <= 0 else f"{text[: most - half]} … {rest:,} characters … {text[-half:]}"


def is_shown(place: int, total: int) -> bool:
    """Whether this one of so many samples is among the `MOST_SAMPLES` that are spread evenly."""
    wanted = min(MOST_SAMPLES, total)
    return (place + 1) * wanted // total > place * wanted // total


def room(samples: int, texts: int = 1) -> int:
    """Characters to show of each text, where so many samples have so many texts each."""
    return max(200, min(SHOWN_CHARACTERS, MOST_CHARACTERS // max(1, samples * texts)))


def each(most: int, texts: int) -> int:
    """Characters of each of so many texts that have about `most` between them."""
    return most // min(max(1, texts), 15)


def plain(value: object) -> str:
    """A cell's value as text, for both renderers."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case Digest():
            return plain(value.full and f"{value.full[:12]}…")
        case Link():
            return value.text
        case TableCell():
            return f"{'  ' * value.indent}{plain(value.value)}"
        case _:
            return str(value)
