"""Paired comparison of two checkpoints on the same prompts: intervals, p-values and gates.

One method gives interval, p-value and gate, so that they agree: Student's t of the questions' mean
changes, however many samples a question has. For rates, an eighth of a sample that rose and an
eighth of one that fell are added first (Agresti and Min 2005 and Bonett and Price 2012 add whole
pairs): without them, the interval of a few questions of which none changed would have no width.
Coverage of the intervals, and the power that the added samples cost, are in docs/evidence. There is
no correction for looking at many figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import special

from posttrain.config.eval import GateConfig, GateRule
from posttrain.config.load import nearest
from posttrain.errors import ConfigError, DataError
from posttrain.evaluation.intervals import Clustered, Floats, Values, by_question
from posttrain.evaluation.metrics import ALL, LENGTHS, by_cell, values_of
from posttrain.evaluation.run import Lock, Record, read_lock, read_run, unit_name
from posttrain.runs import differing_keys

# weight of the added sample that rose, and of the one that fell; see tests/evaluation/coverage.py
_ADDED = 0.125
# parts of the lock that two runs must share to be compared, unless `despite` names them
COMPARED = ("sampling", "rendering", "versions", "judge")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """Change b − a of a figure, over the questions to which it applies on both sides.

    Attributes:
        low, high: 95 % interval of `difference`.
        p: two-sided p-value of no change, by `test`.
    """

    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float
    test: str
    questions: int


def paired_rows(a: Sequence[Record], b: Sequence[Record]) -> list[Row]:
    """Compare records on the same prompts: a row for each task, setting and mode that both have."""
    cells_b = {cell[1:]: (cell.checkpoint, records) for cell, records in by_cell(b).items()}
    rows: list[Row] = []
    for cell, records_a in by_cell(a).items():
        if cell[1:] not in cells_b:
            continue
        checkpoint_b, records_b = cells_b[cell[1:]]
        values_a = values_of(records_a)
        values_b = values_of(records_b)
        rates = [name for name in values_a if name in values_b and name not in LENGTHS]
        row: Row = {
            "a": cell.checkpoint,
            "b": checkpoint_b,
            "task": cell.task,
            "setting": cell.setting,
            "thinking": cell.thinking,
            "unscored": {"a": _unscored_count(records_a), "b": _unscored_count(records_b)},
            "rates": differences(values_a, values_b, rates, rate_difference, least=1),
            "lengths": differences(values_a, values_b, LENGTHS, length_difference, least=2),
        }
        rows.append(row)
    return rows


def differences(
    a: Mapping[str, Values],
    b: Mapping[str, Values],
    names: Iterable[str],
    difference: Callable[[Clustered, Clustered], Difference],
    *,
    least: int,
) -> Row:
    """Changes b − a of the named figures, by name.

    Args:
        a, b: values of each figure.
        difference: computes the change of a figure.
        least: questions that must have a value on both sides; other figures are left out.
    """
    row: Row = {}
    for name in names:
        questions_a = by_question(a[name])
        questions_b = by_question(b[name])
        if len(set(questions_a.names) & set(questions_b.names)) >= least:
            row[name] = asdict(difference(questions_a, questions_b))
    return row


@dataclass(frozen=True, slots=True)
class Changes:
    """Mean values of the questions that two checkpoints share, before and after.

    Attributes:
        before, after: mean of each question, `(questions,)`.
        samples: number of samples of a question on one side; the harmonic mean where the numbers
            differ. None for lengths, to which no samples are added.
    """

    before: Floats
    after: Floats
    samples: float | None = None

    @property
    def each(self) -> Floats:
        """Change of each question, `(questions,)`."""
        return self.after - self.before

    def interval(self, *, quantile: float = 0.975) -> tuple[float, float]:
        """Interval of the mean change, with this quantile at either bound.

        It is infinite for the length of a single question.
        """
        mean, error, degrees = self._moments()
        if error == math.inf:
            return -math.inf, math.inf
        half = float(special.stdtrit(degrees, quantile)) * error
        if self.samples is None:
            return mean - half, mean + half
        return max(-1.0, mean - half), min(1.0, mean + half)

    @property
    def p(self) -> float:
        """Two-sided p-value of no change: below 0.05 exactly if the 95 % interval leaves out 0."""
        mean, error, degrees = self._moments()
        if mean == 0 or error == math.inf:
            return 1.0
        return 2 * float(special.stdtr(degrees, -abs(mean) / error)) if error else 0.0

    def _moments(self) -> tuple[float, float, float]:
        """Mean, its standard error and the degrees of freedom, with the added samples."""
        added = 0.0 if self.samples is None else _ADDED / self.samples
        changes = self.each
        if not added and len(changes) < 2:
            return float(changes.mean()), math.inf, 0.0
        questions = len(changes) + 2 * added
        mean = float(changes.sum()) / questions
        spread = float(((changes - mean) ** 2).sum()) + added * ((1 - mean) ** 2 + (1 + mean) ** 2)
        degrees = questions - 1
        # added samples are weights: spread over weights is the variance of a large sample
        variance = spread / (questions if added else degrees)
        return mean, math.sqrt(variance / questions), degrees


def shared_changes(a: Clustered, b: Clustered) -> Changes:
    """Changes of a rate on the questions that both sides have, of which there must be some."""
    index_in_b: Mapping[object, int] = {name: i for i, name in enumerate(b.names)}
    pairs = [(i, index_in_b[name]) for i, name in enumerate(a.names) if name in index_in_b]
    shared_a, shared_b = np.asarray(pairs).T
    # the variance of a change goes with the inverse numbers of samples, so these are averaged
    inverse_counts = float((1 / a.counts[shared_a] + 1 / b.counts[shared_b]).mean())
    return Changes(a.means[shared_a], b.means[shared_b], samples=2 / inverse_counts)


def rate_difference(a: Clustered, b: Clustered) -> Difference:
    """Change of a rate."""
    return _difference(shared_changes(a, b))


def length_difference(a: Clustered, b: Clustered) -> Difference:
    """Change of a mean length."""
    return _difference(replace(shared_changes(a, b), samples=None))


def _difference(changes: Changes) -> Difference:
    """Difference of the changes of at least one question."""
    low, high = changes.interval()
    return Difference(
        a=float(changes.before.mean()),
        b=float(changes.after.mean()),
        difference=float(changes.each.mean()),
        low=low,
        high=high,
        p=changes.p,
        test="t",
        questions=len(changes.each),
    )


@dataclass(frozen=True, slots=True)
class RunCheckpoint:
    """Checkpoint of a finished run, with its records and the lock of the run."""

    run: Path
    checkpoint: str
    records: list[Record]
    lock: Lock


def read_checkpoint(run_name: str) -> RunCheckpoint:
    """Read one checkpoint of a finished run, named `RUN`, or `RUN:NAME` if it has several.

    Raises:
        ConfigError: no such checkpoint, or several and none named.
        DataError: not a finished evaluation.
    """
    path = Path(run_name)
    name = ""
    if not path.is_dir() and ":" in run_name:
        folder, _, name = run_name.rpartition(":")
        path = Path(folder)
    try:
        _, records = read_run(path)
    except DataError as error:
        error.path = run_name
        raise
    first = next(iter(records))
    if not name and len(records) > 1:
        raise ConfigError(f"{path} has several checkpoints; name one, as in {path}:{first}")
    name = name or first
    if name not in records:
        raise ConfigError(f"{path} has no checkpoint {name!r}{nearest(name, tuple(records))}")
    return RunCheckpoint(path, name, records[name], read_lock(path))


def compare_runs(a: RunCheckpoint, b: RunCheckpoint, *, despite: Collection[str] = ()) -> list[Row]:
    """Paired differences b − a, for every task and setting that both runs have.

    Raises:
        ConfigError: the runs cannot be compared; see `comparable`.
    """
    rows = paired_rows(*comparable(a, b, despite=despite))
    # the checkpoints of two runs may have the same name
    return [row | {"a": f"a:{a.checkpoint}", "b": f"b:{b.checkpoint}"} for row in rows]


def comparable(
    a: RunCheckpoint, b: RunCheckpoint, *, despite: Collection[str] = ()
) -> tuple[list[Record], list[Record]]:
    """Records of the tasks and settings that both runs have.

    Args:
        despite: parts of `COMPARED` in which the runs may differ.

    Raises:
        ConfigError: prompts, sampling, rendering, versions or judge differ; the message names the
            keys.
    """
    prompts_a = a.lock["prompts"]
    prompts_b = b.lock["prompts"]
    units = [name for name in prompts_a if name in prompts_b]
    if not units:
        raise ConfigError("the runs have no task and setting in common")
    if differing_units := [name for name in units if prompts_a[name] != prompts_b[name]]:
        raise ConfigError(f"the runs have different prompts in {', '.join(differing_units)}")
    for part in COMPARED:
        part_a = a.lock.get(part)
        part_b = b.lock.get(part)
        if part == "rendering":
            part_a = a.lock[part].get(a.checkpoint)
            part_b = b.lock[part].get(b.checkpoint)
        changed = differing_keys({part: part_a}, {part: part_b}, absent=None)
        if changed and part not in despite:
            raise ConfigError(
                f"the runs differ in {', '.join(changed)}; name --despite {part} to compare them "
                "all the same"
            )
    records_a = [record for record in a.records if unit_name(record.prompt) in units]
    records_b = [record for record in b.records if unit_name(record.prompt) in units]
    return records_a, records_b


# -- a gate: is the second checkpoint worse than the first by more than a rule allows? -------------

_HIGHER_IS_BETTER = {"accuracy", "adherence", "called_tool"}
Verdict = Literal["pass", "inconclusive", "fail"]


@dataclass(frozen=True, slots=True)
class GateRow:
    """Figure of a cell under a rule of the gate.

    Attributes:
        change: change of the figure, signed so that less is worse; nan if a side has no value.
        low, high: bounds of the two one-sided intervals of the change.
        unscored: share of samples that the backend, a grader or a judge failed on, on the side
            with the larger share.
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
    unscored: float
    verdict: Verdict


def gate_rows(gate: GateConfig, a: Sequence[Record], b: Sequence[Record]) -> list[GateRow]:
    """Apply the rules of a gate to records on the same prompts: a row for every cell of a rule.

    A row fails if the upper one-sided bound of its change lies below −margin, so that an equal
    checkpoint fails in at most 1 − level of comparisons whatever the margin. It passes if the
    lower bound lies above −margin (non-inferiority). Rows of all rules share the level by
    Bonferroni. A row with too many unscored samples on a side fails as well, since these may hide
    any change.

    Raises:
        ConfigError: a rule applies to no cell that both sides have.
    """
    cells_a = _by_key(a)
    cells_b = _by_key(b)
    tests: list[tuple[GateRule, CellKey, Changes | None]] = []
    for rule in gate.rules:
        for key, changes in _rule_changes(rule, cells_a, cells_b):
            tests.append((rule, key, changes))
    level = 1 - (1 - gate.level) / len(tests)
    rows: list[GateRow] = []
    for rule, key, changes in tests:
        task, setting, thinking = key
        unscored = max(_unscored_share(cells_a[key]), _unscored_share(cells_b[key]))
        low = high = change = math.nan
        questions = 0
        if changes is not None:
            low, high = changes.interval(quantile=level)
            change = float(changes.each.mean())
            questions = len(changes.each)
        verdict = gate_verdict(low, high, margin=rule.margin)
        if unscored > gate.max_unscored:
            verdict = "fail"
        row = GateRow(
            figure=rule.figure,
            task=task,
            setting=setting,
            thinking=thinking,
            change=change,
            low=low,
            high=high,
            margin=rule.margin,
            questions=questions,
            unscored=unscored,
            verdict=verdict,
        )
        rows.append(row)
    return rows


def gate_verdict(low: float, high: float, *, margin: float) -> Verdict:
    """Compare one-sided bounds of a change, for which less is worse, with a margin."""
    if high < -margin:
        return "fail"
    return "pass" if low > -margin else "inconclusive"


def _unscored_count(records: Sequence[Record]) -> int:
    return sum(record.failed or record.unscored for record in records)


def _unscored_share(records: Sequence[Record]) -> float:
    return _unscored_count(records) / len(records)


def passes(gate: GateConfig, rows: Sequence[GateRow]) -> bool:
    """True if the gate as a whole passes."""
    refused = {"fail"} if gate.inconclusive == "pass" else {"fail", "inconclusive"}
    return not any(row.verdict in refused for row in rows)


CellKey = tuple[str, str, str]  # task, setting, thinking
Cells = Mapping[CellKey, Sequence[Record]]


def _by_key(records: Sequence[Record]) -> Cells:
    cells: dict[CellKey, Sequence[Record]] = {}
    for cell, cell_records in by_cell(records).items():
        cells[cell.task, cell.setting, cell.thinking] = cell_records
    return cells


def _rule_covers(rule: GateRule, key: CellKey) -> bool:
    """True if a rule is about a cell; all tasks together count only where the rule names them."""
    task, setting, thinking = key
    if rule.task is None and task == ALL:
        return False
    return (
        rule.task in (None, task)
        and rule.setting in (None, setting)
        and rule.thinking in (None, thinking)
    )


def _rule_changes(rule: GateRule, a: Cells, b: Cells) -> Iterator[tuple[CellKey, Changes | None]]:
    """Changes of a rule's figure in each of its cells, signed so that less is worse.

    None stands for a cell with a side of which all samples are unscored.
    """
    keys = [key for key in a if key in b and _rule_covers(rule, key)]
    known_figures: dict[str, None] = {}
    testable: list[tuple[CellKey, Values, Values]] = []
    for key in keys:
        figures_a = values_of(a[key])
        figures_b = values_of(b[key])
        known_figures |= dict.fromkeys(name for name, values in figures_a.items() if values)
        values_a = figures_a.get(rule.figure, ())
        values_b = figures_b.get(rule.figure, ())
        all_unscored = 1.0 in (_unscored_share(a[key]), _unscored_share(b[key]))
        if (values_a and values_b) or all_unscored:
            testable.append((key, values_a, values_b))
    if not testable:
        hint = nearest(rule.figure, (*known_figures,)) if keys else ""
        raise ConfigError(f"a rule of the gate is about nothing that both runs have: {rule}{hint}")
    worse = rule.worse or ("lower" if rule.figure in _HIGHER_IS_BETTER else "higher")
    for key, values_a, values_b in testable:
        if not values_a or not values_b:
            yield key, None
            continue
        changes = shared_changes(by_question(values_a), by_question(values_b))
        if rule.figure in LENGTHS:
            changes = replace(changes, samples=None)
        if worse == "higher":
            changes = replace(changes, before=changes.after, after=changes.before)
        yield key, changes
