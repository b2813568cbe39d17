"""Completions of an evaluation to read, with the calls that the detector saw highlighted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.chat.detect import FoundCall, searched
from posttrain.evaluation.grade import Record, record_from_row
from posttrain.report.html import Markup, folded, paragraph, text
from posttrain.rollouts import Step

SHOWN_CHARACTERS = 3000
Row = Mapping[str, Any]


def examples(rows: Sequence[Row]) -> list[str]:
    """Every example, folded; those with a call that should not be there first, and open."""
    records = sorted(map(record_from_row, rows), key=lambda r: not r.verdict.hallucinated)
    note = paragraph(
        Markup('<mark style="background:var(--soft);color:var(--ink)">Highlighted</mark>'),
        " text is what the detector takes for a tool call; its form and kind stand below it.",
    )
    return [note, *map(_example, records)]


def _example(record: Record) -> str:
    score = "unscored" if record.score.value is None else f"score {record.score.value:g}"
    calls = ", ".join(dict.fromkeys(f"{c.form}: {c.kind}" for c in record.verdict.calls))
    prompt = record.prompt
    summary = Markup(
        f"<b>{text(record.checkpoint)}</b> &middot; {text(prompt.source)}, {text(prompt.setting)}, "
        f"reasoning {'on' if prompt.thinking else 'off'} &middot; {text(score)}"
        + (f" &middot; {text(calls)}" if calls else "")
    )
    asked = "\n".join(f"{message.role}: {message.content}" for message in prompt.messages)
    parts = [f'<pre class="chat">{text(asked[:SHOWN_CHARACTERS])}</pre>']
    for number, step in enumerate(record.completion.steps):
        own = [call for call in record.verdict.calls if call.step == number]
        parts.append(f'<pre class="chat">{_step(step, own)}</pre>')
        parts += [
            f'<pre class="chat"><span class="faint">{text(result.name)} → </span>'
            f"{text(result.content[:SHOWN_CHARACTERS])}</pre>"
            for result in step.results
        ]
    parts += [_call(call) for call in record.verdict.calls]
    parts.append(paragraph(f"{record.score.explanation} · gold {prompt.gold}"))
    return folded(summary, "".join(parts), opened=record.verdict.hallucinated)


def _step(step: Step, calls: Sequence[FoundCall]) -> str:
    reasoning, answer = searched(step)
    shown = [_marked(answer, [call for call in calls if call.part == "answer"])]
    if reasoning is not None:
        trace = _marked(reasoning, [call for call in calls if call.part == "reasoning"])
        closed = "" if "unclosed_think" in step.parsed.problems else "\n&lt;/think&gt;"
        shown.insert(0, f'<span class="faint">{trace}{closed}</span>\n')
    return "".join(shown)


def _marked(value: str, calls: Sequence[FoundCall]) -> str:
    """The text with the calls' spans highlighted, clipped."""
    pieces: list[str] = []
    at = 0
    for start, end in sorted({(call.start, call.end) for call in calls if call.end > call.start}):
        if start < at:
            continue  # a call within a call is marked already
        pieces += [text(value[at:start]), f"<mark>{text(value[start:end])}</mark>"]
        at = end
    room = max(0, SHOWN_CHARACTERS - at)
    pieces.append(text(value[at : at + room]))
    if len(value) > at + room:
        pieces.append(f'<span class="faint"> … {len(value) - at - room:,} characters more</span>')
    return "".join(pieces)


def _call(call: FoundCall) -> str:
    named = "" if call.name is None else f" of {call.name}"
    return paragraph(f"{call.kind}{named} in the {call.part}, step {call.step}: {call.form}")
