"""The figures of an audit: their names, their limits in a recipe, what crosses them.

Nothing heavy is imported here, so that a report can be written where numpy is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.config.audit import SupervisionLimits

REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class Figure:
    """One count of a source. Without `column` it only names what is shown to be read.

    Attributes:
        means: what is true of what is counted.
        limit: its key under `limits`, where it has one.
        advice: what to do where that is crossed.
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
    "trained": Figure(
        "",
        "the loss is taken",
        "min_trained",
        "Look for long prompts, and for turns that the mask leaves out.",
    ),
    "duplicated": Figure(
        "exact copies",
        "an exact copy of another sequence is present",
        "max_duplicated",
        "Deduplicate the source, or lower its share.",
    ),
    "empty_think": Figure(
        "empty trace",
        "an answer is trained after an empty trace",
        "max_empty_think",
        "Did reasoning get lost while reading? Look at reasoning.strip and fields.reasoning.",
    ),
    "cut_trace": Figure("trace cut to a budget"),
    "clipped": Figure("end clipped off"),
    "least_trained": Figure("", "the smallest share is trained"),
    "longest": Figure("", "the longest"),
}


def share(figures: Mapping[str, Any], name: str) -> float | None:
    """One count as a share: of tokens for `trained`, else of sequences; `None` if unknown."""
    total = figures["tokens" if name == "trained" else "sequences"]
    count = figures[name]
    return None if count is None or not total else count / total


def bounds(limits: SupervisionLimits) -> dict[str, str]:
    """The limit of each limited figure in words, to stand beside it."""
    return {
        name: f"{_side(figure)} {limit:.0%}"
        for name, figure in FIGURES.items()
        if figure.limit and (limit := getattr(limits, figure.limit)) is not None
    }


def violations(source: str, figures: Mapping[str, Any], limits: SupervisionLimits) -> list[str]:
    """Sentences on the figures that cross a limit, each with what to do."""
    crossed: list[str] = []
    for name in bounds(limits):
        figure = FIGURES[name]
        actual = share(figures, name)
        limit = getattr(limits, figure.limit)
        side = _side(figure)
        if actual is not None and (actual < limit if side == "at least" else actual > limit):
            unit = "tokens" if name == "trained" else "sequences"
            crossed.append(
                f"source {source!r}: {figure.means} in {actual:.2%} of {figures[unit]:,} {unit} "
                f"({figures[name]:,}), limits.{figure.limit} allows {side} {limit:.2%}. "
                f"{figure.advice}"
            )
    return crossed


def _side(figure: Figure) -> str:
    return "at least" if figure.limit.startswith("min_") else "at most"
