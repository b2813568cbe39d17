"""Whether two texts are one text with some edits: counted in edited characters, not estimated.

similarity(NearText("tom has five apples…", …), NearText("tom has five aples…", …), config) → 0.988
similarity(… "tom has five apples…", … "tom has nine apples…", …)                           → None

What Jaccard similarity cannot tell apart, this does: 3 % of the characters at random damage a sixth
of all n-grams, and so does another question at the end of a shared text. Three rules, ours:

1. Each side has its share of edits, so that a shared answer does not hide another question.
2. A side that is short by itself may differ only where the other does, and about as densely: edits
   at random fall on both. One canned answer to two questions, or "yes" and "no", do not pass.
3. Where something else may be said (`changes`), there must be slips that only damage the text: one
   to two words, numbers or signs that were exchanged, one to three changes that can be either. Two
   exercises from one template differ in words and numbers, and have no slips.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from data_builders.dedup.changes import changes_of
from data_builders.dedup.near_text import NearText, count_words, in_key_order
from data_builders.dedup.spans import Span, differing
from posttrain.config.deduplication import NearConfig

SLACK = 3  # edits that a side of any length may have besides its share
_DENSER = 5  # times the other side's share of edits that a short side may have
_EXCHANGED, _DOUBTFUL = 2, 3  # at most so many changes, to each that is a slip
Spans = tuple[Span, ...]


def similarity(a: NearText, b: NearText, config: NearConfig) -> float | None:
    """The share of the characters that two near-duplicates have in common, `None` for no such pair.

    Above 2,048 characters edits are counted in windows (`spans`).
    """
    found = _found(a, b, config)
    if found is None and (_has_json(a) or _has_json(b)):
        found = _found(in_key_order(a), in_key_order(b), config)
    return found


def allowed_edits(characters: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.int64]:
    """How many edits a side of that many characters may have."""
    return SLACK + np.floor(share * characters).astype(np.int64)


def _found(a: NearText, b: NearText, config: NearConfig) -> float | None:
    prompt_spans, answer_spans = _sides(a, b, config.edits)
    if prompt_spans is None or answer_spans is None:
        return None
    sizes = max(len(a.prompt), len(b.prompt)), max(len(a.answer), len(b.answer))
    edits = _edits(prompt_spans), _edits(answer_spans)
    if sum(edits) == 0:
        return 1.0
    if _only_one_side(a, b, sizes, edits, config.min_words):
        return None
    if _another(a, b, prompt_spans, answer_spans):
        return None
    return 1.0 - sum(edits) / sum(sizes)


def _only_one_side(
    a: NearText, b: NearText, sizes: tuple[int, int], edits: tuple[int, int], min_words: int
) -> bool:
    """Whether a side that is short by itself differs, and the other not as it does."""
    denser = (
        edits[0] * sizes[1] > _DENSER * edits[1] * sizes[0],
        edits[1] * sizes[0] > _DENSER * edits[0] * sizes[1],
    )
    texts = ((a.prompt, b.prompt), (a.answer, b.answer))
    return any(
        more and max(map(count_words, side)) < min_words
        for more, side in zip(denser, texts, strict=True)
    )


def _sides(a: NearText, b: NearText, share: float) -> tuple[Spans | None, Spans | None]:
    """Where each side differs, `None` for more edits than its share."""
    most, other_most = (
        int(allowed_edits(np.array(max(len(one), len(other))), share))
        for one, other in ((a.prompt, b.prompt), (a.answer, b.answer))
    )
    prompt_spans = differing(a.prompt, b.prompt, most=most)
    if prompt_spans is None:
        return None, None
    return prompt_spans, differing(a.answer, b.answer, most=other_most)


def _edits(spans: Spans) -> int:
    return sum(span.edits for span in spans)


def _has_json(text: NearText) -> bool:
    sides = f"\n{text.prompt}\n{text.answer}"
    return "\n{" in sides or "\n[" in sides


def _another(a: NearText, b: NearText, prompt_spans: Spans, answer_spans: Spans) -> bool:
    """Whether something else was asked, or the same was answered otherwise."""
    changes = changes_of(a.prompt, b.prompt, prompt_spans)
    if changes.passage:
        return True
    answer = changes_of(a.answer, b.answer, answer_spans)
    # what may be a slip is taken for one in the answer to one question
    doubtful = changes.doubtful + (answer.doubtful if prompt_spans else 0)
    exchanged = changes.exchanged + answer.exchanged
    if not doubtful and not exchanged:
        return False
    return changes.slips + answer.slips < max(1, exchanged / _EXCHANGED, doubtful / _DOUBTFUL)
