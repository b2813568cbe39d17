"""Charts of quantities in the rows of a training log.

logged(rows, {"reward": "reward", "base": "part/base"}, y="reward", caption="…") → "<figure>…"
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.report.charts import HALF, WIDTH, Series, lines
from posttrain.report.html import figure, paragraph

Row = Mapping[str, Any]


def points(rows: Sequence[Row], key: str) -> tuple[list[float], list[float]]:
    """Steps and values of one logged quantity."""
    found = [(row["step"], row[key]) for row in rows if key in row and "step" in row]
    # json writes a diverged loss as NaN; the row stays, the charts leave it out
    return [float(step) for step, _ in found], [float(value) for _, value in found]


def logged(
    rows: Sequence[Row], keys: Mapping[str, str], *, y: str, caption: str, half: bool = False
) -> str:
    """One chart of some keys by their names; "" where none of them was logged.

    What is 0 at every step is said in words.
    """
    series = [
        Series(name, *points(rows, key), style)
        for (name, key), style in zip(keys.items(), ("a", "b", "c"), strict=False)
    ]
    series = [one for one in series if any(math.isfinite(value) for value in one.y)]
    if not series:
        return ""
    if not any(value for one in series for value in one.y):
        return f"<figure>{paragraph(caption.removesuffix('.'), ': 0 at every step.')}</figure>"
    return figure(lines(series, x="step", y=y, width=HALF if half else WIDTH), caption)


def side_by_side(*figures: str) -> str:
    """Half-width figures in a row; "" where there is none."""
    found = [one for one in figures if one]
    if len(found) == 1:
        found.append("<div></div>")  # alone it would be drawn as wide as the page
    return f'<div class="pair">{"".join(found)}</div>' if found else ""
