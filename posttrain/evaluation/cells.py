"""Records → one row of figures for each checkpoint × task × setting × reasoning mode.

    {"checkpoint": "dpo", "task": "maths", "setting": "no_tools", "thinking": "on",
     "questions": 500, "samples": 500, "failed": 0, "unscored": 2, "k": 1,
     "rates": {"accuracy": {"value": 0.91, "low": 0.88, "high": 0.93, …}, "hallucination": …},
     "pass": {"1": …}, "lengths": {"reasoning_tokens": {"mean": …, "median": …, "p90": …}}, …}

A run with several tasks gets rows for all of them together, under the task "all".
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from posttrain.evaluation.clustered import by_question, length, pass_at, rate, rate_of_means
from posttrain.evaluation.observe import LENGTHS, RATES, correct, observe
from posttrain.evaluation.record import Record

ALL = "all"
Row = dict[str, Any]


class Cell(NamedTuple):
    """What a row of figures is about."""

    checkpoint: str
    task: str
    setting: str
    thinking: str  # "on" or "off"


def cell_of(record: Record) -> Cell:
    """Where a record belongs."""
    prompt = record.prompt
    return Cell(
        record.checkpoint, prompt.source, prompt.setting, "on" if prompt.thinking else "off"
    )


def by_cell(records: Sequence[Record]) -> dict[Cell, list[Record]]:
    """Records by cell in the order they come, then all tasks together where there are several."""
    found: defaultdict[Cell, list[Record]] = defaultdict(list)
    pooled: defaultdict[Cell, list[Record]] = defaultdict(list)
    for record in records:
        cell = cell_of(record)
        found[cell].append(record)
        pooled[cell._replace(task=ALL)].append(record)
    several = {
        cell: rows for cell, rows in pooled.items() if len({r.prompt.source for r in rows}) > 1
    }
    return {**found, **several}


def cell_rows(records: Sequence[Record], *, seed: int) -> list[Row]:
    """A row of figures a cell.

    Args:
        seed: of the bootstrap draws.
    """
    return [cell_row(cell, found, seed=seed) for cell, found in by_cell(records).items()]


def cell_row(cell: Cell, records: Sequence[Record], *, seed: int) -> Row:
    """The figures of one cell."""
    answered = [record for record in records if not record.failed]
    observed = [observe(record) for record in answered]
    questions = [_question(record) for record in answered]
    samples = Counter(record.prompt.id for record in records)
    return {
        **cell._asdict(),
        "tools": any(record.prompt.tools is not None for record in records),
        "questions": len({_question(record) for record in records}),
        "samples": len(records),
        "k": min(samples.values()),
        "failed": len(records) - len(answered),
        "unscored": sum(record.score.value is None for record in answered),
        "rates": {
            name: asdict(estimate)
            for name in RATES
            if (estimate := rate(*_given(name, observed, questions))) is not None
        },
        "pass": _pass(answered),
        "lengths": {
            name: asdict(found)
            for name in LENGTHS
            if (found := length(*_given(name, observed, questions), seed=seed)) is not None
        },
        "finish": dict(Counter(record.completion.finish for record in records)),
        "problems": _problems(answered),
        "call_forms": _call_forms(answered),
    }


def _question(record: Record) -> tuple[str, str]:
    # two tasks may number their questions alike
    return record.prompt.source, record.prompt.task


def _given(
    name: str, observed: Sequence[Mapping[str, float]], questions: Sequence[tuple[str, str]]
) -> tuple[list[float], list[tuple[str, str]]]:
    """The values of a figure where it applies, and their questions."""
    pairs = [(o[name], q) for o, q in zip(observed, questions, strict=True) if name in o]
    return [value for value, _ in pairs], [question for _, question in pairs]


def _pass(records: Sequence[Record]) -> Row:
    """pass@k for k = 1, 2, 4, … and all samples, over prompts with at least k scored samples."""
    verdicts: defaultdict[tuple[str, str, str], list[bool]] = defaultdict(list)
    for record in records:
        solved = correct(record)
        if solved is not None:
            verdicts[(*_question(record), record.prompt.id)].append(solved)
    most = max(map(len, verdicts.values()), default=0)
    found: Row = {}
    for k in [k for k in (2**i for i in range(20)) if k < most] + ([most] if most else []):
        enough = {key: v for key, v in verdicts.items() if len(v) >= k}
        shares = [pass_at(k, samples=len(v), solved=sum(v)) for v in enough.values()]
        means = by_question(shares, [(source, task) for source, task, _ in enough]).means
        samples = sum(map(len, enough.values()))
        found[str(k)] = asdict(rate_of_means(np.asarray(means), samples=samples))
    return found


def _problems(records: Sequence[Record]) -> dict[str, int]:
    """Completions with each parse problem."""
    named = (
        {problem for step in record.completion.steps for problem in step.parsed.problems}
        for record in records
    )
    return dict(sorted(Counter(problem for problems in named for problem in problems).items()))


def _call_forms(records: Sequence[Record]) -> dict[str, int]:
    """Calls found, by the notation they are written in."""
    forms = Counter(call.form for record in records for call in record.verdict.calls)
    return dict(sorted(forms.items()))
