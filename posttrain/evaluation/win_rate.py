"""Who wins, when two policies answer the same prompts and a judge sees each pair in both orders.

    win_rows([Duel("maths-7", "maths.no_tools on", index=0, before_first=1, after_first=1, …), …])
    → [{"unit": "maths.no_tools on", "questions": 150, "win": {"value": 0.42, …}, "tie": …,
        "loss": …, "score": {"value": 0.61, …}, "disagree": …}, …, {"unit": "all", …}]

A duel is won where both orders prefer the new answer and lost where both prefer the old one; all
else is a tie, so that a judge's liking for a position decides nothing. Score = wins + ties / 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from posttrain.evaluation.compare import length_difference
from posttrain.evaluation.intervals import Clustered, by_question, rate

ALL = "all"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Duel:
    """Two answers to one prompt.

    Attributes:
        question: shared by all settings and samples of one question.
        unit: what the figures are by.
        before_first, after_first: which *position* was preferred (1, 2, or 0 for neither) where the
            old, and where the new answer stood first; None where the judge said no verdict.
        same: the answers are the same text; a judge was not asked.
        before_tokens, after_tokens: of answer and reasoning together.
    """

    question: str
    unit: str
    index: int
    before_first: int | None
    after_first: int | None
    same: bool
    before_tokens: int
    after_tokens: int

    @property
    def outcome(self) -> float | None:
        """1.0 won, 0.0 lost, 0.5 neither; None where a verdict is missing."""
        if self.same:
            return 0.5
        if self.before_first is None or self.after_first is None:
            return None
        return {(2, 1): 1.0, (1, 2): 0.0}.get((self.before_first, self.after_first), 0.5)

    @property
    def disagree(self) -> bool | None:
        """Whether the two orders prefer different answers: the judge went by the position."""
        if self.same or self.before_first is None or self.after_first is None:
            return None
        return self.before_first == self.after_first != 0


_RATES: dict[str, Callable[[Duel], float | None]] = {
    "win": lambda duel: _is(duel.outcome, 1.0),
    "tie": lambda duel: _is(duel.outcome, 0.5),
    "loss": lambda duel: _is(duel.outcome, 0.0),
    "score": lambda duel: duel.outcome,
    "disagree": lambda duel: duel.disagree,
}


def _is(outcome: float | None, wanted: float) -> float | None:
    return None if outcome is None else float(outcome == wanted)


def win_rows(duels: Sequence[Duel], *, seed: int) -> list[Row]:
    """A row a unit, and one over all where there are several; 95 % intervals cluster questions.

    Args:
        seed: of the permutation test of lengths.
    """
    units = list(dict.fromkeys(duel.unit for duel in duels))
    rows = [_row(unit, [d for d in duels if d.unit == unit], seed) for unit in units]
    return [*rows, _row(ALL, duels, seed)] if len(units) > 1 else rows


def _row(unit: str, duels: Sequence[Duel], seed: int) -> Row:
    row: Row = {
        "unit": unit,
        "questions": len({duel.question for duel in duels}),
        "duels": len(duels),
        "same": sum(duel.same for duel in duels),
        "unjudged": sum(duel.outcome is None for duel in duels),
    }
    for name, value_of in _RATES.items():
        found = [(value_of(duel), duel.question) for duel in duels]
        kept = [(float(value), question) for value, question in found if value is not None]
        estimate = rate([value for value, _ in kept], [question for _, question in kept])
        row[name] = None if estimate is None else asdict(estimate)
    before, after = _lengths(duels, "before_tokens"), _lengths(duels, "after_tokens")
    several = len(before.names) > 1
    row["tokens"] = asdict(length_difference(before, after, seed=seed)) if several else None
    return row


def _lengths(duels: Sequence[Duel], name: str) -> Clustered:
    return by_question([getattr(d, name) for d in duels], [d.question for d in duels])
