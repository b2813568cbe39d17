"""Where a completion says its final answer: a tag, a box, an "Answer:" line, or its last line.

final_answer("So it is $\\\\boxed{\\\\frac{1}{2}}$.") == "\\\\frac{1}{2}"
final_answer("The answer is 5 km, as shown.") == "5 km"

The most explicit place wins, and of two alike the later. An opening box that never closes is a
last word that cannot be read: None, and not an earlier box.
"""

from __future__ import annotations

import re

from reward.boxes import has_box, joined_boxes
from reward.formula_lines import last, leading

LINE = 2000  # characters of a line that are looked at
TAG = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL | re.IGNORECASE)
LABEL = re.compile(
    r"(?:\banswers?\b[ \t*_]*"
    r"(?:[^\n.:=?!]{0,60}?\b(?:is|are|equals|be)\b|:|=)|^[ \t]*\#{4})[ \t*_:]*",
    re.IGNORECASE | re.MULTILINE,
)


def final_answer(text: str, *, last_line: bool = True) -> str | None:
    """The text of the final answer, as it was written; None where there is none.

    Args:
        text: a completion's answer, without its reasoning.
        last_line: whether, with neither tag, box nor label, the last formula or number of the last
            line counts.
    """
    tags = TAG.findall(text)
    if tags:
        return final_answer(tags[-1], last_line=False) or tags[-1].strip() or None
    if has_box(text):
        return joined_boxes(text)
    for label in reversed(list(LABEL.finditer(text))):
        rest = text[label.end() : label.end() + LINE].strip()
        if rest and not rest.startswith("not "):
            return leading(rest.split("\n", 1)[0].strip())
    lines = [line for line in text.splitlines() if line.strip(" \t*_$`")]
    return last(lines[-1].strip()[-LINE:]) if lines and last_line else None
