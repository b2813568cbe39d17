"""Which language a text is in, by py3langid (Lui and Baldwin 2012), offline; extra `language`.

Of a long text three pieces are judged, its beginning, middle and end, without code, formulas,
addresses and numbers.
"""

from __future__ import annotations

import importlib
import re
from functools import lru_cache
from typing import Any

from data_builders.rows.raw import Match
from posttrain.config.filters import LanguageFilter
from posttrain.errors import ConfigError

_PIECE = 2000  # characters
_FENCE = "```"
_NO_LANGUAGE = re.compile(
    r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|`[^`\n]*`"  # code
    r"|\$\$.*?\$\$|\$[^$\n]*\$|\\\[.*?\\\]|\\\(.*?\\\)"  # formulas
    r"|\\begin\{[a-z*]+\}.*?\\end\{[a-z*]+\}"
    r"|https?://\S+|<[^<>\n]{1,200}>|\\[a-zA-Z]+"
    r"|[\d_=+*/<>|{}\[\]#^~\\]+",
    re.DOTALL,
)
_LETTERS = re.compile(r"[^\W\d_]")


class LanguageCheck:
    """Says of a text whether it is in a language that is not allowed.

    Raises:
        ConfigError: py3langid is not installed, or a code is none it knows.
    """

    def __init__(self, limits: LanguageFilter) -> None:
        self._limits = limits
        self._identifier = _identifier()
        unknown = sorted(set(limits.allowed) - set(self._identifier.labels))
        if unknown:
            raise ConfigError(
                f"filters.language.allowed: {', '.join(unknown)} is no language that py3langid "
                f"knows; it knows {', '.join(sorted(self._identifier.labels))}"
            )

    def foreign(self, text: str) -> Match | None:
        """The first of three pieces that is in a language not allowed."""
        for start, end in _pieces(text):
            piece = _prose(text, start, end)
            if len(_LETTERS.findall(piece)) < self._limits.letters:
                continue
            language, confidence = self._identifier.classify(piece)
            if language not in self._limits.allowed and confidence >= self._limits.confidence:
                return Match(f"{language} with probability {confidence:.2f}", start, end)
        return None


def _prose(text: str, start: int, end: int) -> str:
    """The piece without code, formulas, addresses and numbers."""
    in_code = text.count(_FENCE, 0, start) % 2 == 1
    return _NO_LANGUAGE.sub(" ", (_FENCE if in_code else "") + text[start:end])


def _pieces(text: str) -> list[tuple[int, int]]:
    """Three pieces of the text, or the whole of a short one."""
    if len(text) <= 3 * _PIECE:
        return [(0, len(text))]
    middle = (len(text) - _PIECE) // 2
    return [(0, _PIECE), (middle, middle + _PIECE), (len(text) - _PIECE, len(text))]


@lru_cache(maxsize=1)
def _identifier() -> Any:
    try:
        langid = importlib.import_module("py3langid.langid")
    except ImportError:
        raise ConfigError(
            "filters.language needs py3langid, which is not installed: "
            "pip install 'posttrain[language]'"
        ) from None
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
