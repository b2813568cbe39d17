"""Sections of a set of samples: how completions ended, their lengths, and some to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.report.html import Markup, folded, paragraph, percent, table, text
from posttrain.report.lineage import Node, listed_rows
from posttrain.report.page import Page
from posttrain.rollouts import TRUNCATED

Stats = Mapping[str, Any]
SHOWN_CHARACTERS = 3000


def add_samples(page: Page, node: Node) -> None:
    """All sections of one `samples` artifact."""
    assert node.manifest is not None
    stats = node.manifest.stats
    page.add("Samples", *_settings(stats["settings"]))
    page.add("Prompts by source", *_sources(stats))
    rows = listed_rows(node, "examples.jsonl")
    if rows is None:
        page.leave_out("Samples to read", f"{node.name} lists no examples.jsonl")
    else:
        parts = [_example(row, opened=place == 0) for place, row in enumerate(rows)]
        page.add("Samples to read", *parts)


def headline(stats: Stats) -> list[tuple[str, str, str]]:
    """Figures for the top of the page."""
    found = stats["settings"].values()
    samples, tokens = (sum(f[key] for f in found) for key in ("samples", "tokens"))
    cut = sum(f["finish"][finish] for f in found for finish in TRUNCATED)
    return [
        (f"{samples:,}", "samples", f"of {sum(f['prompts'] for f in found):,} prompts"),
        (f"{tokens / 1e6:,.2f} M", "tokens sampled", "tool results not counted"),
        (percent(cut / samples), "truncated", f"a limit ended {cut:,} of {samples:,}"),
    ]


def _settings(settings: Mapping[str, Stats]) -> list[str]:
    ended = list(next(iter(settings.values()))["finish"])
    counts: list[list[object]] = [
        [name, found["prompts"], found["samples"], found["thinking_on"]]
        + [percent(found["finish"][finish] / found["samples"]) for finish in ended]
        for name, found in settings.items()
    ]
    lengths = [_lengths(name, found) for name, found in settings.items()]
    head = ["setting", "prompts", "samples", "reasoning on", *(f"ended: {e}" for e in ended)]
    means = ["setting", "reasoning tokens", "answer tokens", "steps", "with a call"]
    return [
        table(head, counts, numeric=range(1, 4 + len(ended))),
        paragraph(
            "Means of a sample. A call counts wherever it was parsed as one, declared or not; the "
            "rate of undeclared calls in every form is counted when samples are graded."
        ),
        table([*means, "tool results", "malformed"], lengths, numeric=range(1, 6)),
    ]


def _lengths(name: str, found: Stats) -> list[object]:
    problems = ", ".join(f"{problem} {n:,}" for problem, n in found["problems"].items())
    return [
        name,
        *(f"{found[key] / found['samples']:.1f}" for key in _MEANS),
        percent(found["samples_with_calls"] / found["samples"], 2),
        found["tool_results"],
        problems or None,
    ]


_MEANS = ("reasoning_tokens", "answer_tokens", "steps")


def _sources(stats: Stats) -> list[str]:
    rows = [
        [name, found["rows_in"], found["kept"], reason, count, found["examples"].get(reason)]
        for name, found in stats["sources"].items()
        for reason, count in (found["dropped"] or {None: None}).items()
    ]
    skipped = [
        [setting, reason, count]
        for setting, reasons in stats["not_asked"].items()
        for reason, count in reasons.items()
    ]
    head = ["source", "rows", "asked", "not asked because", "rows", "such as"]
    parts = [table(head, rows, numeric={1, 2, 4})]
    if skipped:
        parts.append(paragraph("Questions that a setting does not ask, of all distinct ones:"))
        parts.append(table(["setting", "because", "questions"], skipped, numeric={2}))
    return parts


def _example(row: Mapping[str, Any], *, opened: bool) -> str:
    prompt, completion = row["prompt"], row["completion"]
    mode = "on" if prompt["thinking"] else "off"
    summary = Markup(
        f"<b>{text(prompt['setting'])}</b> &middot; reasoning {mode} &middot; "
        f"{text(prompt['source'])} &middot; {text(completion['finish'])}"
    )
    return folded(summary, f'<pre class="chat">{"".join(_turns(row))}</pre>', opened=opened)


def _turns(row: Mapping[str, Any]) -> Sequence[str]:
    """The conversation; what the model wrote stands out."""
    pieces = [_turn(m["role"], m["content"]) for m in row["prompt"]["messages"]]
    for step in row["completion"]["steps"]:
        pieces.append(f"<mark>{text(_cut(step['text']))}</mark>\n")
        pieces += [_turn("tool", m["content"]) for m in step["results"]]
    gold = row["prompt"]["gold"]
    return pieces if gold is None else [*pieces, _turn("gold", gold)]


def _turn(role: str, content: str) -> str:
    return f'<span class="faint">[{role}]</span> {text(_cut(content))}\n'


def _cut(value: str) -> str:
    rest = len(value) - SHOWN_CHARACTERS
    return value if rest <= 0 else f"{value[:SHOWN_CHARACTERS]} … {rest:,} characters more"
