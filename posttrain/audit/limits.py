"""Counts of an audit as shares, held against the limits of a recipe; the kinds of what is shown.

    violations("maths", figures, limits)  →  ["source 'maths': nothing is trained in 15.00% of …"]

Nothing heavy is imported here, so that a report can be written where numpy is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.config.supervision import SupervisionLimits

REPEATED = "repeated"
# in the order in which they are shown
KIND_TITLES = {
    REPEATED: "exact copies",
    "nothing_trained": "nothing is trained",
    "no_end": "no end token after what is trained",
    "end_masked": "the end token is there and not trained",
    "turn_tokens": "a token that opens turns, or the pad, is trained",
    "prompt_trained": "a system, user or tool turn is trained",
    "everything_trained": "every token is trained",
    "empty_think": "an answer after an empty trace",
    "least_trained": "the smallest share is trained",
    "longest": "the longest",
}


def share(figures: Mapping[str, Any], name: str) -> float | None:
    """One count as a share: of tokens for `trained`, else of sequences; `None` if unknown."""
    whole = figures["tokens" if name == "trained" else "sequences"]
    count = figures[name]
    return None if count is None or not whole else count / whole


def violations(source: str, figures: Mapping[str, Any], limits: SupervisionLimits) -> list[str]:
    """What crosses a limit: the source, the figure, the limit, and what to do."""
    found: list[str] = []
    for name, key, advice in _LIMITED:
        limit: float | None = getattr(limits, key)
        actual = share(figures, name)
        if limit is None or actual is None:
            continue
        least = key.startswith("min_")
        if actual < limit if least else actual > limit:
            whole = "tokens" if name == "trained" else "sequences"
            bound = "at least" if least else "at most"
            found.append(
                f"source {source!r}: {_WORDS[name]} in {actual:.2%} of {figures[whole]:,} {whole} "
                f"({figures[name]:,}), limits.{key} allows {bound} {limit:.2%}. {advice}"
            )
    return found


_WORDS = {
    "nothing_trained": "nothing is trained",
    "end_trained": "the last answer's end token is trained",
    "turn_tokens": "a token that opens turns, or the pad, is trained",
    "prompt_trained": "a token of a system, user or tool turn is trained",
    "trained": "the loss is taken",
    "duplicated": "an exact copy of another sequence is found",
    "empty_think": "an answer is trained after an empty trace",
}
_LIMITED = (
    (
        "nothing_trained",
        "nothing_trained",
        "Look at the mask, and at packing.max_length: are prompts longer than what is kept?",
    ),
    (
        "end_trained",
        "min_end_trained",
        "A model trained so may not stop. Are answers clipped, or is the end token left out of "
        "the mask or of the text?",
    ),
    ("turn_tokens", "max_turn_tokens", "Are prompts left unmasked, or chats pasted into answers?"),
    ("prompt_trained", "max_prompt_trained", "Mask what the assistant does not write."),
    ("trained", "min_trained", "Look for long prompts, and for turns that the mask leaves out."),
    ("duplicated", "max_duplicated", "Deduplicate the source, or lower its share."),
    (
        "empty_think",
        "max_empty_think",
        "Did reasoning get lost while reading? Look at reasoning.strip and fields.reasoning.",
    ),
)
