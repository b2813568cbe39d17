"""Figures of an audit: their names, their limits in a recipe, and the sentences on violations.

Nothing heavy is imported here, so that a report can be written where numpy is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.config.audit import SupervisionLimits

REPEATED = "repeated"  # kind of the excerpts of copies


@dataclass(frozen=True, slots=True)
class Figure:
    """Description of a count of a source, or of a kind of excerpts.

    Attributes:
        column: heading of the count in tables; "" for a kind of excerpts alone.
        means: statement that is true of each counted sequence.
        limit: key of the figure's limit under `limits`; "" where it has none.
        advice: sentence on what to do where the limit is crossed.
    """

    column: str
    means: str = ""
    limit: str = ""
    advice: str = ""


FIGURES = {
    REPEATED: Figure("", "exact copies"),
    "nothing_trained": Figure(
        "nothing trained",
        "nothing is trained",
        "nothing_trained",
        "Look at the mask, and at packing.max_length: are prompts longer than what is kept?",
    ),
    "end_trained": Figure(
        "end token trained",
        "the last answer's end token is trained",
        "min_end_trained",
        "A model trained so may not stop. Are answers clipped, or is the end token left out of "
        "the mask or of the text?",
    ),
    "no_end": Figure("no end token", "no end token after what is trained"),
    "end_masked": Figure("end token there, untrained", "the end token is there and not trained"),
    "empty_answer": Figure(
        "empty answer",
        "nothing but its end is trained of an answer",
        "max_empty_answers",
        "A model trained so may stop at once. Are answers empty, or left out of the mask?",
    ),
    "think_header": Figure(
        "prompt's think tag trained",
        "the trace that the generation prompt opens is trained",
        "max_think_header",
        "Inference gives it with the prompt: begin the mask behind the generation prompt.",
    ),
    "turn_tokens": Figure(
        "turn opener or pad trained",
        "a token that opens turns, or the pad, is trained",
        "max_turn_tokens",
        "Are prompts left unmasked, or chats pasted into answers?",
    ),
    "prompt_trained": Figure(
        "prompt turn trained",
        "a token of a system, user or tool turn is trained",
        "max_prompt_trained",
        "Mask what the assistant does not write.",
    ),
    "everything_trained": Figure("every token trained", "every token is trained"),
    "trained": Figure("", "the loss is taken"),
    "duplicated": Figure(
        "exact copies",
        "an exact copy of another sequence is present",
        "max_duplicated",
        "Deduplicate the source, or lower its share.",
    ),
    "empty_think": Figure("empty trace", "an answer is trained after an empty trace"),
    "cut_trace": Figure("trace cut to a budget"),
    "clipped": Figure("end clipped off"),
    "least_trained": Figure("", "the smallest share is trained"),
    "longest": Figure("", "the longest"),
}


def share(figures: Mapping[str, Any], name: str) -> float | None:
    """Share of a count: of tokens for `trained`, else of sequences; None where it is unknown."""
    total = figures["tokens" if name == "trained" else "sequences"]
    count = figures[name]
    return None if count is None or not total else count / total


def bounds(limits: SupervisionLimits) -> dict[str, str]:
    """Words for the limit of each limited figure, such as "at most 5%"."""
    words: dict[str, str] = {}
    for name, figure in FIGURES.items():
        limit = getattr(limits, figure.limit) if figure.limit else None
        if limit is not None:
            words[name] = f"{_bound_words(figure)} {limit:.0%}"
    return words


def violations(source: str, figures: Mapping[str, Any], limits: SupervisionLimits) -> list[str]:
    """Sentences on the figures of a source that cross a limit, each with advice."""
    sentences: list[str] = []
    for name in bounds(limits):
        figure = FIGURES[name]
        actual = share(figures, name)
        if actual is None:
            continue
        limit = getattr(limits, figure.limit)
        is_crossed = actual < limit if _is_minimum(figure) else actual > limit
        if is_crossed:
            sentences.append(
                f"source {source!r}: {figure.means} in {actual:.2%} of {figures['sequences']:,} "
                f"sequences ({figures[name]:,}), limits.{figure.limit} allows "
                f"{_bound_words(figure)} {limit:.2%}. {figure.advice}"
            )
    return sentences


def _is_minimum(figure: Figure) -> bool:
    return figure.limit.startswith("min_")


def _bound_words(figure: Figure) -> str:
    return "at least" if _is_minimum(figure) else "at most"
