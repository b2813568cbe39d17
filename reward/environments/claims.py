"""What a message says was done, for comparison with what was done.

    claimed("Your fee has been refunded.", BANK) → [("refund_fee", "Your fee has been refunded")]

A clause claims an action where it has the action's words, and nothing that denies it, asks, or
makes it depend on something. A promise is a claim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_CLAUSE_END = re.compile(r"[;:!\n]|[.,](?!\d)|\b(?:but|although|though)\b")
_SENTENCE = re.compile(r"[^.!?\n]*(?:\.(?=\d)[^.!?\n]*)*[.!?\n]?")
# of the whole sentence; of a clause
_DEPENDS = re.compile(
    r"\?|\b(?:if|once|when|whether|unless|until|after|in case|would you)\b", re.IGNORECASE
)
_DENIES = re.compile(
    r"n't\b|\b(?:not|no|none|nothing|never|neither|nor|cannot|unable|without|instead of|can|could"
    r"|may|might|would|should|must|asked|requested?|wish(?:ed)?|wanted|to (?:be|have|get)|refused"
    r"|declined)\b",
    re.IGNORECASE,
)


def claimed(text: str, actions: Mapping[str, re.Pattern[str]]) -> list[tuple[str, str]]:
    """The actions (by name, what a clause has that claims it) that a text says were done, each with
    its clause."""
    claims: list[tuple[str, str]] = []
    for sentence in _SENTENCE.findall(text.replace("’", "'")):
        if _DEPENDS.search(sentence):
            continue
        for clause in _CLAUSE_END.split(sentence):
            if not _DENIES.search(clause):
                claims += [
                    (name, clause) for name, words in actions.items() if words.search(clause)
                ]
    return claims


def words(*alternatives: str) -> re.Pattern[str]:
    """Matches a clause with one of the alternatives; `a .* b` are two words in either order."""
    forms: list[str] = []
    for one in alternatives:
        first, _, second = one.partition(" .* ")
        forms.append(rf"(?=.*\b(?:{first})\b)" + (rf"(?=.*\b(?:{second})\b)" if second else ""))
    return re.compile(rf"^(?:{'|'.join(forms)})", re.IGNORECASE | re.DOTALL)


def numbers(clause: str) -> set[float]:
    """The numbers of a clause, without those of references and ids: `1,200.00` is 1200."""
    text = re.sub(r"[A-Za-z]+\W{0,2}-?\W{0,2}\d{5}(?!\d)|[A-Za-z]+-\d+", " ", clause)
    found = re.findall(r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?", text)
    return {float(number.replace(",", "")) for number in found}
