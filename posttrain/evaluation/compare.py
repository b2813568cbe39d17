"""Two checkpoints on the same prompts: what changed, how surely, question by question.

Intervals of rates are Wald's with half a pair added to each of the four outcomes (Agresti and Min
2005), over questions' mean changes: they hold the correlation between the two, and two rates that
do not change do not differ by exactly nothing. p is McNemar's exact test where every question has
one sample, else a sign-flip permutation test over questions. Nothing is corrected for looking at
many figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
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

PERMUTATIONS = 9999
_AT_A_TIME = 500  # permutations in memory at once
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


def paired_rows(a: Sequence[Record], b: Sequence[Record], *, seed: int) -> list[Row]:
    """A row for each task × setting × mode that both have, of records on the same prompts. `seed`
    is of the permutations."""
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
            "rates": differences(left, right, rates, rate_difference, least=1, seed=seed),
            "lengths": differences(left, right, LENGTHS, length_difference, least=2, seed=seed),
        })  # fmt: skip
    return rows


def differences(
    a: Mapping[str, Values],
    b: Mapping[str, Values],
    names: Iterable[str],
    difference: Callable[..., Difference],
    *,
    least: int,
    seed: int,
) -> Row:
    """The named figures' changes, where at least so many questions have both values."""
    row: Row = {}
    for name in names:
        left, right = by_question(a[name]), by_question(b[name])
        if len(set(left.names) & set(right.names)) >= least:
            row[name] = asdict(difference(left, right, seed=seed))
    return row


def shared_means(a: Clustered, b: Clustered) -> tuple[Floats, Floats, bool]:
    """The means of the questions that both have; whether each has one sample on either side."""
    places: Mapping[object, int] = {name: i for i, name in enumerate(b.names)}
    pairs = [(i, places[name]) for i, name in enumerate(a.names) if name in places]
    left, right = np.asarray(pairs).T
    alone = bool((a.counts[left] == 1).all() and (b.counts[right] == 1).all())
    return a.means[left], b.means[right], alone


def rate_difference(a: Clustered, b: Clustered, *, seed: int) -> Difference:
    """The change of a rate, with McNemar's or a permutation test."""
    left, right, alone = shared_means(a, b)
    changes = right - left
    low, high = change_interval(changes)
    binary = bool(np.isin(left, (0, 1)).all() and np.isin(right, (0, 1)).all())
    if alone and binary:
        p, test = mcnemar(left, right), "mcnemar"
    else:
        p, test = sign_flip(changes, seed=seed), "permutation"
    values = float(left.mean()), float(right.mean())
    return Difference(*values, float(changes.mean()), low, high, p, test, len(changes))


def change_interval(changes: Floats, *, quantile: float = 0.975) -> tuple[float, float]:
    """The interval of a mean change of shares, with this quantile of Student's at either bound."""
    # half a question that rose, half a one that fell, one that stayed
    n = len(changes) + 2
    mean = float(changes.sum()) / n
    variance = (float((changes**2).sum()) + 1) / n - mean**2
    half = float(stats.t.ppf(quantile, n - 1)) * math.sqrt(variance / n)
    return max(-1.0, mean - half), min(1.0, mean + half)


def mean_interval(changes: Floats, *, quantile: float = 0.975) -> tuple[float, float]:
    """Student's interval of a mean change; of one question there is none."""
    if len(changes) < 2:
        return -math.inf, math.inf
    error = float(changes.std(ddof=1)) / math.sqrt(len(changes))
    mean, half = float(changes.mean()), float(stats.t.ppf(quantile, len(changes) - 1)) * error
    return mean - half, mean + half


def length_difference(a: Clustered, b: Clustered, *, seed: int) -> Difference:
    """The change of a mean length, with a t interval over questions."""
    left, right, _ = shared_means(a, b)
    changes = right - left
    values = float(left.mean()), float(right.mean()), float(changes.mean())
    p = sign_flip(changes, seed=seed)
    return Difference(*values, *mean_interval(changes), p, "permutation", len(changes))


def mcnemar(a: Floats, b: Floats) -> float:
    """The exact test of McNemar (1947) on pairs of 0 and 1."""
    up, down = int((b > a).sum()), int((b < a).sum())
    return 1.0 if up + down == 0 else float(stats.binomtest(up, up + down).pvalue)


def sign_flip(changes: Floats, *, seed: int) -> float:
    """A permutation test that the changes of questions are as often up as down."""
    moved = changes[changes != 0]  # a change of nothing is the same under either sign
    if len(moved) < 2:
        return 1.0  # either sign is as extreme
    result = stats.permutation_test(
        (moved,),
        lambda x, axis: np.mean(x, axis=axis),
        permutation_type="samples",
        n_resamples=PERMUTATIONS,
        batch=_AT_A_TIME,
        rng=np.random.default_rng(seed),
    )
    return min(1.0, float(result.pvalue))


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
    rows = paired_rows(*comparable(a, b, despite=despite), seed=0)
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
    level by Bonferroni. Rates use the interval of Agresti and Min (2005), lengths Student's. A row
    of which a side has too many unscored samples fails as well: nobody knows what they hide.

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
        if len(changes):
            interval = mean_interval if rule.figure in LENGTHS else change_interval
            low, high = interval(changes, quantile=level)
            change = float(changes.mean())
        verdict: Verdict = "inconclusive"
        if high < -rule.margin or unscored > gate.max_unscored:
            verdict = "fail"
        elif low > -rule.margin:
            verdict = "pass"
        bounds = change, low, high, rule.margin
        rows.append(GateRow(rule.figure, *cell, *bounds, len(changes), unscored, verdict))
    return rows


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


def _changes(rule: GateRule, a: Cells, b: Cells) -> Iterator[tuple[Place, Floats]]:
    """The cells of a rule with each question's change, for which less is worse; none where all
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
        if left and right:
            before, after, _ = shared_means(by_question(left), by_question(right))
            yield cell, (after - before) * (1 if worse == "lower" else -1)
        else:
            yield cell, np.empty(0)
