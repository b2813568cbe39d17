"""Two checkpoints on the same prompts: what changed, how surely, question by question.

    compare_runs(side_of("runs/eval-sft"), side_of("runs/eval-dpo:dpo"))
    → [{"task": "maths", "setting": "no_tools", "thinking": "on", "a": "a:sft", "b": "b:dpo",
        "rates": {"hallucination": {"a": 0.083, "b": 0.007, "difference": -0.076, "low": -0.11,
                                    "high": -0.05, "p": 1e-9, "test": "mcnemar", …}}}, …]

Intervals of rates are Wald's with half a pair added to each of the four outcomes (Agresti and Min
2005), over questions' mean changes: they hold the correlation between the two, and two rates that
do not change do not differ by exactly nothing. p is McNemar's exact test where every question has
one sample, else a sign-flip permutation test over questions. It is of each figure alone: nothing is
corrected for looking at many.

Two runs can be compared if their prompts and sampling are the same: weights and data may differ.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from posttrain.artifacts import differing_keys
from posttrain.config.load import nearest
from posttrain.errors import ConfigError
from posttrain.evaluation.grade import Record, unit_name
from posttrain.evaluation.intervals import Clustered, Floats, by_question
from posttrain.evaluation.metrics import LENGTHS, RATES, by_cell, measure
from posttrain.evaluation.run import LOCK, Lock, read_lock, read_run

PERMUTATIONS = 9999
_AT_A_TIME = 500  # permutations in memory at once
# what two runs must share before they are compared, and may be told to overlook
COMPARED = ("sampling", "rendering", "versions")
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
    """A row for each task × setting × mode that both have.

    Args:
        a, b: records of one checkpoint each, on the same prompts; the caller sees to that.
        seed: of the permutations.
    """
    ours = {cell[1:]: (cell.checkpoint, rows) for cell, rows in by_cell(a).items()}
    theirs = {cell[1:]: (cell.checkpoint, rows) for cell, rows in by_cell(b).items()}
    rows: list[Row] = []
    for key in ours:
        if key not in theirs:
            continue
        (first, left), (second, right) = ours[key], theirs[key]
        task, setting, thinking = key
        rows.append(
            {"a": first, "b": second, "task": task, "setting": setting, "thinking": thinking}
            | _differences(left, right, seed=seed)
        )
    return rows


def _differences(a: Sequence[Record], b: Sequence[Record], *, seed: int) -> Row:
    left, right = _by_figure(a), _by_figure(b)
    rates = {
        name: asdict(rate_difference(left[name], right[name], seed=seed))
        for name in RATES
        if name in left and name in right and _shared(left[name], right[name])
    }
    lengths = {
        name: asdict(length_difference(left[name], right[name], seed=seed))
        for name in LENGTHS
        if name in left and name in right and len(_shared(left[name], right[name])) > 1
    }
    return {"rates": rates, "lengths": lengths}


def _by_figure(records: Sequence[Record]) -> dict[str, Clustered]:
    """Every figure's means by question."""
    values: dict[str, tuple[list[float], list[tuple[str, str]]]] = {}
    for record in records:
        for name, value in measure(record).items():
            column = values.setdefault(name, ([], []))
            column[0].append(value)
            column[1].append((record.prompt.source, record.prompt.task))
    return {name: by_question(*column) for name, column in values.items()}


def _shared(a: Clustered, b: Clustered) -> list[tuple[int, int]]:
    """Positions in both of the questions that both have."""
    places: Mapping[object, int] = {name: i for i, name in enumerate(b.names)}
    return [(i, places[name]) for i, name in enumerate(a.names) if name in places]


def rate_difference(a: Clustered, b: Clustered, *, seed: int) -> Difference:
    """How much a rate changed."""
    at = np.asarray(_shared(a, b))
    left, right = a.means[at[:, 0]], b.means[at[:, 1]]
    changes = right - left
    low, high = change_interval(changes)
    alone = bool((a.counts[at[:, 0]] == 1).all() and (b.counts[at[:, 1]] == 1).all())
    binary = bool(np.isin(left, (0, 1)).all() and np.isin(right, (0, 1)).all())
    if alone and binary:
        p, test = mcnemar(left, right), "mcnemar"
    else:
        p, test = sign_flip(changes, seed=seed), "permutation"
    values = float(left.mean()), float(right.mean())
    return Difference(*values, float(changes.mean()), low, high, p, test, len(at))


def change_interval(changes: Floats) -> tuple[float, float]:
    """The interval of a mean change of shares, each between −1 and 1."""
    # half a question that rose, half a one that fell, one that stayed
    n = len(changes) + 2
    mean = float(changes.sum()) / n
    variance = (float((changes**2).sum()) + 1) / n - mean**2
    half = float(stats.t.ppf(0.975, n - 1)) * math.sqrt(variance / n)
    return max(-1.0, mean - half), min(1.0, mean + half)


def length_difference(a: Clustered, b: Clustered, *, seed: int) -> Difference:
    """How much a mean length changed; a t interval over questions."""
    at = np.asarray(_shared(a, b))
    left, right = a.means[at[:, 0]], b.means[at[:, 1]]
    changes = right - left
    change = float(changes.mean())
    error = float(changes.std(ddof=1)) / math.sqrt(len(changes))
    half = float(stats.t.ppf(0.975, len(changes) - 1)) * error
    p = sign_flip(changes, seed=seed)
    values = float(left.mean()), float(right.mean())
    return Difference(*values, change, change - half, change + half, p, "permutation", len(at))


def mcnemar(a: Floats, b: Floats) -> float:
    """The exact test of McNemar (1947) on pairs of 0 and 1."""
    up, down = int((b > a).sum()), int((b < a).sum())
    return 1.0 if up + down == 0 else float(stats.binomtest(up, up + down).pvalue)


def sign_flip(changes: Floats, *, seed: int) -> float:
    """A permutation test that the changes of questions are as often up as down."""
    moved = changes[changes != 0]  # a change of nothing is the same under either sign
    if len(moved) == 0:
        return 1.0
    if len(moved) == 1:
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
class Side:
    """One checkpoint of one run."""

    run: Path
    checkpoint: str
    records: list[Record]
    lock: Lock


def side_of(given: str) -> Side:
    """`RUN` or `RUN:NAME`.

    Raises:
        ConfigError: no such checkpoint, or several and none named.
        DataError: not a finished evaluation.
    """
    path, name = Path(given), ""
    if not path.is_dir() and ":" in given:
        folder, _, name = given.rpartition(":")
        path = Path(folder)
    _, records = read_run(path)
    if not name and len(records) > 1:
        first = next(iter(records))
        raise ConfigError(f"{path} has several checkpoints; name one, as in {path}:{first}")
    name = name or next(iter(records))
    if name not in records:
        raise ConfigError(f"{path} has no checkpoint {name!r}{nearest(name, tuple(records))}")
    return Side(path, name, records[name], read_lock(path / LOCK))


def compare_runs(a: Side, b: Side, *, despite: Collection[str] = ()) -> list[dict[str, Any]]:
    """Paired differences, b − a, for every task and setting that both runs have.

    Raises:
        ConfigError: their prompts or their sampling differ (`refuse_unlike`).
    """
    shared = refuse_unlike(
        a.lock, b.lock, checkpoints=(a.checkpoint, b.checkpoint), despite=despite
    )
    left, right = (
        [record for record in side.records if unit_name(record.prompt) in shared] for side in (a, b)
    )
    rows = paired_rows(left, right, seed=0)
    # the same name in two runs would say nothing
    return [row | {"a": f"a:{a.checkpoint}", "b": f"b:{b.checkpoint}"} for row in rows]


def refuse_unlike(
    a: Lock, b: Lock, *, checkpoints: tuple[str, str], despite: Collection[str] = ()
) -> list[str]:
    """Refuse to compare runs of other prompts or sampling.

    Args:
        checkpoints: the one of each run that is compared.
        despite: parts of `COMPARED` that may differ.

    Returns:
        The names of the units that both have.

    Raises:
        ConfigError: naming what differs; prompts must never differ.
    """
    shared = [name for name in a["prompts"] if name in b["prompts"]]
    if not shared:
        raise ConfigError("the runs have no task and setting in common")
    other = [name for name in shared if a["prompts"][name] != b["prompts"][name]]
    if other:
        raise ConfigError(f"the runs have different prompts in {', '.join(other)}")
    left, right = _compared(a, checkpoints[0]), _compared(b, checkpoints[1])
    for part in COMPARED:
        changed = differing_keys({part: left[part]}, {part: right[part]})
        if changed and part not in despite:
            raise ConfigError(
                f"the runs differ in {', '.join(changed)}; name --despite {part} to compare them "
                "all the same"
            )
    return shared


def _compared(lock: Lock, checkpoint: str) -> Lock:
    return {
        "sampling": lock["sampling"],
        "rendering": lock["rendering"].get(checkpoint),
        "versions": lock["versions"],
    }
