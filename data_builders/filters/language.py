"""Language of a text, classified offline by py3langid (Lui and Baldwin 2012), extra `language`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from data_builders.rows.raw import Match
from posttrain.config.filters import LanguageFilter
from posttrain.errors import ConfigError

_PIECE_CHARACTERS = 2000
_FENCE = "```"
_NOT_PROSE = re.compile(
    r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)|`[^`\n]*`"  # code
    r"|\$\$.*?\$\$|\$[^$\n]*\$|\\\[.*?\\\]|\\\(.*?\\\)"  # formulas
    r"|\\begin\{[a-z*]+\}.*?\\end\{[a-z*]+\}"
    r"|https?://\S+|<[^<>\n]{1,200}>|\\[a-zA-Z]+"
    r"|[\d_=+*/<>|{}\[\]#^~\\]+",
    re.DOTALL,
)
_LETTERS = re.compile(r"[^\W\d_]")
# letters of the shortest text that is judged; ours. In fewer, a name or a quotation decides
MIN_LETTERS = 200
# of an answer to a request; ours, chosen on half of the rows in docs/evidence/benchmarks.md
_MIN_ANSWER_LETTERS = 40
_MIN_PART_LETTERS = 10
_MIN_CONFIDENCE = 0.5
_POSSIBLE = 0.01  # probability of a language that a part of the request may be in
_MAX_SHARED = 0.05  # probability that an answer is in one of these, above which it is not foreign
_PARTS = re.compile(r"[\n:\"“”«»「」『』]+")
_QUOTED = re.compile(r"[\"“«「『]([^\W\d_]{3,})[\"”»」』]")
_MAX_PARTS = 200
_NO_LANGUAGE = "zxx"  # what py3langid calls letters that are no text
# names of the languages that requests mostly name, and "translate" and "language" in some: such a
# request may want an answer in another language than its own
_NAMES_LANGUAGE = re.compile(
    r"\b(?:Arabic|Bengali|Catalan|Chinese|Czech|Danish|Dutch|English|Finnish|French|German|Greek"
    r"|Hebrew|Hindi|Hungarian|Indonesian|Italian|Japanese|Korean|Latin|Mandarin|Norwegian|Persian"
    r"|Polish|Portuguese|Romanian|Russian|Spanish|Swahili|Swedish|Tamil|Thai|Turkish|Ukrainian|Urdu"
    r"|Vietnamese)\b"
    r"|translat|languag|übersetz|sprache|tradu|idioma|tłumacz|перев|язык|terjemah|çevir|ترجم|अनुवाद"
    r"|[语語]言|[译譯訳]|[英法德俄日韩韓中汉漢][语語文]|번역",
    re.IGNORECASE,
)


class LanguageCheck:
    """Search for texts in a language that is not allowed.

    Args:
        min_letters: letters of the shortest text that is judged, code and formulas not counted.

    Raises:
        ConfigError: py3langid is not installed, or does not know a language code.
    """

    def __init__(self, limits: LanguageFilter, *, min_letters: int = MIN_LETTERS) -> None:
        self._limits = limits
        self._min_letters = min_letters
        self._identifier = _identifier()
        unknown = sorted(set(limits.allowed) - set(self._identifier.labels))
        if unknown:
            raise ConfigError(
                f"filters.language.allowed: {', '.join(unknown)} is no language that py3langid "
                f"knows; it knows {', '.join(sorted(self._identifier.labels))}"
            )

    def foreign(self, text: str) -> Match | None:
        """Match of the first piece, of up to three, that is in a language not allowed."""
        for start, end in _pieces(text):
            piece = _prose(text, start, end)
            if len(_LETTERS.findall(piece)) < self._min_letters:
                continue
            language, confidence = self._identifier.classify(piece)
            if language not in self._limits.allowed and confidence >= self._limits.confidence:
                return Match(f"{language} with probability {confidence:.2f}", start, end)
        return None


class AnswerLanguage:
    """Search for answers in another language than their request.

    Args:
        frames: texts that prompts write around a request, which say nothing of its language.

    Raises:
        ConfigError: py3langid is not installed.
    """

    def __init__(self, frames: Sequence[str] = ()) -> None:
        self._identifier = _identifier()
        self._frames = frames

    def foreign(self, answer: str, request: str) -> str | None:
        """Language of the answer, with its probability, if the request is in no such language.

        None as well if the answer has few letters beside code and formulas, if the request has, or
        if it names a language: a translation is asked for.
        """
        for frame in self._frames:
            request = request.replace(frame, "\n")
        for start, end in _pieces(answer):
            piece = _prose(answer, start, end)
            if len(_LETTERS.findall(piece)) < _MIN_ANSWER_LETTERS:
                continue
            probabilities: dict[str, float] = dict(self._identifier.rank(piece))
            language = max(probabilities, key=lambda code: probabilities[code])
            if language == _NO_LANGUAGE or probabilities[language] < _MIN_CONFIDENCE:
                continue
            if not self._is_requested(probabilities, request):
                return f"{language} with probability {probabilities[language]:.2f}"
        return None

    def _is_requested(self, probabilities: Mapping[str, float], request: str) -> bool:
        """True if a text with these probabilities may be in a language of the request."""
        whole = request[: 3 * _PIECE_CHARACTERS]
        # a text in one language may quote another, or be wrapped in a prompt of another
        parts = _PARTS.split(request)
        proses = [
            _prose(text, 0, len(text))
            for text in (whole, *parts[:_MAX_PARTS], *parts[-_MAX_PARTS:])
        ]
        # a word or two may be of many languages, and counts only where it is quoted
        judged = [prose for prose in proses if len(_LETTERS.findall(prose)) >= _MIN_PART_LETTERS]
        judged += _QUOTED.findall(request)[:_MAX_PARTS] if judged else []
        if not judged:
            return True
        for prose in judged:
            possible = [code for code, share in self._identifier.rank(prose) if share >= _POSSIBLE]
            # related languages share a text's probability, so that it is summed
            if sum(probabilities[code] for code in possible) > _MAX_SHARED:
                return True
        return _NAMES_LANGUAGE.search(request) is not None


def _prose(text: str, start: int, end: int) -> str:
    """Piece of the text without code, formulas, addresses and numbers."""
    piece = text[start:end]
    # a piece that begins inside a block of code gets the fence that opened it
    if text.count(_FENCE, 0, start) % 2 == 1:
        piece = _FENCE + piece
    return _NOT_PROSE.sub(" ", piece)


def _pieces(text: str) -> list[tuple[int, int]]:
    """Spans of the beginning, middle and end of a text, or of the whole of a short one."""
    length = len(text)
    if length <= 3 * _PIECE_CHARACTERS:
        return [(0, length)]
    starts = (0, (length - _PIECE_CHARACTERS) // 2, length - _PIECE_CHARACTERS)
    return [(start, start + _PIECE_CHARACTERS) for start in starts]


@lru_cache(maxsize=1)
def _identifier() -> Any:
    """Load py3langid's model, once. Raises ConfigError if it is not installed."""
    try:
        langid = importlib.import_module("py3langid.langid")
    except ImportError:
        raise ConfigError(
            "py3langid, which identifies languages, is not installed: "
            "pip install 'posttrain[language]'"
        ) from None
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
