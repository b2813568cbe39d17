"""The detector: every tool call in a text, in whichever notation.

    answer = '<tool_call>\\n{"name": "f", "arguments": {}}\\n</tool_call>'
    detect_calls(reasoning=None, answer=answer, tools=None).calls[0].kind → "undeclared"

Four kinds of finder go through the text side by side; the candidate that begins first is judged by
the rules of `mention`, and the search goes on behind it. Time is linear in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from posttrain.chat.detect.bare import bare
from posttrain.chat.detect.builtins import builtin
from posttrain.chat.detect.candidate import Candidate
from posttrain.chat.detect.declared import Schema, kind_of, read_tools
from posttrain.chat.detect.found import CLIP, CallDetection, FoundCall, Part
from posttrain.chat.detect.lines import written
from posttrain.chat.detect.marked import marked
from posttrain.chat.detect.mention import Ground
from posttrain.chat.detect.page import Page
from posttrain.chat.detect.question import Question, read_question
from posttrain.chat.detect.reading import TextReader
from posttrain.chat.detect.requested import RequestedCall, read_arguments, tool_name
from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.records import ToolCall
from posttrain.rollouts import Completion, Prompt, Step

Finder = Callable[[int], Candidate | None]


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
        prompt: the last user message; it tells a call from an answer to a question about calls.

    Raises:
        ValueError: `tools` is not JSON.
    """
    declared = read_tools(tools) if tools is not None else None
    declared = declared or None  # an empty list declares nothing
    question = read_question(prompt)
    calls: list[FoundCall] = []
    if reasoning:
        calls += _in_part("reasoning", reasoning, question, declared)
    calls += _in_part("answer", answer, question, declared)
    for call in structured:
        kind = kind_of(_requested(call), declared)
        text = f'{{"name": "{call.name}", "arguments": {call.arguments}}}'
        end = len(answer)
        calls.append(FoundCall("structured", "answer", end, end, text[:CLIP], call.name, kind))
    return CallDetection(tuple(calls))


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


def _in_part(
    part: Part, text: str, question: Question, declared: Mapping[str, Schema | None] | None
) -> Iterator[FoundCall]:
    for found in _calls(text, question, declared or {}):
        for each in found.requested:
            requested = replace(each, name=tool_name(each.name))
            yield FoundCall(
                form=found.form,
                part=part,
                start=found.start,
                end=found.end,
                text=text[found.start : min(found.end, found.start + CLIP)],
                name=requested.name,
                kind=kind_of(requested, declared),
            )


def _calls(
    text: str, question: Question, declared: Mapping[str, Schema | None]
) -> Iterator[Candidate]:
    page, reader = Page(text), TextReader(text)
    ground = Ground(page, question, declared)
    finders: list[Finder] = [
        lambda at: marked(page, reader, at),
        lambda at: builtin(page, reader, at),
        lambda at: written(page, reader, at),
        lambda at: bare(ground, reader, at),
    ]
    waiting = [finder(0) for finder in finders]
    since = 0
    while any(waiting):
        k = min((k for k, c in enumerate(waiting) if c), key=lambda k: _order(waiting[k]))
        candidate = waiting[k]
        assert candidate is not None
        shown = ground.shows(candidate, since)
        if not shown:
            yield candidate
            since = candidate.end
        resume = _resume(candidate, page, shown)
        waiting = [
            finders[j](resume) if c is not None and c.start < resume else c
            for j, c in enumerate(waiting)
        ]


def _order(candidate: Candidate | None) -> tuple[int, int]:
    assert candidate is not None
    return candidate.start, -candidate.end


def _resume(candidate: Candidate, page: Page, shown: bool) -> int:
    """Where the search goes on: behind the call, but only a line on where one is shown unclosed."""
    closed = candidate.end < len(page.text) or page.text.endswith((">", "]", "}", ")", "`"))
    if shown and not closed:
        return max(page.line_end(candidate.start), candidate.start + 1)
    return max(candidate.end, candidate.start + 1)


def _requested(call: ToolCall) -> RequestedCall:
    return RequestedCall(call.name, read_arguments(call.arguments))
