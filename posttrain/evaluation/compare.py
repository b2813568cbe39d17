"""Two checkpoints on the same prompts: what changed, how surely, question by question.

One method gives interval, p-value and gate, so that they agree: Student's t of the questions' mean
changes, however many samples a question has. Of rates an eighth of a sample that rose and an eighth
of one that fell are added first (as Agresti and Min 2005 and Bonett and Price 2012 add whole
pairs), since a few questions of which none changed would else differ by exactly nothing. How often
the intervals hold the truth, and what the added samples cost in power, is in docs/evidence. Nothing
is corrected for looking at many figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import stats

from posttrain.config.eval import GateConfig, GateRule
from posttrain.config.load import nearest
from posttrain.errors import ConfigError
from posttrain.evaluation.intervals import Clustered, Floats, Values, by_question
from posttrain.evaluation.metrics import ALL, LENGTHS, by_cell, values_of
from posttrain.evaluation.run import Lock, Record, read_lock, read_run, unit_name
from posttrain.runs import differing_keys

# of a sample that rose, and of one that fell; see tests/evaluation/coverage.py
_ADDED = 0.125
# what two runs must share before they are compared, unless told otherwise
COMPARED = ("sampling", "rendering", "versions", "judge")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """b − a of one figure. `questions` are those on which it applies to both."""

    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float
    test: str
    questions: int


def paired_rows(a: Sequence[Record], b: Sequence[Record]) -> list[Row]:
    """A row for each task × setting × mode that both have, of records on the same prompts."""
    theirs = {cell[1:]: (cell.checkpoint, rows) for cell, rows in by_cell(b).items()}
    rows: list[Row] = []
    for cell, own in by_cell(a).items():
        if cell[1:] not in theirs:
            continue
        second, other = theirs[cell[1:]]
        left, right = values_of(own), values_of(other)
        rates = [name for name in left if name in right and name not in LENGTHS]
        rows.append({
            "a": cell.checkpoint,
            "b": second,
            "task": cell.task,
            "setting": cell.setting,
            "thinking": cell.thinking,
            "unscored": {"a": _unscored_count(own), "b": _unscored_count(other)},
            "rates": differences(left, right, rates, rate_difference, least=1),
            "lengths": differences(left, right, LENGTHS, length_difference, least=2),
        })  # fmt: skip
    return rows


def differences(
    a: Mapping[str, Values],
    b: Mapping[str, Values],
    names: Iterable[str],
    difference: Callable[[Clustered, Clustered], Difference],
    *,
    least: int,
) -> Row:
    """The named figures' changes, where at least so many questions have both values."""
    row: Row = {}
    for name in names:
        left, right = by_question(a[name]), by_question(b[name])
        if len(set(left.names) & set(right.names)) >= least:
            row[name] = asdict(difference(left, right))
    return row


@dataclass(frozen=True, slots=True)
class Changes:
    """The mean change of each question that two checkpoints share.

    Attributes:
        before, after: the means of the questions.
        samples: of a question on a side, as many as carry the same sampling variance where the
            numbers differ; None: of lengths, to which nothing is added.
    """

    before: Floats
    after: Floats
    samples: float | None = None

    @property
    def each(self) -> Floats:
        return self.after - self.before

    def interval(self, *, quantile: float = 0.975) -> tuple[float, float]:
        """The interval of the mean change with this quantile at either bound; of the length of one
        question there is none."""
        mean, error, degrees = self._moments()
        if error == math.inf:
            return -math.inf, math.inf
        half = float(stats.t.ppf(quantile, degrees)) * error
        if self.samples is None:
            return mean - half, mean + half
        return max(-1.0, mean - half), min(1.0, mean + half)

    @property
    def p(self) -> float:
        """Two-sided, of no change: below 0.05 exactly where the 95 % interval leaves out 0."""
        mean, error, degrees = self._moments()
        if mean == 0 or error == math.inf:
            return 1.0
        return 2 * float(stats.t.sf(abs(mean) / error, degrees)) if error else 0.0

    def _moments(self) -> tuple[float, float, float]:
        """Mean, its standard error and degrees of freedom, with the added samples."""
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
    """The changes of shares, of the questions that both have."""
    places: Mapping[object, int] = {name: i for i, name in enumerate(b.names)}
    pairs = [(i, places[name]) for i, name in enumerate(a.names) if name in places]
    left, right = np.asarray(pairs).T
    inverse = float((1 / a.counts[left] + 1 / b.counts[right]).mean())
    return Changes(a.means[left], b.means[right], samples=2 / inverse)


def rate_difference(a: Clustered, b: Clustered) -> Difference:
    """The change of a rate."""
    return _difference(shared_changes(a, b))


def length_difference(a: Clustered, b: Clustered) -> Difference:
    """The change of a mean length."""
    return _difference(replace(shared_changes(a, b), samples=None))


def _difference(changes: Changes) -> Difference:
    before, after = float(changes.before.mean()), float(changes.after.mean())
    change = float(changes.each.mean())
    bounds = changes.interval()
    return Difference(before, after, change, *bounds, changes.p, "t", len(changes.each))


@dataclass(frozen=True, slots=True)
class RunCheckpoint:
    """One checkpoint of one run."""

    run: Path
    checkpoint: str
    records: list[Record]
    lock: Lock


def side_of(given: str) -> RunCheckpoint:
    """One checkpoint of a finished run: `RUN`, or `RUN:NAME` where it has several.

    Raises:
        ConfigError: no such checkpoint, or several and none named.
        DataError: not a finished evaluation.
    """
    path, name = Path(given), ""
    if not path.is_dir() and ":" in given:
        folder, _, name = given.rpartition(":")
        path = Path(folder)
    _, records = read_run(path)
    first = next(iter(records))
    if not name and len(records) > 1:
        raise ConfigError(f"{path} has several checkpoints; name one, as in {path}:{first}")
    name = name or first
    if name not in records:
        raise ConfigError(f"{path} has no checkpoint {name!r}{nearest(name, tuple(records))}")
    return RunCheckpoint(path, name, records[name], read_lock(path))


def compare_runs(a: RunCheckpoint, b: RunCheckpoint, *, despite: Collection[str] = ()) -> list[Row]:
    """Paired differences, b − a, for every task and setting that both runs have; as
    `comparable`."""
    rows = paired_rows(*comparable(a, b, despite=despite))
    # both may have the same name
    return [row | {"a": f"a:{a.checkpoint}", "b": f"b:{b.checkpoint}"} for row in rows]


def comparable(
    a: RunCheckpoint, b: RunCheckpoint, *, despite: Collection[str] = ()
) -> tuple[list[Record], list[Record]]:
    """The records of the tasks and settings that both runs have; parts of `COMPARED` may differ
    `despite` that.

    Raises:
        ConfigError: prompts, sampling, rendering, versions or judge differ, naming what.
    """
    left, right = a.lock["prompts"], b.lock["prompts"]
    units = [name for name in left if name in right]
    if not units:
        raise ConfigError("the runs have no task and setting in common")
    if other := [name for name in units if left[name] != right[name]]:
        raise ConfigError(f"the runs have different prompts in {', '.join(other)}")
    for part in COMPARED:
        left, right = a.lock.get(part), b.lock.get(part)
        if part == "rendering":
            left, right = a.lock[part].get(a.checkpoint), b.lock[part].get(b.checkpoint)
        changed = differing_keys({part: left}, {part: right})
        if changed and part not in despite:
            raise ConfigError(
                f"the runs differ in {', '.join(changed)}; name --despite {part} to compare them "
                "all the same"
            )
    ours, theirs = ([r for r in side.records if unit_name(r.prompt) in units] for side in (a, b))
    return ours, theirs


# -- a gate: does the second do worse than the first by more than a rule allows? -------------------

_HIGHER_IS_BETTER = {"accuracy", "adherence", "called_tool"}
Verdict = Literal["pass", "inconclusive", "fail"]


@dataclass(frozen=True, slots=True)
class GateRow:
    """One figure of one cell: its change, for which less is worse, with both one-sided
    intervals (nan where a side has no value), and the share of samples, on the side that has more
    of them, that the backend, a grader or a judge failed on."""

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
    """A row for every cell that a rule is about, of records on the same prompts.

    A row fails where the one-sided interval of its change lies below −margin, so that an equal
    checkpoint fails in at most 1 − level of comparisons whatever the margin; it passes where the
    interval of the other side lies above −margin (non-inferiority). Rows of all rules share the
    level by Bonferroni. A row of which a side has too many unscored samples fails as well: nobody
    knows what they hide.

    Raises:
        ConfigError: a rule that is about no cell that both have.
    """
    left, right = ({cell[1:]: rows for cell, rows in by_cell(side).items()} for side in (a, b))
    found = [(rule, *changes) for rule in gate.rules for changes in _changes(rule, left, right)]
    level = 1 - (1 - gate.level) / len(found)
    rows: list[GateRow] = []
    for rule, cell, changes in found:
        unscored = max(_unscored_share(left[cell]), _unscored_share(right[cell]))
        low = high = change = math.nan
        questions = 0
        if changes is not None:
            low, high = changes.interval(quantile=level)
            change = float(changes.each.mean())
            questions = len(changes.each)
        verdict = gate_verdict(low, high, margin=rule.margin)
        if unscored > gate.max_unscored:
            verdict = "fail"
        bounds = change, low, high, rule.margin
        rows.append(GateRow(rule.figure, *cell, *bounds, questions, unscored, verdict))
    return rows


def gate_verdict(low: float, high: float, *, margin: float) -> Verdict:
    """What one-sided bounds of a change, for which less is worse, say of a margin."""
    if high < -margin:
        return "fail"
    return "pass" if low > -margin else "inconclusive"


def _unscored_count(records: Sequence[Record]) -> int:
    return sum(record.failed or record.unscored for record in records)


def _unscored_share(records: Sequence[Record]) -> float:
    return _unscored_count(records) / len(records)


def passes(gate: GateConfig, rows: Sequence[GateRow]) -> bool:
    """Whether the gate as a whole lets the second run through."""
    refused = {"fail"} if gate.inconclusive == "pass" else {"fail", "inconclusive"}
    return not any(row.verdict in refused for row in rows)


Place = tuple[str, str, str]  # task, setting, thinking
Cells = Mapping[Place, Sequence[Record]]


def _changes(rule: GateRule, a: Cells, b: Cells) -> Iterator[tuple[Place, Changes | None]]:
    """The cells of a rule with the questions' changes, for which less is worse; None where all
    samples of a side are unscored."""
    wanted = (rule.task, rule.setting, rule.thinking)
    cells = [
        cell for cell in a
        if cell in b and all(w in (None, own) for w, own in zip(wanted, cell, strict=True))
        and (rule.task is not None or cell[0] != ALL)
    ]  # fmt: skip
    known: dict[str, None] = {}
    with_values: list[tuple[Place, Values, Values]] = []
    for cell in cells:
        before, after = values_of(a[cell]), values_of(b[cell])
        known |= dict.fromkeys(name for name, values in before.items() if values)
        left, right = before.get(rule.figure, ()), after.get(rule.figure, ())
        if (left and right) or 1.0 in (_unscored_share(a[cell]), _unscored_share(b[cell])):
            with_values.append((cell, left, right))
    if not with_values:
        hint = nearest(rule.figure, (*known,)) if cells else ""
        raise ConfigError(f"a rule of the gate is about nothing that both runs have: {rule}{hint}")
    worse = rule.worse or ("lower" if rule.figure in _HIGHER_IS_BETTER else "higher")
    for cell, left, right in with_values:
        if not left or not right:
            yield cell, None
            continue
        changes = shared_changes(by_question(left), by_question(right))
        if rule.figure in LENGTHS:
            changes = replace(changes, samples=None)
        if worse == "higher":
            changes = replace(changes, before=changes.after, after=changes.before)
        yield cell, changes
