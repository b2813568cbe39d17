"""One graded completion → what is measured of it; a mean of each over completions is a metric.

    observe(record) → {"accuracy": 1.0, "hallucination": 0.0, "truncated": 0.0, "reasoning_tokens":
                       12.0, "adherence": 1.0, …}

A figure that does not apply to a completion is left out, never 0: an unscored one has no accuracy,
and where tools are declared there is no undeclared call.
"""

from __future__ import annotations

from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.evaluation.record import Record
from posttrain.rollouts import Step

# shares in [0, 1], in the order they are shown
RATES: dict[str, str] = {
    "accuracy": "score of the answer; avg@k",
    "hallucination": "no tool declared, a call in reasoning or answer",
    "hallucination_answer": "no tool declared, a call in the answer",
    "hallucination_reasoning": "no tool declared, a call in the reasoning",
    "called_tool": "tools declared, at least one sound call of one of them",
    "nonexistent_tool": "tools declared, a call of a tool that is not",
    "fabricated_arguments": "tools declared, a call whose arguments break the schema",
    "adherence": "reasoning on: a closed, non-empty think block in every step; off: no think tag",
    "truncated": "ended by a limit",
    "malformed": "text that is no well-formed turn: half or broken calls, misplaced tags",
    "forced_close": "reasoning closed at its budget",
}
LENGTHS: dict[str, str] = {
    "reasoning_tokens": "tokens of reasoning, all steps",
    "answer_tokens": "tokens of answers with their calls, all steps",
}
# an unclosed think block is a truncation or a failure to adhere, and is counted there
_NOT_MALFORMED = frozenset({"unclosed_think"})


def observe(record: Record) -> dict[str, float]:
    """Every figure that applies to this completion.

    A completion that the backend failed on has none.
    """
    if record.failed:
        return {}
    found: dict[str, float] = {}
    if record.score.value is not None:
        found["accuracy"] = record.score.value
    found |= _calls(record)
    completion = record.completion
    found["adherence"] = float(all(_adheres(record, step) for step in completion.steps))
    found["truncated"] = float(completion.truncated)
    found["malformed"] = float(any(_malformed(step) for step in completion.steps))
    if record.prompt.reasoning_budget is not None and record.prompt.thinking:
        found["forced_close"] = float(any(step.forced is not None for step in completion.steps))
    found["reasoning_tokens"] = float(completion.reasoning_tokens)
    found["answer_tokens"] = float(completion.answer_tokens)
    return found


def correct(record: Record) -> bool | None:
    """Whether it counts as solved for pass@k: full marks; None where it was not scored."""
    return None if record.score.value is None else record.score.value >= 1.0


def _calls(record: Record) -> dict[str, float]:
    verdict = record.verdict
    if record.prompt.tools is None:
        return {
            "hallucination": float(verdict.any),
            "hallucination_answer": float(verdict.in_answer),
            "hallucination_reasoning": float(verdict.in_reasoning),
        }
    kinds = {call.kind for call in verdict.calls}
    return {
        "called_tool": float("declared" in kinds),
        "nonexistent_tool": float("nonexistent_tool" in kinds),
        "fabricated_arguments": float("fabricated_arguments" in kinds),
    }


def _adheres(record: Record, step: Step) -> bool:
    if not record.prompt.thinking:
        return OPEN not in step.text and CLOSE not in step.text
    reasoning = step.parsed.reasoning
    return bool(reasoning and reasoning.strip()) and "unclosed_think" not in step.parsed.problems


def _malformed(step: Step) -> bool:
    return bool(set(step.parsed.problems) - _NOT_MALFORMED)
