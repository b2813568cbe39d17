"""Whether two texts are one text with some edits: counted in edited characters, not estimated.

similarity(NearText("tom has 5 apples…", …), NearText("tom has 5 aples…", …), edits=0.05) → 0.988
similarity(… "tom has 5 apples…", … "tom has 6 apples…", …)                              → None

What Jaccard similarity cannot tell apart, this does: 3 % of the characters at random damage a sixth
of all n-grams, and so does another question at the end of a shared text. Edits are counted on each
side by itself, so that a shared answer does not hide another question. Numbers, and single letters
of a question (variables, pieces on a board), are exempt from tolerance: texts that differ in them
more than in their words are two exercises made from one template.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein

from data_builders.dedup.near_text import NearText, in_key_order

SLACK = 3  # edits that a side of any length may have besides its share
Span = tuple[int, int]
_TIMES = 3
_DENSE = 0.15
_BRIDGE = 2
_DIGITS = re.compile(r"\d+")
_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"\w+|[^\w\s]")


def similarity(a: NearText, b: NearText, *, edits: float) -> float | None:
    """The share of the characters that two near-duplicates have in common, `None` for no such pair.

    Args:
        edits: the largest share of a side's characters that may be inserted, deleted or replaced.
    """
    differing = _edits(a, b, edits)
    if differing is None and (_has_json(a) or _has_json(b)):
        a, b = in_key_order(a), in_key_order(b)
        differing = _edits(a, b, edits)
    if differing is None or (differing and _another_exercise(a, b)):
        return None
    whole = max(len(a.asked), len(b.asked)) + max(len(a.answered), len(b.answered))
    return 1.0 - differing / max(whole, 1)


def allowed_edits(characters: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.int64]:
    """How many edits a side of that many characters may have."""
    return SLACK + np.floor(share * characters).astype(np.int64)


def _edits(a: NearText, b: NearText, share: float) -> int | None:
    """Edited characters of both sides, `None` when a side has more than its share and `SLACK`."""
    differing = 0
    for one, other in ((a.asked, b.asked), (a.answered, b.answered)):
        allowed = int(allowed_edits(np.array(max(len(one), len(other))), share))
        if abs(len(one) - len(other)) > allowed:
            return None
        distance = Levenshtein.distance(one, other, score_cutoff=allowed)
        if distance > allowed:
            return None
        differing += distance
    return differing


def _has_json(text: NearText) -> bool:
    sides = f"\n{text.asked}\n{text.answered}"
    return "\n{" in sides or "\n[" in sides


def _another_exercise(a: NearText, b: NearText) -> bool:
    """Whether something else was asked: in other numbers, or in a passage that was exchanged."""
    return (
        _other_values(a.asked, b.asked, _is_number_or_letter, fewest=2)
        or _other_values(
            f"{a.asked}\n{a.answered}", f"{b.asked}\n{b.answered}", str.isdigit, fewest=1
        )
        or _other_passage(a.asked, b.asked)
    )


def _other_values(one: str, other: str, is_value: Callable[[str], bool], *, fewest: int) -> bool:
    """Whether at least `fewest` values differ, and more than `_TIMES` as many as words do."""
    tokens, other_tokens = _WORD.findall(one), _WORD.findall(other)
    values = words = 0
    for step in Levenshtein.opcodes(tokens, other_tokens):
        before = tokens[step.src_start : step.src_end]
        after = other_tokens[step.dest_start : step.dest_end]
        if step.tag == "replace":
            both = [_another(x, y, is_value) for x, y in zip(before, after, strict=True)]
            values += sum(both)
            words += len(both) - sum(both)
        elif step.tag != "equal":
            alone = [is_value(token) for token in before + after]
            values += sum(alone)
            words += len(alone) - sum(alone)
    return values >= fewest and values > _TIMES * words


def _another(one: str, other: str, is_value: Callable[[str], bool]) -> bool:
    """`12` and `17`, `3x` and `4x`; where letters are values `b` and `w`; not `all` and `a1l`."""
    if is_value(one) and is_value(other):
        return True
    return one != other and _DIGITS.sub("0", one) == _DIGITS.sub("0", other)


def _is_number_or_letter(token: str) -> bool:
    return token.isdigit() or (len(token) == 1 and token.isascii())


def _other_passage(one: str, other: str) -> bool:
    """Whether some passage has more edits than scattered ones would leave in so short a place."""
    if one == other:
        return False
    tokens, other_tokens = _TOKEN.findall(one), _TOKEN.findall(other)
    for (start, end), (other_start, other_end) in _changed(tokens, other_tokens):
        before, after = "".join(tokens[start:end]), "".join(other_tokens[other_start:other_end])
        if before and after:
            limit = SLACK + _DENSE * max(len(before), len(after))
            if Levenshtein.distance(before, after) > limit:
                return True
    return False


def _changed(one: list[str], other: list[str]) -> list[tuple[Span, Span]]:
    """Where two lists differ; places with at most `_BRIDGE` equal tokens between them are one."""
    places: list[tuple[Span, Span]] = []
    for step in Levenshtein.opcodes(one, other):
        if step.tag == "equal":
            continue
        here = ((step.src_start, step.src_end), (step.dest_start, step.dest_end))
        if places and here[0][0] - places[-1][0][1] <= _BRIDGE:
            last = places.pop()
            here = ((last[0][0], here[0][1]), (last[1][0], here[1][1]))
        places.append(here)
    return places
