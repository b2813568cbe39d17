"""What is measured of graded completions, and its mean in every checkpoint × task × setting × mode.
A figure that does not apply to a completion is left out, never 0. A run with several tasks has rows
for all of them under the task "all".
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.evaluation.intervals import (
    Values,
    by_question,
    length,
    pass_at,
    rate,
    rate_of_means,
)
from posttrain.evaluation.run import Record, unit_name
from posttrain.rollouts import Step
from posttrain.sampling.alerts import alert

ALL = "all"
Row = dict[str, Any]
# shares in [0, 1], in the order they are shown; docs/guides/evaluation.md says what each is
RATES = (
    "accuracy",
    "hallucination",
    "hallucination_answer",
    "hallucination_reasoning",
    "called_tool",
    "nonexistent_tool",
    "fabricated_arguments",
    "adherence",
    "truncated",
    "malformed",
    "forced_close",
)
LENGTHS = ("reasoning_tokens", "answer_tokens")  # over all steps; tags are in neither
# an unclosed think block is a truncation or a failure to adhere, and is counted there
_NOT_MALFORMED = frozenset({"unclosed_think"})


def measure(record: Record) -> dict[str, float]:
    """Every figure that applies to this completion; none where the backend failed on it."""
    if record.failed:
        return {}
    completion, verdict, prompt = record.completion, record.verdict, record.prompt
    figures: dict[str, float] = {}
    if record.score.value is not None:
        figures |= {"accuracy": record.score.value, **record.score.figures}
    if prompt.tools is None:
        figures["hallucination"] = verdict.any
        figures["hallucination_answer"] = verdict.in_answer
        figures["hallucination_reasoning"] = verdict.in_reasoning
    else:
        kinds = {call.kind for call in verdict.calls}
        figures["called_tool"] = "declared" in kinds
        figures["nonexistent_tool"] = "nonexistent_tool" in kinds
        figures["fabricated_arguments"] = "fabricated_arguments" in kinds
    figures["adherence"] = all(_adheres(record, step) for step in completion.steps)
    figures["truncated"] = completion.truncated
    figures["malformed"] = any(
        {*step.parsed.problems} - _NOT_MALFORMED for step in completion.steps
    )
    if prompt.reasoning_budget is not None and prompt.thinking:
        figures["forced_close"] = any(step.forced is not None for step in completion.steps)
    figures["reasoning_tokens"] = completion.reasoning_tokens
    figures["answer_tokens"] = completion.answer_tokens
    return {name: float(value) for name, value in figures.items()}


def correct(record: Record) -> bool | None:
    """Whether it counts as solved for pass@k: full marks; None where it was not scored."""
    return None if record.score.value is None else record.score.value >= 1.0


def _adheres(record: Record, step: Step) -> bool:
    if not record.prompt.thinking:
        return OPEN not in step.text and CLOSE not in step.text
    reasoning = step.parsed.reasoning
    return bool(reasoning and reasoning.strip()) and "unclosed_think" not in step.parsed.problems


class Cell(NamedTuple):
    """What a row of figures is about."""

    checkpoint: str
    task: str
    setting: str
    thinking: str  # "on" or "off"


def by_cell(records: Sequence[Record]) -> dict[Cell, list[Record]]:
    """Records by cell in their order, then those of all tasks where there are several."""
    cells: defaultdict[Cell, list[Record]] = defaultdict(list)
    pooled: defaultdict[Cell, list[Record]] = defaultdict(list)
    for record in records:
        prompt, mode = record.prompt, "on" if record.prompt.thinking else "off"
        cell = Cell(record.checkpoint, prompt.source, prompt.setting, mode)
        cells[cell].append(record)
        pooled[cell._replace(task=ALL)].append(record)
    several = {c: rows for c, rows in pooled.items() if len({r.prompt.source for r in rows}) > 1}
    return {**cells, **several}


def cell_rows(records: Sequence[Record], *, seed: int) -> list[Row]:
    """A row of figures a cell; `seed` is of the bootstrap draws."""
    rows: list[Row] = []
    for cell, own in by_cell(records).items():
        answered = [record for record in own if not record.failed]
        figures = values_of(answered)
        rates = {name: rate(values) for name, values in figures.items() if name not in LENGTHS}
        lengths = {name: length(figures[name], seed=seed) for name in LENGTHS}
        # completions with each parse problem
        problems = ({p for s in r.completion.steps for p in s.parsed.problems} for r in answered)
        rows.append({
            **cell._asdict(),
            "tools": any(record.prompt.tools is not None for record in own),
            "questions": len({_question(record) for record in own}),
            "samples": len(own),
            "k": min(Counter(record.prompt.id for record in own).values()),
            "failed": len(own) - len(answered),
            "unscored": sum(record.unscored for record in answered),
            "rates": {name: asdict(found) for name, found in rates.items() if found},
            "pass": _pass(answered),
            "lengths": {name: asdict(found) for name, found in lengths.items() if found},
            "finish": dict(Counter(record.completion.finish for record in own)),
            "problems": _counted(problems),
            # detected calls by the notation they are written in
            "call_forms": _counted([call.form for call in r.verdict.calls] for r in answered),
        })  # fmt: skip
    return rows


def alert_rows(records: Sequence[Record]) -> list[Row]:
    """What is to be known first: of each checkpoint, task and setting, the completions that are
    truncated or lack the format that their prompts ask for, where these are more than a third."""
    rows: list[Row] = []
    units: defaultdict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if not record.failed:
            units[record.checkpoint, unit_name(record.prompt)].append(record)
    for (checkpoint, unit), own in units.items():
        ended = [record for record in own if not record.completion.truncated]
        found = alert(
            f"{checkpoint}, {unit}",
            completions=len(own),
            truncated=len(own) - len(ended),
            unformatted=sum(record.score.unanswered for record in ended),
        )
        rows += [] if found is None else [found]
    return rows


def _counted(names: Iterable[Iterable[str]]) -> dict[str, int]:
    return dict(sorted(Counter(itertools.chain.from_iterable(names)).items()))


def _question(record: Record) -> tuple[str, str]:
    # two tasks may number their questions alike
    return record.prompt.source, record.prompt.task


def values_of(records: Sequence[Record]) -> dict[str, Values]:
    """The values of every figure, where it applies, with their questions; graders' own last."""
    values: dict[str, list[tuple[float, tuple[str, str]]]] = {n: [] for n in (*RATES, *LENGTHS)}
    for record in records:
        for name, value in measure(record).items():
            values.setdefault(name, []).append((value, _question(record)))
    return {**values}


def _pass(records: Sequence[Record]) -> Row:
    """pass@k for k = 1, 2, 4, … and all samples, over prompts with at least k scored samples."""
    verdicts: defaultdict[tuple[str, str, str], list[bool]] = defaultdict(list)
    for record in records:
        solved = correct(record)
        if solved is not None:
            verdicts[(*_question(record), record.prompt.id)].append(solved)
    most = max(map(len, verdicts.values()), default=0)
    shares_by_k: Row = {}
    for k in [k for k in (2**i for i in range(20)) if k < most] + ([most] if most else []):
        enough = {key: v for key, v in verdicts.items() if len(v) >= k}
        shares = [(pass_at(k, samples=len(v), solved=sum(v)), key[:2]) for key, v in enough.items()]
        samples = sum(map(len, enough.values()))
        shares_by_k[str(k)] = asdict(rate_of_means(by_question(shares).means, samples=samples))
    return shares_by_k


EACH = 2  # of a kind and cell
_KINDS: tuple[Callable[[Record], bool], ...] = (
    lambda record: record.verdict.hallucinated,
    lambda record: not record.verdict.hallucinated and record.score.value == 1.0,
    lambda record: not record.verdict.hallucinated and record.score.value == 0.0,
)


def examples(records: Sequence[Record]) -> list[Record]:
    """Up to `EACH` of each kind from every cell, the first of each, in the order of the records."""
    chosen: set[int] = set()
    for own in by_cell(records).values():
        if len({record.prompt.source for record in own}) == 1:  # a single task may be named "all"
            for kind in _KINDS:
                chosen |= {id(record) for record in [r for r in own if kind(r)][:EACH]}
    return [record for record in records if id(record) in chosen]
