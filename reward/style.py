"""How much markup a text carries: headers, list items, bold and emoji per character.

    style_density("# Sum\n\n- **four**") == 3 / 17      one header, one item, one bold

Off by default: Nano's paper has no such penalty, later models do. Fenced code is neither counted
nor measured.
"""

from __future__ import annotations

import re

# a fence that is never closed runs to the end, as Markdown has it
_CODE = re.compile(
    r"^[ \t]*(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})[^\n]*"
    r"(?:\n.*?)??(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_MARKS = (
    re.compile(r"^ {0,3}#{1,6}[ \t]+\S", re.MULTILINE),
    re.compile(r"^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+\S", re.MULTILINE),
    re.compile(r"\*\*(?=\S)[^*\n]+\*\*|(?<!\w)__(?=\S)[^_\n]+__(?!\w)"),
    re.compile(
        "[\U0001f1e6-\U0001f1ff\U0001f300-\U0001f64f\U0001f680-\U0001f6ff"
        "\U0001f900-\U0001f9ff\U0001fa70-\U0001faff\u2600-\u27bf\u2b50\u2b55]"
    ),
)


def style_density(text: str) -> float:
    """Marks per character outside fenced code, white space around it not counted; 0 of nothing.

    Each emoji character counts: a flag is two, a sequence as many as it is made of.
    """
    prose = _CODE.sub("", text).strip()
    if not prose:
        return 0.0
    return sum(1 for mark in _MARKS for _ in mark.finditer(prose)) / len(prose)
