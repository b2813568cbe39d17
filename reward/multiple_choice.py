"""The letter a completion chooses among options.

chosen("I think \\\\boxed{C}.", {"A": "2", "B": "3", "C": "5"}) == "C"
chosen("The answer is (B) 3.", …) == "B";  chosen("Answer: A or B", …) is None

Only a single letter of an option counts, or the text of exactly one; the most explicit place wins,
and of two alike the later, as in `final_answer`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from reward.boxes import boxed, has_box
from reward.final_answer import LABEL, TAG
from reward.tidy import tidy

Options = Mapping[str, str]

_DRESS = (
    r"[\s*_$`\"'(\[{]*(?:\\\(|\\text\s*\{|\\textbf\s*\{|\\mathrm\s*\{|\\mathbf\s*\{|\\boxed\s*\{)*"
)
# a letter, with "option" before it or not; group 2 is what is behind
_LETTER = re.compile(
    rf"(?:{_DRESS}(?:the\s+)?(?:correct\s+)?(?:option|choice|letter|answer)\b(?:\s+is)?\s*:?)?"
    rf"{_DRESS}([A-Za-z])(?![A-Za-z0-9'\^_/=+])[\s*_$`\"'\]}})\\]*(.*)",
    re.DOTALL | re.IGNORECASE,
)
_SECOND = re.compile(r"\s*(?:or|and|/|,|&)\s*\W{0,3}([A-Za-z])(?![A-Za-z])", re.IGNORECASE)


def chosen(answer: str, options: Options) -> str | None:
    """The option's letter, None where no single option is chosen.

    Args:
        answer: a completion's answer, without its reasoning.
        options: letter → text. Letters are upper case.
    """
    answer = tidy(answer)
    tags = TAG.findall(answer)
    if tags:
        answer = tags[-1]
    if has_box(answer):
        box = boxed(answer)
        return None if box is None else choice(box, options)
    for label in reversed(list(LABEL.finditer(answer))):
        rest = answer[label.end() : label.end() + 2000].strip()
        line = rest.split("\n", 1)[0]
        if line and (letter := _said(line, options)) is not _NOTHING:
            return letter
    lines = [line for line in answer.splitlines() if line.strip()]
    return choice(answer, options) or (choice(lines[-1][:2000], options) if lines else None)


_NOTHING = "?"  # a label that introduces neither a letter nor an option's text


def _said(line: str, options: Options) -> str | None:
    """What is behind a label: a letter, None for a hedge, _NOTHING for other words."""
    match = _LETTER.match(line)
    if match:
        letter, second = match[1].upper(), _SECOND.match(match[2])
        if second and second[1].upper() in options:
            return None
        if letter in options and _letter_stands(line, match, options[letter]):
            return letter
    return choice(line, options) or _by_text(line.split(". ")[0], options) or _NOTHING


def _letter_stands(line: str, match: re.Match[str], text: str) -> bool:
    """Whether a letter is an option's name and not the article in "A good guess"."""
    behind = line[match.end(1) :]
    if not behind.strip(" *_$`\"').]}\\") or re.match(r"\s*[.:,;)\]}*$\\–—-]", behind):
        return True
    if _plain(behind).startswith(_plain(text)):
        return True
    return re.match(r"\s+(?:because|since|as|is)\b", behind) is not None


def choice(text: str, options: Options) -> str | None:
    """The option that a short text is: "C", "(c)", "C. 5", "\\\\text{C}", or the text of one."""
    match = _LETTER.fullmatch(text.strip())
    if match:
        letter, rest = match[1].upper(), match[2].strip(" .:-–—\t\n*_$`\"')]}\\")
        if letter in options and (not rest or _plain(rest) == _plain(options[letter])):
            return letter
        if letter in options and re.match(r"[\s*]*[.:)\-]", text.strip()[match.end(1) :]):
            # "C. because …": a letter and a remark, unless the remark is another option
            return letter if _by_text(rest, options) in (None, letter) else None
    return _by_text(text, options)


def _by_text(text: str, options: Options) -> str | None:
    """The one option whose text this is."""
    wanted = _plain(text)
    found = [letter for letter, option in options.items() if _plain(option) == wanted]
    return found[0] if len(found) == 1 and wanted else None


def _plain(text: str) -> str:
    """As compared: one line of lower case, without what sets it in type, without a final stop."""
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", tidy(text))
    return " ".join(text.split()).strip(" .$*`\"'").lower()
