"""Counts of an audit as shares, held against the limits of a recipe; the kinds of what is shown.

    violations("maths", figures, limits)  →  ["source 'maths': nothing is trained in 15.00% of …"]

Nothing heavy is imported here, so that a report can be written where numpy is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posttrain.config.audit import SupervisionLimits

REPEATED = "repeated"
# in the order in which they are shown
KIND_TITLES = {
    REPEATED: "exact copies",
    "nothing_trained": "nothing is trained",
    "no_end": "no end token after what is trained",
    "end_masked": "the end token is there and not trained",
    "empty_answer": "nothing but its end is trained of an answer",
    "think_header": "the trace that the generation prompt opens is trained",
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


def bounds(limits: SupervisionLimits) -> dict[str, str]:
    """The limit of each limited figure in words, to stand beside it."""
    found: dict[str, str] = {}
    for name, (key, _, _) in _LIMITED.items():
        limit: float | None = getattr(limits, key)
        if limit is not None:
            found[name] = f"{'at least' if key.startswith('min_') else 'at most'} {limit:.0%}"
    return found


def violations(source: str, figures: Mapping[str, Any], limits: SupervisionLimits) -> list[str]:
    """What crosses a limit: the source, the figure, the limit, and what to do."""
    found: list[str] = []
    for name, (key, what, advice) in _LIMITED.items():
        limit: float | None = getattr(limits, key)
        actual = share(figures, name)
        if limit is None or actual is None:
            continue
        least = key.startswith("min_")
        if actual < limit if least else actual > limit:
            whole = "tokens" if name == "trained" else "sequences"
            found.append(
                f"source {source!r}: {what} in {actual:.2%} of {figures[whole]:,} {whole} "
                f"({figures[name]:,}), limits.{key} allows {'at least' if least else 'at most'} "
                f"{limit:.2%}. {advice}"
            )
    return found


# figure → its limit, what it counts, what to do
_LIMITED: Mapping[str, tuple[str, str, str]] = {
    "nothing_trained": (
        "nothing_trained",
        "nothing is trained",
        "Look at the mask, and at packing.max_length: are prompts longer than what is kept?",
    ),
    "end_trained": (
        "min_end_trained",
        "the last answer's end token is trained",
        "A model trained so may not stop. Are answers clipped, or is the end token left out of "
        "the mask or of the text?",
    ),
    "empty_answer": (
        "max_empty_answers",
        KIND_TITLES["empty_answer"],
        "A model trained so may stop at once. Are answers empty, or left out of the mask?",
    ),
    "think_header": (
        "max_think_header",
        KIND_TITLES["think_header"],
        "Inference gives it with the prompt: begin the mask behind the generation prompt.",
    ),
    "turn_tokens": (
        "max_turn_tokens",
        KIND_TITLES["turn_tokens"],
        "Are prompts left unmasked, or chats pasted into answers?",
    ),
    "prompt_trained": (
        "max_prompt_trained",
        "a token of a system, user or tool turn is trained",
        "Mask what the assistant does not write.",
    ),
    "trained": (
        "min_trained",
        "the loss is taken",
        "Look for long prompts, and for turns that the mask leaves out.",
    ),
    "duplicated": (
        "max_duplicated",
        "an exact copy of another sequence is present",
        "Deduplicate the source, or lower its share.",
    ),
    "empty_think": (
        "max_empty_think",
        "an answer is trained after an empty trace",
        "Did reasoning get lost while reading? Look at reasoning.strip and fields.reasoning.",
    ),
}
