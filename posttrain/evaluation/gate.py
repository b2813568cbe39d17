"""A gate on two runs: does the second do worse than the first by more than a rule allows?

    verdicts = gate_rows(gate, *comparable(side_of("runs/released"), side_of("runs/candidate")))
    → [GateRow("accuracy", "maths", "no_tools", "on", change=-0.08, low=-0.11, high=-0.05,
               margin=0.02, verdict="fail"), …]

The statistical rule. `change` is the paired difference over questions, signed so that less is
worse. A row fails where its one-sided interval lies below −margin, so that an equal checkpoint
fails in at most 1 − level of comparisons whatever the margin; it passes where the interval of the
other side lies above −margin (non-inferiority), and is inconclusive between the two. Rows of all
rules share the level by Bonferroni. Rates use the interval of Agresti and Min (2005), lengths
Student's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from posttrain.config.eval import GateConfig, GateRule
from posttrain.config.load import nearest
from posttrain.errors import ConfigError
from posttrain.evaluation.compare import change_interval, mean_interval, shared_means
from posttrain.evaluation.grade import Record
from posttrain.evaluation.intervals import Floats, Values, by_question
from posttrain.evaluation.metrics import ALL, LENGTHS, by_cell, values_of

_HIGHER_IS_BETTER = {"accuracy", "adherence", "called_tool"}
Verdict = Literal["pass", "inconclusive", "fail"]


@dataclass(frozen=True, slots=True)
class GateRow:
    """One figure of one cell: its change with the bounds of both one-sided intervals.

    `low` and `high` are of `change`, for which less is worse; `questions` are those of both.
    """

    figure: str
    task: str
    setting: str
    thinking: str
    change: float
    low: float
    high: float
    margin: float
    questions: int
    verdict: Verdict


def gate_rows(gate: GateConfig, a: Sequence[Record], b: Sequence[Record]) -> list[GateRow]:
    """A row for every cell that a rule is about.

    Args:
        a, b: records of one checkpoint each, on the same prompts.

    Raises:
        ConfigError: a rule that is about no cell that both have.
    """
    left, right = (
        {cell[1:]: values_of(rows) for cell, rows in by_cell(side).items()} for side in (a, b)
    )
    found = [(rule, *changes) for rule in gate.rules for changes in _changes(rule, left, right)]
    level = 1 - (1 - gate.level) / len(found)
    return [_row(rule, cell, changes, level) for rule, cell, changes in found]


def passes(gate: GateConfig, rows: Sequence[GateRow]) -> bool:
    """Whether the gate as a whole lets the second run through."""
    refused = {"fail"} if gate.inconclusive == "pass" else {"fail", "inconclusive"}
    return not any(row.verdict in refused for row in rows)


Cell = tuple[str, str, str]  # task, setting, thinking
Cells = Mapping[Cell, Mapping[str, Values]]


def _changes(rule: GateRule, a: Cells, b: Cells) -> Iterator[tuple[Cell, Floats]]:
    """The cells of a rule with each question's change, for which less is worse."""
    wanted = (rule.task, rule.setting, rule.thinking)
    cells = [
        cell for cell in a
        if cell in b and all(w in (None, own) for w, own in zip(wanted, cell, strict=True))
        and (rule.task is not None or cell[0] != ALL)
    ]  # fmt: skip
    known = dict.fromkeys(name for cell in cells for name in a[cell] if a[cell][name])
    with_values = [c for c in cells if a[c].get(rule.figure) and b[c].get(rule.figure)]
    if not with_values:
        hint = nearest(rule.figure, (*known,)) if cells else ""
        raise ConfigError(f"a rule of the gate is about nothing that both runs have: {rule}{hint}")
    worse = rule.worse or ("lower" if rule.figure in _HIGHER_IS_BETTER else "higher")
    for cell in with_values:
        before, after, _ = shared_means(
            by_question(a[cell][rule.figure]), by_question(b[cell][rule.figure])
        )
        yield cell, (after - before) * (1 if worse == "lower" else -1)


def _row(rule: GateRule, cell: Cell, changes: Floats, level: float) -> GateRow:
    if rule.figure in LENGTHS:
        low, high = mean_interval(changes, quantile=level)
    else:
        low, high = change_interval(changes, quantile=level)
    verdict: Verdict = "inconclusive"
    if high < -rule.margin:
        verdict = "fail"
    elif low > -rule.margin:
        verdict = "pass"
    change = float(changes.mean())
    return GateRow(rule.figure, *cell, change, low, high, rule.margin, len(changes), verdict)
