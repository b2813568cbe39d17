"""The detector: every tool call in a model's output, in whichever notation (the guide lists them).

Text is searched from left to right for what may open a call; each candidate is judged by the rules
of `context`, and the search goes on behind it. Time is linear in the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from posttrain.chat.detect.context import Candidate, Context, Question, own_name
from posttrain.chat.detect.declared import Kind, Tools, kind_of, read_tools
from posttrain.chat.detect.markers import NOTATIONS, OPENERS
from posttrain.chat.detect.requested import RequestedCall, read_arguments
from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.records import ToolCall
from posttrain.rollouts import Completion, Prompt, Step

Part = Literal["reasoning", "answer"]
CLIP = 400  # characters of a call that are kept for reports


@dataclass(frozen=True, slots=True)
class FoundCall:
    """One call in a model's output.

    Attributes:
        form: notation that it is written in (docs/guides/detector.md lists them).
        part: the part of the output that it stands in.
        start, end: span in that part's text; calls of one JSON list share one. Of a structured
            call both are the length of the text.
        text: text of the span, clipped to `CLIP` characters; for a structured call its JSON.
        name: name of the tool where it can be read.
        kind: "undeclared" where no tools are declared; else "nonexistent_tool",
            "fabricated_arguments" (they break the declared schema) or "declared".
        step: index of the step in its completion, from 0.
    """

    form: str
    part: Part
    start: int
    end: int
    text: str
    name: str | None
    kind: Kind
    step: int = 0


@dataclass(frozen=True, slots=True)
class CallDetection:
    """Every call of a text or a completion, in order: reasoning before answer, step by step."""

    calls: tuple[FoundCall, ...]

    @property
    def any(self) -> bool:
        """True if there is a call, in the reasoning or in the answer."""
        return bool(self.calls)

    @property
    def in_answer(self) -> bool:
        """True if a call stands in the answer."""
        return any(call.part == "answer" for call in self.calls)

    @property
    def in_reasoning(self) -> bool:
        """True if a call stands in the reasoning."""
        return any(call.part == "reasoning" for call in self.calls)

    @property
    def hallucinated(self) -> bool:
        """True if a call is of any kind but "declared"."""
        return any(call.kind != "declared" for call in self.calls)


def detect_calls(
    *,
    reasoning: str | None,
    answer: str,
    structured: tuple[ToolCall, ...] = (),
    tools: str | None,
    prompt: str = "",
) -> CallDetection:
    """Find every call in a model's output.

    Args:
        reasoning: the trace, without its tags; None where there is none.
        answer: all other text, calls that were not taken out of it included.
        structured: calls that arrived as such from an endpoint; they count as part of the answer.
        tools: JSON text of the declared tools; None (or an empty list) where none is declared.
        prompt: the last user message, which distinguishes a call from an answer about calls.

    Raises:
        ValueError: `tools` is not JSON.
    """
    declared = read_tools(tools) if tools is not None else None
    if not declared:  # an empty list declares nothing
        declared = None
    question = Question(prompt)
    calls: list[FoundCall] = []
    if reasoning:
        calls += _calls_in_part("reasoning", reasoning, question, declared)
    calls += _calls_in_part("answer", answer, question, declared)
    for call in structured:
        requested = RequestedCall(call.name, read_arguments(call.arguments))
        text = f'{{"name": "{call.name}", "arguments": {call.arguments}}}'
        calls.append(
            FoundCall(
                form="structured",
                part="answer",
                start=len(answer),
                end=len(answer),
                text=text[:CLIP],
                name=call.name,
                kind=kind_of(requested, declared),
            )
        )
    return CallDetection(tuple(calls))


def detect_in_completion(completion: Completion, prompt: Prompt) -> CallDetection:
    """Find every call in every step; spans are in the texts that `searched` returns for the step.

    Raises:
        ValueError: `prompt.tools` is not JSON.
    """
    question = next((m.content for m in reversed(prompt.messages) if m.role == "user"), "")
    calls: list[FoundCall] = []
    for number, step in enumerate(completion.steps):
        reasoning, answer = searched(step)
        structured = step.parsed.tool_calls
        if step.ids is not None:
            # calls of the raw text are judged there; an endpoint may keep others out of the text
            structured = tuple(call for call in structured if call.name not in step.text)
        detection = detect_calls(
            reasoning=reasoning,
            answer=answer,
            structured=structured,
            tools=prompt.tools,
            prompt=question,
        )
        calls += [replace(call, step=number) for call in detection.calls]
    return CallDetection(tuple(calls))


def searched(step: Step) -> tuple[str | None, str]:
    """Reasoning and answer of a step, as the detector searches them.

    With token ids they are the raw text cut at the first `</think>`, malformed calls and special
    tokens still in it; without, the parsed parts.
    """
    if step.ids is None:
        return step.parsed.reasoning, step.parsed.answer
    if step.parsed.reasoning is None:
        return None, step.text
    trace, closing, answer = step.text.partition(CLOSE)
    return trace.removeprefix(OPEN), answer if closing else ""


def _calls_in_part(
    part: Part, text: str, question: Question, declared: Tools | None
) -> Iterator[FoundCall]:
    for candidate in _candidates(Context(text, question, declared or {})):
        clip_end = min(candidate.end, candidate.start + CLIP)
        for requested in candidate.requested:
            call = replace(requested, name=own_name(requested.name))
            yield FoundCall(
                form=candidate.form,
                part=part,
                start=candidate.start,
                end=candidate.end,
                text=text[candidate.start : clip_end],
                name=call.name,
                kind=kind_of(call, declared),
            )


def _candidates(context: Context) -> Iterator[Candidate]:
    """Candidates that are called, not merely shown, in order and without overlap."""
    position = 0
    previous_end = 0  # of the last candidate that was yielded
    while match := OPENERS.search(context.text, position):
        position = match.start() + 1
        candidate = NOTATIONS[match.lastgroup or ""].read(match, context)
        if candidate is None or candidate.start < previous_end:
            continue
        end = candidate.end
        if candidate.requested:
            if not context.shows(candidate, previous_end):
                yield candidate
                previous_end = end
            elif end == len(context.text):
                # a shown call that does not close may hide a real one behind its opener
                end = match.end()
        position = max(position, end)
