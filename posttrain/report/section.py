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
SHOWN_CHARACTERS = 3000  # of a text
# limits of a section to read, with which a page stays below about 5 MB
MOST_SAMPLES = 2000
MOST_CHARACTERS = 2_000_000
_WORD = re.compile(r"[^\W\d_]{2}|…$")  # two letters, or text that was cut


@dataclass(frozen=True, slots=True)
class Styled:
    """Text in a style: bold, faint, code, or mark (highlighted: trained on, or by the model)."""

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
    """A cell with a smaller line below its value, an indent, or a shade between 0 and 1."""

    value: object
    below: str = ""
    indent: int = 0
    shade: float | None = None


@dataclass(frozen=True, slots=True)
class Digest:
    """Digest of a file or a run, of which the first characters are shown."""

    full: str | None


@dataclass(frozen=True, slots=True)
class Table:
    """Table of values with a head; with `total` its last row is a sum."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    total: bool = False

    def numeric(self) -> set[int]:
        """Indices of the columns of numbers, which are aligned on the right; never the first."""
        numeric_columns: set[int] = set()
        for index, column in enumerate(zip(*self.rows, strict=True)):
            texts = [plain(value) for value in column]
            if index and any(texts) and not any(_WORD.search(text) for text in texts):
                numeric_columns.add(index)
        return numeric_columns


@dataclass(frozen=True, slots=True)
class Series:
    """Line of a chart.

    Attributes:
        style: `a` (accent), `b` (muted) or `d` (dark); `e`, `c` and `f` are these three dashed and
            without dots.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "a"


@dataclass(frozen=True, slots=True)
class LineChart:
    """Chart of lines over a shared x axis; with `from_zero` the y axis includes 0."""

    series: Sequence[Series]
    x: str
    y: str
    caption: str = ""
    from_zero: bool = True


@dataclass(frozen=True, slots=True)
class BarChart:
    """Chart of vertical bars.

    Attributes:
        bars: of each bar its label and the heights of its parts, from below.
        parts: names of the parts; () where bars have a single one.
    """

    bars: Sequence[tuple[str, Sequence[float]]]
    x: str
    y: str
    caption: str = ""
    parts: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Interval:
    """Share in [0, 1] with its interval.

    Attributes:
        style: as for `Series`.
        name: name beside the share, where too many lines of a group have one style.
    """

    label: str
    low: float
    share: float
    high: float
    style: str = "a"
    name: str = ""


@dataclass(frozen=True, slots=True)
class IntervalChart:
    """Chart of shares as dots on their intervals, a line each.

    Attributes:
        rows: shares; those that follow each other and have one label are a group.
        keys: meaning of each style.
    """

    rows: Sequence[Interval]
    x: str
    caption: str = ""
    keys: Mapping[str, str] = field(default_factory=dict[str, str])

    def full_label(self, row: Interval) -> str:
        """Label of a line that stands alone: what it shows, and of whom."""
        name = row.name or self.keys.get(row.style)
        return f"{name}, {row.label}" if name else row.label


@dataclass(frozen=True, slots=True)
class DiagramNode:
    """Box of a diagram: its name, a smaller line below it, and the page that it leads to."""

    name: str
    below: str = ""
    target: str = ""


@dataclass(frozen=True, slots=True)
class Diagram:
    """Boxes joined by arrows, drawn from above to below; edges are (from, to) indices of nodes."""

    nodes: Sequence[DiagramNode]
    edges: Sequence[tuple[int, int]]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Text of a conversation with its line ends; what counts in it is highlighted."""

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
    """Title of a chart, which is the first sentence of its caption, and the rest of the caption."""
    first_sentence, separator, remainder = chart.caption.partition(". ")
    title = first_sentence if separator else first_sentence.removesuffix(".")
    return title, remainder


# plain words are a paragraph
Block = Words | Table | Chart | Diagram | Dialogue | Fold | Samples | Columns


@dataclass(frozen=True, slots=True)
class Section:
    """Title and the blocks below it; without blocks it is not shown, and `missing` says why."""

    title: str
    blocks: Sequence[Block] = ()
    missing: str = ""


def section(
    title: str,
) -> Callable[[Callable[Args, Iterable[Block]]], Callable[Args, Section]]:
    """Decorator that makes a function which yields blocks return a section with this title."""

    def decorate(yield_blocks: Callable[Args, Iterable[Block]]) -> Callable[Args, Section]:
        def make_section(*args: Args.args, **kwargs: Args.kwargs) -> Section:
            return Section(title, list(yield_blocks(*args, **kwargs)))

        return make_section

    return decorate


Sections = Iterator[Section]
Tile = tuple[str, str, str]  # a headline figure, its name, a remark


def percent(share: float | None, digits: int = 1) -> str | None:
    """Text of a share, such as "97.3 %"; None for None."""
    return None if share is None else f"{100 * share:.{digits}f} %"


def ratio(part: float, whole: float, digits: int = 1) -> str | None:
    """Text of a part's share of a whole; None where the whole is 0."""
    return percent(part / whole, digits) if whole else None


def estimate(row: Row | None, *, scale: float = 1.0, digits: int = 1) -> str | None:
    """Text of a value with its interval, if any, such as "61.0 (55.2 … 66.4)"; None for None.

    Args:
        row: has `value`, `low` and `high`, each of which is multiplied by `scale`.
    """
    if row is None:
        return None
    value = decimal(scale * row["value"], digits)
    if row["low"] is None:
        return value
    return (
        f"{value} ({decimal(scale * row['low'], digits)} … {decimal(scale * row['high'], digits)})"
    )


def decimal(value: float, digits: int) -> str:
    """Text of a value with a typographic minus, as wide as a plus."""
    return f"{value:.{digits}f}".replace("-", "−")


def on_off(thinking: bool) -> str:
    """Name of a reasoning mode: "on" or "off"."""
    return "on" if thinking else "off"


def graded(score: float | None) -> str:
    """Words for a grader's score: "right", "wrong", "partly right" or "unscored"."""
    if score is None:
        return "unscored"
    return {1.0: "right", 0.0: "wrong"}.get(score, "partly right")


def signed(value: float, digits: int, unit: str = "") -> str:
    """Text of a difference with its sign, with a typographic minus."""
    return f"{value:+.{digits}f}{unit}".replace("-", "−")


def counted(counts: Mapping[str, int]) -> str:
    """Line of counts in their order, "duplicate 12, no_answer 3"; counts of 0 are left out."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)


def nested(counts: Mapping[str, Mapping[str, int]]) -> list[list[object]]:
    """Table rows of counts by two names: [name, key, count]."""
    rows: list[list[object]] = []
    for name, counts_by_key in counts.items():
        for key, count in counts_by_key.items():
            rows.append([name, key, count])
    return rows


def dropped_rows(sources: Mapping[str, Row]) -> list[list[object]]:
    """Table rows of what was dropped: [source, reason, count of rows, an example of them].

    Args:
        sources: stats of each source, with `dropped` and `examples` by reason.
    """
    table_rows: list[list[object]] = []
    for source, source_stats in sources.items():
        for reason, count in source_stats["dropped"].items():
            table_rows.append([source, reason, count, source_stats["examples"].get(reason)])
    return table_rows


def shortened(text: str, most: int = SHOWN_CHARACTERS) -> str:
    """Beginning and end of a text of more than `most` characters, and the count of those between.

    A shorter text is returned as it is.
    """
    left_out = len(text) - most
    if left_out <= 0:
        return text
    half = most // 2
    return f"{text[: most - half]} … {left_out:,} characters … {text[-half:]}"


def is_shown(index: int, total: int) -> bool:
    """True for an evenly spread selection of `MOST_SAMPLES` of a total of samples."""
    shown = min(MOST_SAMPLES, total)
    # the count of shown samples grows by one at this index
    return (index + 1) * shown // total > index * shown // total


def room(samples: int, texts: int = 1) -> int:
    """Characters to show of a text, from the numbers of samples and of texts in each."""
    return max(200, min(SHOWN_CHARACTERS, MOST_CHARACTERS // max(1, samples * texts)))


def each(most: int, texts: int) -> int:
    """Characters to show of each of several texts that share `most` characters."""
    # beyond 15 texts each would be too short to be understood, so they have more together
    return most // min(max(1, texts), 15)


def plain(value: object) -> str:
    """Text of a table cell's value, for both renderers."""
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
