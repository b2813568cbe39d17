"""Structural checks on reasoning: think tags that were not split off because they do not fit.

unclosed_think(Example: … assistant "<think>2+2") → Drop("unclosed_think", "message 1: …")

Only assistant turns count; a user may write about tags.
"""

from __future__ import annotations

from data_builders.filters.drop import Drop
from posttrain.chat.reasoning import has_tags, split_think
from posttrain.records import Example

_PARTNERLESS = {
    "unclosed_think": "an opening tag without its closing one",
    "unopened_think": "a closing tag without its opening one (see prefilled_think)",
}
_FOREIGN = (
    "<|begin_of_thought|>", "<thinking>", "<thought>", "<reasoning>", "<reason>", "<reflection>",
    "<seed:think>", "[THINK]", "◁think▷", "<|channel|>analysis",
)  # fmt: skip
_MISPLACED = {
    "nested_think": "a trace inside a trace",
    "second_think": "a trace after the start of the text",
}


def unclosed_think(example: Example) -> Drop | None:
    """A think tag without its partner."""
    return _find(example, "unclosed_think", _PARTNERLESS)


def nested_think(example: Example) -> Drop | None:
    """Traces inside traces, after an answer's start, or tags inside a trace of its own field."""
    for index, message in enumerate(example.messages):
        trace = message.reasoning or ""
        if message.role == "assistant" and has_tags(trace):
            return Drop("nested_think", f"message {index}: a think tag inside the trace")
    return _find(example, "nested_think", _MISPLACED)


def foreign_think(example: Example) -> Drop | None:
    """An assistant text that opens with a trace in other tags than `<think>`.

    Kept, it would be a reasoning trace trained as the answer of a turn with reasoning off.
    """
    for index, message in enumerate(example.messages):
        if message.role == "assistant":
            text = message.content.lstrip()
            for tag in _FOREIGN:
                if text.startswith(tag):
                    detail = f"the text opens with {tag}; rewrite such traces with <think> tags"
                    return Drop("foreign_think", f"message {index}: {detail}")
    return None


def _find(example: Example, reason: str, problems: dict[str, str]) -> Drop | None:
    for index, message in enumerate(example.messages):
        if message.role != "assistant" or not has_tags(message.content):
            continue
        problem = split_think(message.content).problem
        if problem is not None and problem in problems:
            return Drop(reason, f"message {index}: {problems[problem]}")
    return None
