"""How good a judge is, from its judgements of held-out pairs in both orders; with intervals.

    judge_cells([Judged("rl", "helpsteer3", "q1", "p1", 0, False, prefers=1, …), …], seed=0)
    → [{"checkpoint": "rl", "source": "helpsteer3", "pairs": 500, "format": {"value": 0.99, …},
        "pairwise_accuracy": {…}, "position_consistency": {…}, …}, …, {"source": "all", …}]

Pairs of one question, and both orders of a pair, are one cluster. Nothing here reads a judgement:
`reward.genrm_training` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from posttrain.evaluation.compare import length_difference, rate_difference
from posttrain.evaluation.intervals import by_question, length, rate

ALL = "all"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Judged:
    """One judgement of one pair in one order.

    Attributes:
        question: shared by all pairs that answer the same.
        index: which of the samples; sample i in the one order stands beside sample i in the other.
        readable: whether it has a verdict.
        prefers, wanted: what it and what the gold prefers, by position: 1, 2, or 0 for neither;
            `prefers` is None where it is not readable.
        right: 1.0, 0.0 or 0.5 (neither); 0.0 where not readable; None where nothing is wanted.
        same_scores: whether both responses have the same score; None where not readable.
        score_error: mean distance of the scores from gold scores, where there are both.
        ranking_error: distance of the ranking.
        tokens: that the judge wrote.
    """

    checkpoint: str
    source: str
    question: str
    pair: str
    index: int
    swapped: bool
    readable: bool
    truncated: bool
    reward: float
    prefers: int | None
    wanted: int
    right: float | None
    same_scores: bool | None
    score_error: float | None
    ranking_error: float | None
    tokens: int


Values = list[tuple[float, str]]
"""Values of a figure, each with its question."""
ValuesOf = Callable[[Sequence[Judged]], Values]


def _each(get: Callable[[Judged], float | None]) -> ValuesOf:
    """A figure of judgements one by one; those without a value are left out."""

    def values_of(judged: Sequence[Judged]) -> Values:
        values = ((get(one), one.question) for one in judged)
        return [(float(value), question) for value, question in values if value is not None]

    return values_of


def _consistent(judged: Sequence[Judged]) -> Values:
    """Whether a pair's winner is the same in both orders, where both verdicts can be read."""
    return [
        (float(one.prefers == mirrored(other.prefers)), one.question)
        for one, other in both_orders(judged)
        if one.prefers is not None and other.prefers is not None
    ]


def _right_in_both(judged: Sequence[Judged]) -> Values:
    """Whether a pair is judged rightly in both orders; what cannot be read is not right."""
    return [
        (float(one.right == 1 and other.right == 1), one.question)
        for one, other in both_orders(judged)
        if one.right is not None and other.right is not None
    ]


def both_orders(judged: Iterable[Judged]) -> list[tuple[Judged, Judged]]:
    """Each pair's judgements in the given and in the other order, sample by sample."""
    given: dict[tuple[str, int], Judged] = {}
    swapped: dict[tuple[str, int], Judged] = {}
    for one in judged:
        (swapped if one.swapped else given)[one.pair, one.index] = one
    return [(given[key], swapped[key]) for key in given if key in swapped]


def mirrored(preference: int) -> int:
    """The position that the preferred response has in the other order."""
    return {0: 0, 1: 2, 2: 1}[preference]


RATES: dict[str, ValuesOf] = {
    "pairwise_accuracy": _each(lambda one: one.right),
    "pairwise_accuracy_readable": _each(lambda one: one.right if one.readable else None),
    "right_in_both_orders": _right_in_both,
    "position_consistency": _consistent,
    "format": _each(lambda one: float(one.readable)),
    "prefers_first": _each(lambda one: None if not one.prefers else float(one.prefers == 1)),
    "prefers_neither": _each(lambda one: None if one.prefers is None else one.prefers == 0),
    "same_scores": _each(lambda one: one.same_scores),
    "truncated": _each(lambda one: float(one.truncated)),
}
MEANS: dict[str, ValuesOf] = {
    "reward": _each(lambda one: one.reward),
    "score_error": _each(lambda one: one.score_error),
    "ranking_error": _each(lambda one: one.ranking_error),
    "tokens": _each(lambda one: one.tokens),
}


def judge_cells(judged: Sequence[Judged], *, seed: int) -> list[Row]:
    """A row a checkpoint × source, and one over all sources where there are several.

    Args:
        seed: of the bootstrap of means; rates have Wilson's interval.
    """
    return [
        _cell(checkpoint, source, own, seed)
        for checkpoint in dict.fromkeys(one.checkpoint for one in judged)
        for source, own in _by_source(judged, checkpoint)
    ]


def judge_differences(judged: Sequence[Judged], *, seed: int) -> list[Row]:
    """Each other checkpoint against the first, on questions where a figure applies to both."""
    names = list(dict.fromkeys(one.checkpoint for one in judged))
    rows: list[Row] = []
    for name in names[1:]:
        theirs = dict(_by_source(judged, name))
        for source, ours in _by_source(judged, names[0]):
            if source in theirs:
                row: Row = {"a": names[0], "b": name, "source": source}
                rows.append(row | _differences(ours, theirs[source], seed))
    return rows


def _by_source(judged: Sequence[Judged], checkpoint: str) -> list[tuple[str, list[Judged]]]:
    own = [one for one in judged if one.checkpoint == checkpoint]
    names = list(dict.fromkeys(one.source for one in own))
    cells = [(name, [one for one in own if one.source == name]) for name in names]
    return [*cells, (ALL, own)] if len(names) > 1 else cells


def _cell(checkpoint: str, source: str, judged: Sequence[Judged], seed: int) -> Row:
    row: Row = {
        "checkpoint": checkpoint,
        "source": source,
        "pairs": len({one.pair for one in judged}),
        "judgements": len(judged),
    }
    for name, values_of in RATES.items():
        values, questions = _columns(values_of(judged))
        estimate = rate(values, questions)
        row[name] = None if estimate is None else asdict(estimate)
    for name, values_of in MEANS.items():
        values, questions = _columns(values_of(judged))
        spread = length(values, questions, seed=seed)
        row[name] = None if spread is None else asdict(spread.mean)
    return row


def _differences(a: Sequence[Judged], b: Sequence[Judged], seed: int) -> Row:
    row: Row = {}
    for figures, compare in ((RATES, rate_difference), (MEANS, length_difference)):
        for name, values_of in figures.items():
            left, right = (by_question(*_columns(values_of(side))) for side in (a, b))
            if len(set(left.names) & set(right.names)) > 1:
                row[name] = asdict(compare(left, right, seed=seed))
    return row


def _columns(values: Values) -> tuple[list[float], list[str]]:
    return [value for value, _ in values], [question for _, question in values]
