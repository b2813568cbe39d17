"""Two checkpoints on the same prompts: what changed, how surely, question by question.

    {"task": "maths", "setting": "no_tools", "thinking": "on", "a": "sft", "b": "dpo",
     "rates": {"hallucination": {"a": 0.083, "b": 0.007, "difference": -0.076, "low": -0.11,
                                 "high": -0.05, "p": 1e-9, "test": "mcnemar", "questions": 500}}}

Intervals of rates are Wald's with half a pair added to each of the four outcomes (Agresti and Min
2005), over questions' mean changes: they hold the correlation between the two, and two rates that
do not change do not differ by exactly nothing. p is McNemar's exact test where every question has
one sample, else a sign-flip permutation test over questions. It is of each figure alone: nothing is
corrected for looking at many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from posttrain.evaluation.cells import by_cell
from posttrain.evaluation.clustered import Clustered, Floats, by_question
from posttrain.evaluation.observe import LENGTHS, RATES, observe
from posttrain.evaluation.record import Record

PERMUTATIONS = 9999
_AT_A_TIME = 500  # permutations in memory at once
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
    found: list[Row] = []
    for key in ours:
        if key not in theirs:
            continue
        (first, left), (second, right) = ours[key], theirs[key]
        task, setting, thinking = key
        found.append(
            {"a": first, "b": second, "task": task, "setting": setting, "thinking": thinking}
            | _differences(left, right, seed=seed)
        )
    return found


def _differences(a: Sequence[Record], b: Sequence[Record], *, seed: int) -> Row:
    left, right = _gathered(a), _gathered(b)
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


def _gathered(records: Sequence[Record]) -> dict[str, Clustered]:
    """Every figure's means by question."""
    values: dict[str, tuple[list[float], list[tuple[str, str]]]] = {}
    for record in records:
        for name, value in observe(record).items():
            found = values.setdefault(name, ([], []))
            found[0].append(value)
            found[1].append((record.prompt.source, record.prompt.task))
    return {name: by_question(*found) for name, found in values.items()}


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
