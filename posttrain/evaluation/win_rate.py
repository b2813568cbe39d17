"""Who wins, when two policies answer the same prompts and a judge sees each pair in both orders. A
duel is won where both orders prefer the new answer and lost where both prefer the old one; all else
is a tie, so that a judge's liking for a position decides nothing. Score = wins + ties / 2. Whoever
gives no answer loses to one that is there, without a judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from posttrain.config.eval import WinRateConfig
from posttrain.errors import ConfigError
from posttrain.evaluation.compare import RunCheckpoint, length_difference
from posttrain.evaluation.intervals import Values, by_question, p_of_half, rate, rate_of_means
from posttrain.evaluation.metrics import ALL
from posttrain.evaluation.run import unit_name
from posttrain.jsontext import row_line
from posttrain.rollouts import Completion, Prompt
from posttrain.runs import Counts, Parent, Run, atomic_write_json, atomic_write_text

METRICS, DUELS = "metrics.json", "duels.jsonl"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Duel:
    """Two completions of one prompt.

    Attributes:
        answers: as a judge reads them, the old one first.
        judgements: where the old, and where the new answer stood first, with the position that is
            `preferred` (1, 2, or 0 for neither; None without a verdict); () before it is judged,
            and where no judge is needed.
    """

    prompt: Prompt
    index: int
    before: Completion
    after: Completion
    answers: tuple[str, str]
    judgements: tuple[Row, ...] = ()

    @property
    def question(self) -> str:
        """Shared by all settings and samples of one question."""
        return f"{self.prompt.source}/{self.prompt.task}"

    @property
    def unit(self) -> str:
        return f"{unit_name(self.prompt)} {'on' if self.prompt.thinking else 'off'}"

    @property
    def same(self) -> bool:
        return self.answers[0].strip() == self.answers[1].strip()

    @property
    def decided(self) -> float | None:
        """The outcome where no judge is needed: the same text, or only one answer; else None."""
        if self.same:
            return 0.5
        before, after = (bool(answer.strip()) for answer in self.answers)
        return None if before and after else float(after)

    @property
    def preferred(self) -> tuple[int, int] | None:
        """The positions preferred in the two orders; None where a verdict is missing."""
        first, second = [row["preferred"] for row in self.judgements] or (None, None)
        return None if first is None or second is None else (first, second)

    @property
    def outcome(self) -> float | None:
        """1.0 won, 0.0 lost, 0.5 neither; None where a verdict is missing."""
        if self.decided is not None:
            return self.decided
        return self.preferred and {(2, 1): 1.0, (1, 2): 0.0}.get(self.preferred, 0.5)

    @property
    def disagree(self) -> bool | None:
        """Whether the two orders prefer different answers: the judge went by the position."""
        return self.preferred and self.preferred in ((1, 1), (2, 2))

    def row(self) -> Row:
        """The duel to read: both answers, and the judge's texts in each order."""
        return {
            "prompt": self.prompt.id,
            "index": self.index,
            "request": self.prompt.messages[-1].content,
            "before": self.answers[0],
            "after": self.answers[1],
            "outcome": self.outcome,
            **dict(zip(("before_first", "after_first"), self.judgements, strict=False)),
        }


def win_rows(duels: Sequence[Duel]) -> list[Row]:
    """A row a unit, and one over all where there are several; 95 % intervals cluster questions."""
    units = list(dict.fromkeys(duel.unit for duel in duels))
    rows = [_row(unit, [d for d in duels if d.unit == unit]) for unit in units]
    return [*rows, _row(ALL, duels)] if len(units) > 1 else rows


def _row(unit: str, duels: Sequence[Duel]) -> Row:
    row: Row = {
        "unit": unit,
        "questions": len({duel.question for duel in duels}),
        "duels": len(duels),
        "same": sum(duel.same for duel in duels),
        "unanswered": sum(duel.decided is not None and not duel.same for duel in duels),
        "unjudged": sum(duel.outcome is None for duel in duels),
    }
    scores = [(d.outcome, d.question) for d in duels if d.outcome is not None]
    values: dict[str, Values] = {
        name: [(float(score == outcome), question) for score, question in scores]
        for name, outcome in (("win", 1.0), ("tie", 0.5), ("loss", 0.0))
    }
    values["disagree"] = [(d.disagree, d.question) for d in duels if d.disagree is not None]
    for name, own in values.items():
        estimate = rate(own)
        row[name] = estimate and asdict(estimate)
    row["score"] = _score(scores)
    before = by_question([(_tokens(duel.before), duel.question) for duel in duels])
    after = by_question([(_tokens(duel.after), duel.question) for duel in duels])
    several = len(before.names) > 1
    row["tokens"] = asdict(length_difference(before, after)) if several else None
    return row


def _score(scores: Values) -> Row | None:
    """Wins and half of the ties, as a share; `p` is of as many won as lost."""
    if not scores:
        return None
    means = by_question(scores).means
    return {**asdict(rate_of_means(means, samples=len(scores))), "p": p_of_half(means)}


def _tokens(completion: Completion) -> int:
    return completion.reasoning_tokens + completion.answer_tokens


def pair_up(
    before: RunCheckpoint,
    after: RunCheckpoint,
    *,
    prompts: int | None,
    order: Callable[[str], int],
    answer_of: Callable[[Completion], str],
) -> tuple[list[Duel], Counts]:
    """Completions of the same prompt and index, and counts of the others.

    Args:
        prompts: how many, the first by `order` of their ids; None takes all.
        answer_of: a completion's answer as a judge reads it.

    Raises:
        ConfigError: a policy was given something else under a prompt's id, or no pair is left.
    """
    olds, news = (
        {(r.prompt.id, r.completion.index): r for r in side.records} for side in (before, after)
    )
    chosen = set(sorted({name for name, _ in olds.keys() & news.keys()}, key=order)[:prompts])
    duels: list[Duel] = []
    dropped = {"one_side": 0, "not_chosen": 0, "failed": 0}
    for key in olds | news:
        old, new = olds.get(key), news.get(key)
        if old is None or new is None:
            dropped["one_side"] += 1
        elif key[0] not in chosen:
            dropped["not_chosen"] += 1
        elif old.failed or new.failed:
            dropped["failed"] += 1
        elif _given(old.prompt) != _given(new.prompt):
            raise ConfigError(f"prompt {key[0]!r} is another one in {after.run}")
        else:
            answers = answer_of(old.completion), answer_of(new.completion)
            duels.append(Duel(old.prompt, key[1], old.completion, new.completion, answers))
    reasons = {reason: count for reason, count in dropped.items() if count}
    if not duels:
        raise ConfigError(f"{before.run}, {after.run}: no two answers to one prompt, {reasons}")
    return duels, Counts(len(olds | news), len(duels), reasons)


def _given(prompt: Prompt) -> tuple[object, ...]:
    """All that a policy sees of a prompt."""
    return prompt.messages, prompt.tools, prompt.thinking, prompt.reasoning_budget


def write_duels(
    run: Run,
    recipe: WinRateConfig,
    duels: Sequence[Duel],
    judgements: Sequence[Row],
    *,
    counts: Counts,
    ledger: Mapping[str, int],
    parents: Sequence[Parent],
    judge: Mapping[str, Any],
) -> None:
    """Write the figures and every duel to read, and finish the run. `judgements` are of the duels
    that are not decided yet, two for each, in both orders; `ledger` is what they cost."""
    rows = iter(judgements)
    judged: list[Duel] = []
    for duel in duels:
        if duel.decided is None:
            duel = replace(duel, judgements=(next(rows), next(rows)))
        judged.append(duel)
    metrics = {"rows": win_rows(judged), "ledger": dict(ledger)}
    atomic_write_json(run.path / METRICS, metrics)
    atomic_write_text(run.path / DUELS, "".join(row_line(duel.row()) for duel in judged))
    run.finish(
        counts=counts,
        files={METRICS: None, DUELS: len(duels)},
        parents=list({parent.digest: parent for parent in parents}.values()),
        seed=recipe.seed,
        stats={"before": recipe.before, "after": recipe.after, "judge": dict(judge)},
    )
