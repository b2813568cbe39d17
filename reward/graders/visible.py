r"""The text that the reader of a rendered page sees and that is not struck out.

visible("It is 20. <!-- 18 --> $\color{white}{18}$ ~~18~~") == "It is 20.  $$ "
"""

from __future__ import annotations

import html
import re

_BRACES = r"\{(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\})*+\}"
_COMMENT = re.compile(
    r"<!--.*?(?:-->|\Z)"  # of HTML
    # of Markdown: a reference to nowhere, "[//]: # (a remark)", or to an address
    r"|^ {0,3}\[[^\]\n]{1,60}\]:[ \t]*(?:(?:#|<#?>)(?:[ \t][^\n]*)?|<?(?:https?|ftp)://[^\n]*)$",
    re.DOTALL | re.MULTILINE,
)
# on a line of its own or behind a sentence: "50 % of 36" and "\%" are none
_LATEX_COMMENT = re.compile(
    r"(?:^[ \t]*|(?<=[.!?])[ \t]+)%[^\n]*|\\begin\s*\{comment\}.*?(?:\\end\s*\{comment\}|\Z)"
    r"|\\iffalse\b.*?(?:\\fi\b|\Z)",
    re.DOTALL | re.MULTILINE,
)
_CODE = re.compile(r"(^[ ]{0,3}(```|~~~).*?(?:^[ ]{0,3}\2|\Z))", re.DOTALL | re.MULTILINE)
_WHITE = r"(?:white|transparent|\#?fff(?:f?f?|fff(?:ff)?)\b|rgba?\(255,\s?255,\s?255[^)]*\))"
_UNSEEN = (
    r"display\s?:\s?none|visibility\s?:\s?(?:hidden|collapse)|opacity\s?:\s?0(?:\.0*)?(?![.\d])"
    r"|(?:font-size|height)\s?:\s?0(?![.\d])|(?:left|top|text-indent)\s?:\s?-\d{3}"
    rf"|(?<![\w-])color\s?:\s?{_WHITE}"
)
# elements of HTML that a page does not show; white text on a background is seen
_HIDDEN = re.compile(
    r"<(template|script|style|noscript)\b[^<>]{0,200}>.{0,2000}?</\1>"
    r"|<(\w{1,20})(?=\s)(?![^<>]*background)[^<>]{0,200}?\s"
    rf"(?:hidden\b|style=[\"'][^\"'<>]{{0,200}}?(?:{_UNSEEN})|color\s?=\s?[\"']?{_WHITE})"
    r"[^<>]{0,200}>.{0,2000}?</\2>",
    re.DOTALL | re.IGNORECASE,
)
# a tag with attributes, whose values are not seen either; "a <b, c = 2 and d> 3" is none
_TAG = re.compile(
    r"(?<!<)<(?:a|abbr|b|body|br|button|code|div|em|font|h\d|i|iframe|img|input|li|link|meta|option|p|pre"
    r"|section|small|span|strong|sub|sup|table|td|textarea|th|tr|u|ul|video)"
    r"\s+[a-z-]+\s?=(?:\"[^\"]{0,9999}\"|'[^']{0,9999}'|[^<>\"'])*+>"
    r"|(?<=\])\(\S{1,300}\s+(?:\"[^\"\n]*\"|'[^'\n]*')\)",  # the target and title of a link
    re.IGNORECASE,
)
# text that LaTeX leaves blank, keeps for later or strikes out
_STRUCK = re.compile(
    r"\\(?:[hv]?phantom|[bx]?cancel|sout|label|def\s*\\[A-Za-z]+|scalebox\s*\{0(?:\.0*)?\}"
    rf"|(?:re)?newcommand\*?\s*\{{?\\[A-Za-z]+\}}?)\s*{_BRACES}"
    r"|<(del|s|strike)\b[^<>]{0,200}>(?:(?!<\1\b).)*?</\1>|(?<!~)~~(?![~\s])[^~\n]+~~(?!~)",
    re.DOTALL | re.IGNORECASE,
)
# white text, as an argument or up to the next colour or the end of the formula or group
_WHITE_LATEX = re.compile(
    rf"\\f?colorbox\s*(?:{_BRACES}\s*){{1,3}}"
    r"|(\\(?:text)?color\s*(?:\[\w+\]\s*)?\{\s*(?:white|\#?f{3}(?:f{3})?|1,\s?1,\s?1|255,\s?255,\s?255)"
    rf"\s*\}}\s*(?:{_BRACES}|(?:(?!\\(?:text)?color|\\[)\]])[^{{}}$]|{_BRACES})*))",
    re.IGNORECASE,
)


def visible(text: str) -> str:
    """The text without comments, hidden and white elements, attributes and what is struck out."""
    text = _LATEX_COMMENT.sub("", _without_hidden(text))
    text = _WHITE_LATEX.sub(lambda match: "" if match[1] else match[0], text)
    return _STRUCK.sub("", text)


def shown(text: str) -> str:
    """The text as a page shows it, struck out or not: without what HTML and Markdown hide.

    Entities such as `&#44;` are the characters that they stand for. Code is left as it is.
    """
    parts = _CODE.split(text)  # text, code and its fence in turns
    for index in range(0, len(parts), 3):
        parts[index] = html.unescape(_without_hidden(parts[index]))
    del parts[2::3]
    return "".join(parts)


def _without_hidden(text: str) -> str:
    """The text without comments, hidden and white elements, and attributes."""
    return _TAG.sub("", _HIDDEN.sub("", _COMMENT.sub("", text)))
