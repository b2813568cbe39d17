"""Claims of a message that something was done, for comparison with what was done.

    claimed("Your fee has been refunded.", BANK) → [("refund_fee", "Your fee has been refunded")]

A clause claims an action if it has the action's words and no word that denies it, asks, or makes it
conditional. A promise is a claim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_CLAUSE_END = re.compile(r"[;:!\n]|[.,](?!\d)|\b(?:but|although|though)\b")
_SENTENCE = re.compile(r"[^.!?\n]*(?:\.(?=\d)[^.!?\n]*)*[.!?\n]?")
# words that make a whole sentence a question or conditional
_CONDITIONAL = re.compile(
    r"\?|\b(?:if|once|when|whether|unless|until|after|in case|would you)\b", re.IGNORECASE
)
# words that keep a clause from claiming
_DENIES = re.compile(
    r"n't\b|\b(?:not|no|none|nobody|nothing|never|neither|nor|cannot|unable|without|instead of|can"
    r"|could|may|might|would|should|must|asked|requested?|wish(?:ed)?|wanted|to (?:be|have|get)"
    r"|refused|declined)\b",
    re.IGNORECASE,
)


def claimed(text: str, actions: Mapping[str, re.Pattern[str]]) -> list[tuple[str, str]]:
    """(action, clause) of each claim in a text.

    Args:
        actions: name of an action → pattern of a clause that claims it.
    """
    claims: list[tuple[str, str]] = []
    for sentence in _SENTENCE.findall(text.replace("’", "'")):
        if _CONDITIONAL.search(sentence):
            continue
        for clause in _CLAUSE_END.split(sentence):
            if _DENIES.search(clause):
                continue
            for action, pattern in actions.items():
                if pattern.search(clause):
                    claims.append((action, clause))
    return claims


def words(*alternatives: str) -> re.Pattern[str]:
    """Pattern of a clause with one of the alternatives; `a .* b` are two words in either order."""
    lookaheads: list[str] = []
    for alternative in alternatives:
        word, _, second_word = alternative.partition(" .* ")
        lookahead = rf"(?=.*\b(?:{word})\b)"
        if second_word:
            lookahead += rf"(?=.*\b(?:{second_word})\b)"
        lookaheads.append(lookahead)
    return re.compile(rf"^(?:{'|'.join(lookaheads)})", re.IGNORECASE | re.DOTALL)


def numbers(clause: str) -> set[float]:
    """The numbers of a clause, without those of references and ids: `1,200.00` is 1200."""
    text = re.sub(r"[A-Za-z]+\W{0,2}-?\W{0,2}\d{5}(?!\d)|[A-Za-z]+-\d+", " ", clause)
    numerals = re.findall(r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?", text)
    return {float(numeral.replace(",", "")) for numeral in numerals}
