"""Figures of graded completions, and their means by checkpoint, task, setting and reasoning mode.

A figure that does not apply to a completion is left out; it is never 0. A run with several tasks
has rows for all of them together under the task "all".
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
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
    """Measure a graded completion.

    Returns:
        Figures that apply to the completion, by name; none if the backend failed on it.
    """
    if record.failed:
        return {}
    completion = record.completion
    verdict = record.verdict
    prompt = record.prompt
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
    """True if a completion has full marks, as pass@k counts; None if it was not scored."""
    return None if record.score.value is None else record.score.value >= 1.0


def _adheres(record: Record, step: Step) -> bool:
    """True if a step reasons where its prompt asks for it, and does not where thinking is off."""
    if not record.prompt.thinking:
        return OPEN not in step.text and CLOSE not in step.text
    reasoning = step.parsed.reasoning
    return bool(reasoning and reasoning.strip()) and "unclosed_think" not in step.parsed.problems


class Cell(NamedTuple):
    """Key of the completions that a row of figures is about."""

    checkpoint: str
    task: str
    setting: str
    thinking: str  # "on" or "off"


def by_cell(records: Sequence[Record]) -> dict[Cell, list[Record]]:
    """Group records by cell, in their order.

    If there are several tasks, cells of all tasks together follow, with the task "all".
    """
    cells: defaultdict[Cell, list[Record]] = defaultdict(list)
    pooled_cells: defaultdict[Cell, list[Record]] = defaultdict(list)
    for record in records:
        prompt = record.prompt
        mode = "on" if prompt.thinking else "off"
        cell = Cell(record.checkpoint, prompt.source, prompt.setting, mode)
        cells[cell].append(record)
        pooled_cells[cell._replace(task=ALL)].append(record)
    all_cells = dict(cells)
    for cell, cell_records in pooled_cells.items():
        if len({record.prompt.source for record in cell_records}) > 1:
            all_cells[cell] = cell_records
    return all_cells


def cell_rows(records: Sequence[Record], *, seed: int) -> list[Row]:
    """Rows of figures, one for each cell.

    Args:
        seed: of the bootstrap draws.

    Returns:
        Counts, and rates and lengths with 95 % intervals over questions.
    """
    rows: list[Row] = []
    for cell, cell_records in by_cell(records).items():
        answered = [record for record in cell_records if not record.failed]
        rates: Row = {}
        lengths: Row = {}
        for name, values in values_of(answered).items():
            if name in LENGTHS:
                lengths[name] = length(values, seed=seed)
            else:
                rates[name] = rate(values)
        samples_by_prompt = Counter(record.prompt.id for record in cell_records)
        problems: Counter[str] = Counter()
        call_forms: Counter[str] = Counter()
        for record in answered:
            # completions with a parse problem are counted, not its occurrences
            problems.update({p for step in record.completion.steps for p in step.parsed.problems})
            call_forms.update(call.form for call in record.verdict.calls)
        row: Row = {
            **cell._asdict(),
            "tools": any(record.prompt.tools is not None for record in cell_records),
            "questions": len({_question(record) for record in cell_records}),
            "samples": len(cell_records),
            "k": min(samples_by_prompt.values()),
            "failed": len(cell_records) - len(answered),
            "unscored": sum(record.unscored for record in answered),
            "rates": {name: asdict(estimate) for name, estimate in rates.items() if estimate},
            "pass": _pass_rates(answered),
            "lengths": {name: asdict(spread) for name, spread in lengths.items() if spread},
            "finish": dict(Counter(record.completion.finish for record in cell_records)),
            "problems": dict(sorted(problems.items())),
            # detected calls, by the notation they are written in
            "call_forms": dict(sorted(call_forms.items())),
        }
        rows.append(row)
    return rows


def alert_rows(records: Sequence[Record]) -> list[Row]:
    """Alerts about units whose completions are often of no use.

    A unit has a row where more than a third of its completions are truncated, or lack the format
    that their prompts ask for.
    """
    rows: list[Row] = []
    units: defaultdict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if not record.failed:
            units[record.checkpoint, unit_name(record.prompt)].append(record)
    for (checkpoint, unit), unit_records in units.items():
        finished = [record for record in unit_records if not record.completion.truncated]
        unit_alert = alert(
            f"{checkpoint}, {unit}",
            completions=len(unit_records),
            truncated=len(unit_records) - len(finished),
            unformatted=sum(record.score.unanswered for record in finished),
        )
        if unit_alert is not None:
            rows.append(unit_alert)
    return rows


def _question(record: Record) -> tuple[str, str]:
    # two tasks may number their questions alike
    return record.prompt.source, record.prompt.task


def values_of(records: Sequence[Record]) -> dict[str, Values]:
    """Collect the values of every figure, each with its question; graders' figures come last."""
    values: dict[str, list[tuple[float, tuple[str, str]]]] = {n: [] for n in (*RATES, *LENGTHS)}
    for record in records:
        for name, value in measure(record).items():
            values.setdefault(name, []).append((value, _question(record)))
    return {**values}


def _pass_rates(records: Sequence[Record]) -> Row:
    """Compute pass@k for k = 1, 2, 4, … and all samples, over prompts with k scored samples."""
    solved_by_prompt: defaultdict[tuple[str, str, str], list[bool]] = defaultdict(list)
    for record in records:
        solved = correct(record)
        if solved is not None:
            solved_by_prompt[(*_question(record), record.prompt.id)].append(solved)
    max_samples = max(map(len, solved_by_prompt.values()), default=0)
    ks: list[int] = []
    k = 1
    while k < max_samples:
        ks.append(k)
        k *= 2
    if max_samples:
        ks.append(max_samples)
    pass_rates: Row = {}
    for k in ks:
        samples = 0
        values: list[tuple[float, tuple[str, str]]] = []
        for (source, task, _), solved in solved_by_prompt.items():
            if len(solved) >= k:
                samples += len(solved)
                chance = pass_at(k, samples=len(solved), solved=sum(solved))
                values.append((chance, (source, task)))
        pass_rates[str(k)] = asdict(rate_of_means(by_question(values).means, samples=samples))
    return pass_rates


EXAMPLES_OF_A_KIND = 2  # in each cell
# completions to read: with an undeclared call, and without one right and wrong
_KINDS: tuple[Callable[[Record], bool], ...] = (
    lambda record: record.verdict.hallucinated,
    lambda record: not record.verdict.hallucinated and record.score.value == 1.0,
    lambda record: not record.verdict.hallucinated and record.score.value == 0.0,
)


def select_examples(records: Sequence[Record]) -> list[Record]:
    """Select the first `EXAMPLES_OF_A_KIND` records of each kind in every cell, in their order."""
    selected: set[int] = set()
    for cell_records in by_cell(records).values():
        # pooled cells are skipped by their sources: a single task may be named "all"
        if len({record.prompt.source for record in cell_records}) > 1:
            continue
        for is_of_kind in _KINDS:
            matching = [record for record in cell_records if is_of_kind(record)]
            selected |= {id(record) for record in matching[:EXAMPLES_OF_A_KIND]}
    return [record for record in records if id(record) in selected]
