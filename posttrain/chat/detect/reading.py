"""Reads payloads at a position: JSON values, Python-style calls; bounded, whatever the text.

    Reader('{"a": 1} etc.').json(0) → ({"a": 1}, 8)
    Reader("[f(x=1, y='b')]").python_list(0) → ((Asked("f", {"x": 1, "y": "b"}),), 15)

What fails costs work; a reader stops trying when it has failed over a few times the text's length,
so that hostile text takes linear time.
"""

from __future__ import annotations

import json
import re
from typing import Any

from posttrain.chat.detect.requested import UNREAD, RequestedCall

NOTHING = object()
_DECODER = json.JSONDecoder(strict=False)  # raw newlines in strings are common in calls
_WINDOW = 4096
_SPACE = re.compile(r"\s*")
# names with spaces are real: [Market Trends API(country="us")]
_CALL_HEAD = re.compile(r"([A-Za-z_][\w.\-/ ]{0,127})(?<! )\(")
_KEYWORD = re.compile(r"\s*([A-Za-z_]\w{0,127})\s*=(?!=)\s*")
_LITERALS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_OPENING, _CLOSING = "([{", ")]}"


class TextReader:
    """A text, and how much failing work may still be spent on it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.budget = 8 * len(text) + 20_000
        self._missing: dict[str, int] = {}

    def skip(self, position: int) -> int:
        """The next position that is no white space."""
        match = _SPACE.match(self.text, position)
        return match.end() if match else position

    def find(self, needle: str, position: int) -> int:
        """`text.find`, which searches for what is not there only once."""
        if self._missing.get(needle, len(self.text) + 1) <= position:
            return -1
        at = self.text.find(needle, position)
        if at < 0:
            self._missing[needle] = position
        return at

    def json(self, position: int) -> tuple[Any, int]:
        """The JSON value at a position and its end; (NOTHING, position) where there is none."""
        if self.budget <= 0 or self.text[position : position + 1] not in ("{", "["):
            return NOTHING, position
        # an error counts the lines before it, so the text is handed over in a window
        for size in (_WINDOW, len(self.text)):
            stop = min(position + size, len(self.text))
            try:
                value, end = _DECODER.raw_decode(self.text[position:stop])
                self.budget -= end
                return value, position + end
            except json.JSONDecodeError as error:
                self.budget -= max(error.pos, 16)
                # a string that never ends is reported where it began
                cut_off = error.pos >= stop - position or error.msg.startswith("Unterminated")
                if stop == len(self.text) or not cut_off or self.budget <= 0:
                    return NOTHING, position
                self.budget -= len(self.text) - position
            except (RecursionError, ValueError):  # ValueError: a number with too many digits
                self.budget -= 20_000
                return NOTHING, position
        return NOTHING, position

    def python_call(self, position: int) -> tuple[RequestedCall | None, int]:
        """The call `name(key=value, …)` at a position; None where there is no such.

        Positional arguments are kept under the names "0", "1", … .
        """
        head = _CALL_HEAD.match(self.text, position)
        if head is None or self.budget <= 0:
            return None, position
        end, commas = self._closing(head.end())
        if end < 0:
            self.budget -= commas[-1] - position
            return None, position
        pieces = [head.end(), *(c + 1 for c in commas[:-1])]
        stops = [*commas[:-1], end]
        arguments: dict[str, Any] = {}
        for k, (start, stop) in enumerate(zip(pieces, stops, strict=True)):
            piece = self.text[start:stop]
            keyword = _KEYWORD.match(piece)
            if keyword:
                arguments[keyword[1]] = _literal(piece[keyword.end() :])
            elif piece.strip():
                arguments[str(k)] = _literal(piece)
        return RequestedCall(head[1], arguments), end + 1

    def python_list(self, position: int) -> tuple[tuple[RequestedCall, ...], int]:
        """The list of calls `[f(…), g(…)]` at a position; () where there is no such."""
        at, found = self.skip(position + 1), list[RequestedCall]()
        while True:
            call, end = self.python_call(at)
            if call is None:
                break
            found.append(call)
            at = self.skip(end)
            mark = self.text[at : at + 1]
            if mark == "]":
                return tuple(found), at + 1
            if mark != ",":
                break
            at = self.skip(at + 1)
        self.budget -= at - position
        return (), position

    def _closing(self, position: int) -> tuple[int, list[int]]:
        """Where the parenthesis that is open at `position` closes, and the commas at its level.

        The list's last entry is how far was read.
        """
        text, depth, commas, quote = self.text, 1, list[int](), ""
        at = position
        while at < len(text):
            char = text[at]
            if quote:
                if char == "\\":
                    at += 1
                elif char == quote:
                    quote = ""
            elif char in "\"'":
                quote = char
            elif char in _OPENING:
                depth += 1
            elif char in _CLOSING:
                depth -= 1
                if depth == 0:
                    return at, [*commas, at]
            elif char == "," and depth == 1:
                commas.append(at)
            at += 1
        return -1, [*commas, at]


def _literal(text: str) -> Any:
    """A Python or JSON literal's value, `UNREAD` where the text is another expression."""
    text = text.strip()
    if text in _LITERALS:
        return _LITERALS[text]
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'" and text[0] not in text[1:-1]:
        return text[1:-1]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(text.replace("'", '"'))
    except (ValueError, RecursionError):
        return UNREAD
