"""The detector on a whole completion, step by step.

detect_in_completion(completion, prompt).calls → FoundCall(…, step=1), …
"""

from __future__ import annotations

from dataclasses import replace

from posttrain.chat.detect.found import CallDetection, FoundCall
from posttrain.chat.detect.scan import detect_calls
from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.rollouts import Completion, Prompt, Step


def detect_in_completion(completion: Completion, prompt: Prompt) -> CallDetection:
    """Every call in every step.

    Spans are in the texts that `searched` gives for the step.

    Raises:
        ValueError: `prompt.tools` is not JSON.
    """
    requested = next((m.content for m in reversed(prompt.messages) if m.role == "user"), "")
    calls: list[FoundCall] = []
    for number, step in enumerate(completion.steps):
        found = _in_step(step, prompt.tools, requested)
        calls += [replace(call, step=number) for call in found.calls]
    return CallDetection(tuple(calls))


def searched(step: Step) -> tuple[str | None, str]:
    """A step's reasoning and answer, as they are searched.

    Where there are token ids, the raw text cut at the first `</think>`: malformed calls and special
    tokens are still in it. Elsewhere the parsed parts.
    """
    if step.ids is None:
        return step.parsed.reasoning, step.parsed.answer
    if step.parsed.reasoning is None:
        return None, step.text
    trace, closing, rest = step.text.partition(CLOSE)
    trace = trace.removeprefix(OPEN)
    return trace, rest if closing else ""


def _in_step(step: Step, tools: str | None, requested: str) -> CallDetection:
    reasoning, answer = searched(step)
    structured = step.parsed.tool_calls
    if step.ids is not None:
        # calls of the raw text are judged there; an endpoint may keep others out of the text
        structured = tuple(call for call in structured if call.name not in step.text)
    return detect_calls(
        reasoning=reasoning, answer=answer, structured=structured, tools=tools, prompt=requested
    )
