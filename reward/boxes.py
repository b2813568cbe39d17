"""Boxed answers: \\boxed{…} with balanced braces, outermost ones only.

boxed("\\boxed{4}, no: \\boxed{\\frac{1}{2}}") == "\\frac{1}{2}"
joined_boxes("\\boxed{1} and \\boxed{2}") == "1, 2"

A box that opens and never closes is a last word that cannot be read: None, not an earlier box.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_TOKEN = re.compile(r"[^\s$\\{}]+")
# between two boxes, or two formulas, that are one answer: "$1$ and $2$"
JOINT = re.compile(
    r"\s*(?:\$|\\\)|\\\])*\s*(?:,|;|,?\s*\b(?:and|or)\b|,?\s*\\text\{\s*(?:and|or)\s*\})"
    r"\s*(?:\$|\\\(|\\\[)*\s*(?:[A-Za-z]\w?\s*=\s*)?"
)


def has_box(text: str) -> bool:
    """Whether there is a box, closed or not."""
    return _BOX.search(text) is not None


def boxed(text: str) -> str | None:
    """The contents of the last box alone; None where there is none or it does not close."""
    boxes = list(_boxes(text))
    return boxes[-1][2].strip() or None if boxes and boxes[-1][2] is not None else None


def joined_boxes(text: str) -> str | None:
    """The last box; with those before it that only "and", "or" or a comma parts from it."""
    boxes = list(_boxes(text))
    start, _, last = boxes[-1] if boxes else (0, 0, None)
    if last is None or not last.strip():
        return None
    answers = [last.strip()]
    for before, end, contents in reversed(boxes[:-1]):
        if contents is None or not JOINT.fullmatch(text, end, start):
            break
        if contents.strip() != answers[0]:
            answers.insert(0, contents.strip())
        start = before
    return ", ".join(answers)


def _boxes(text: str) -> Iterator[tuple[int, int, str | None]]:
    """Start, end and contents of each outermost box; contents None where it does not close."""
    done = 0
    for match in _BOX.finditer(text):
        if match.start() < done:
            continue
        end = _closing(text, match.end())
        if end is not None:
            yield match.start(), end, text[match.end() + 1 : end - 1]
            done = end
        elif text[match.end() : match.end() + 1] != "{":  # \boxed 5: LaTeX takes one token
            token = _TOKEN.match(text, match.end())
            yield match.start(), token.end() if token else match.end(), token and token[0]
        else:
            yield match.start(), len(text), None
            return


def _closing(text: str, start: int) -> int | None:
    """Position after the brace that closes the one at `start`."""
    depth = 0
    for match in _BRACE.finditer(text, start):
        if match.start() != start and depth == 0:
            return None
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end() if match[0] == "}" else None
    return None
