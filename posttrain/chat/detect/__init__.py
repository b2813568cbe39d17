"""The detector: every tool call in a model's output, in whichever notation (the guide lists them).

What may open a call is searched from left to right; each candidate is judged by the rules of
`context`, and the search goes on behind it. Time is linear in the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from posttrain.chat.detect.context import Candidate, Context, Question, own_name
from posttrain.chat.detect.declared import Kind, Tools, kind_of, read_tools
from posttrain.chat.detect.markers import OPENERS, READERS
from posttrain.chat.detect.requested import RequestedCall, read_arguments
from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.records import ToolCall
from posttrain.rollouts import Completion, Prompt, Step

Part = Literal["reasoning", "answer"]
CLIP = 400


@dataclass(frozen=True, slots=True)
class FoundCall:
    """One call.

    Attributes:
        form: which notation it is written in (docs/guides/detector.md lists them).
        part: whether it stands in the reasoning or in the answer.
        start, end: its span in that part's text; calls of one JSON list share one. Of a structured
            call both are the length of the text.
        text: the text of the span, clipped to `CLIP` characters; for a structured call its JSON.
        name: the tool's name where it can be read.
        kind: "undeclared" where no tools are declared; else "nonexistent_tool",
            "fabricated_arguments" (they break the declared schema) or "declared".
        step: which step of a completion, from 0.
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
        """Whether there is a call at all, in the reasoning or in the answer."""
        return bool(self.calls)

    @property
    def in_answer(self) -> bool:
        return any(call.part == "answer" for call in self.calls)

    @property
    def in_reasoning(self) -> bool:
        return any(call.part == "reasoning" for call in self.calls)

    @property
    def hallucinated(self) -> bool:
        """Whether a call is of any kind but "declared"."""
        return any(call.kind != "declared" for call in self.calls)


def detect_calls(
    *,
    reasoning: str | None,
    answer: str,
    structured: tuple[ToolCall, ...] = (),
    tools: str | None,
    prompt: str = "",
) -> CallDetection:
    """Every call in a model's output.

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
    declared = declared or None  # an empty list declares nothing
    question = Question(prompt)
    calls = list(_in_part("reasoning", reasoning, question, declared)) if reasoning else []
    calls += _in_part("answer", answer, question, declared)
    for call in structured:
        kind = kind_of(RequestedCall(call.name, read_arguments(call.arguments)), declared)
        text = f'{{"name": "{call.name}", "arguments": {call.arguments}}}'
        end = len(answer)
        calls.append(FoundCall("structured", "answer", end, end, text[:CLIP], call.name, kind))
    return CallDetection(tuple(calls))


def detect_in_completion(completion: Completion, prompt: Prompt) -> CallDetection:
    """Every call in every step; spans are in the texts that `searched` gives for the step.

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
            reasoning=reasoning, answer=answer, structured=structured,
            tools=prompt.tools, prompt=question,
        )  # fmt: skip
        calls += [replace(call, step=number) for call in detection.calls]
    return CallDetection(tuple(calls))


def searched(step: Step) -> tuple[str | None, str]:
    """A step's reasoning and answer, as they are searched: with token ids the raw text cut at the
    first `</think>`, malformed calls and special tokens still in it; elsewhere the parsed parts."""
    if step.ids is None:
        return step.parsed.reasoning, step.parsed.answer
    if step.parsed.reasoning is None:
        return None, step.text
    trace, closing, rest = step.text.partition(CLOSE)
    return trace.removeprefix(OPEN), rest if closing else ""


def _in_part(
    part: Part, text: str, question: Question, declared: Tools | None
) -> Iterator[FoundCall]:
    for candidate in _calls(Context(text, question, declared or {})):
        start, end = candidate.start, candidate.end
        for each in candidate.requested:
            call = replace(each, name=own_name(each.name))
            kind, clipped = kind_of(call, declared), text[start : min(end, start + CLIP)]
            yield FoundCall(candidate.form, part, start, end, clipped, call.name, kind)


def _calls(context: Context) -> Iterator[Candidate]:
    position = since = 0
    while match := OPENERS.search(context.text, position):
        position = match.start() + 1
        candidate = READERS[match.lastgroup or ""](match, context)
        if candidate is None or candidate.start < since:
            continue
        end = candidate.end
        if not candidate.requested:
            pass
        elif not context.shows(candidate, since):
            yield candidate
            since = end
        elif end == len(context.text):
            end = match.end()  # one that is shown and does not close may hide a call
        position = max(position, end)
