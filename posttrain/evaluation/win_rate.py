"""Win rate of a policy against another, when a judge sees their answers to a prompt in both orders.

A duel is won where both orders prefer the new answer and lost where both prefer the old one; all
else is a tie, so that a judge's preference for a position decides nothing. Score = wins + ties / 2.
A policy that gives no answer loses to one that answers, without a judge.
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
from posttrain.evaluation.run import Record, unit_name
from posttrain.jsontext import row_line
from posttrain.rollouts import Completion, Prompt
from posttrain.runs import Counts, Parent, Run, atomic_write_json, atomic_write_text

METRICS = "metrics.json"
DUELS = "duels.jsonl"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Duel:
    """Completions of two policies for the same prompt, and the judgements of them.

    Attributes:
        index: number of the sample, the same in both policies.
        answers: texts that a judge reads, the old answer first.
        judgements: row of the order with the old answer first, then of the order with the new one
            first; each has the position that is `preferred` (1, 2, or 0 for neither; None without
            a verdict). () before the duel is judged, and where no judge is needed.
    """

    prompt: Prompt
    index: int
    before: Completion
    after: Completion
    answers: tuple[str, str]
    judgements: tuple[Row, ...] = ()

    @property
    def question(self) -> str:
        """Name of the question, shared by all its settings and samples."""
        return f"{self.prompt.source}/{self.prompt.task}"

    @property
    def unit(self) -> str:
        """Task, setting and reasoning mode that figures are given for."""
        return f"{unit_name(self.prompt)} {'on' if self.prompt.thinking else 'off'}"

    @property
    def same(self) -> bool:
        """True for answers of the same text."""
        return self.answers[0].strip() == self.answers[1].strip()

    @property
    def decided(self) -> float | None:
        """Outcome where no judge is needed: the same text, or a single answer; else None."""
        if self.same:
            return 0.5
        before, after = self.answers
        has_before = bool(before.strip())
        has_after = bool(after.strip())
        return None if has_before and has_after else float(has_after)

    @property
    def preferred(self) -> tuple[int, int] | None:
        """Preferred position in each of the two orders; None where a verdict is missing."""
        if not self.judgements:
            return None
        old_first, new_first = (row["preferred"] for row in self.judgements)
        return None if old_first is None or new_first is None else (old_first, new_first)

    @property
    def outcome(self) -> float | None:
        """1.0 for a duel that is won, 0.0 lost, 0.5 a tie; None where a verdict is missing."""
        if self.decided is not None:
            return self.decided
        return self.preferred and {(2, 1): 1.0, (1, 2): 0.0}.get(self.preferred, 0.5)

    @property
    def disagree(self) -> bool | None:
        """True where the judge preferred the same position, so another answer, in both orders."""
        return self.preferred and self.preferred in ((1, 1), (2, 2))

    def row(self) -> Row:
        """Row of the report: both answers, and the judge's texts in each order."""
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
    """Figures of each unit, and over all units where there are several.

    The 95 % intervals cluster the duels of a question.
    """
    duels_by_unit: dict[str, list[Duel]] = {}
    for duel in duels:
        duels_by_unit.setdefault(duel.unit, []).append(duel)
    rows = [_win_row(unit, unit_duels) for unit, unit_duels in duels_by_unit.items()]
    return [*rows, _win_row(ALL, duels)] if len(rows) > 1 else rows


def _win_row(unit: str, duels: Sequence[Duel]) -> Row:
    """Counts, rates with intervals, score and difference in length of some duels."""
    row: Row = {
        "unit": unit,
        "questions": len({duel.question for duel in duels}),
        "duels": len(duels),
        "same": sum(duel.same for duel in duels),
        "unanswered": sum(duel.decided is not None and not duel.same for duel in duels),
        "unjudged": sum(duel.outcome is None for duel in duels),
    }
    outcomes = [(d.outcome, d.question) for d in duels if d.outcome is not None]
    for name, outcome in (("win", 1.0), ("tie", 0.5), ("loss", 0.0)):
        row[name] = _rate_row([(float(value == outcome), question) for value, question in outcomes])
    row["disagree"] = _rate_row([(d.disagree, d.question) for d in duels if d.disagree is not None])
    row["score"] = _score_row(outcomes)
    before = by_question([(_written_tokens(duel.before), duel.question) for duel in duels])
    after = by_question([(_written_tokens(duel.after), duel.question) for duel in duels])
    # a difference over a single question has no interval
    several_questions = len(before.names) > 1
    row["tokens"] = asdict(length_difference(before, after)) if several_questions else None
    return row


def _rate_row(values: Values) -> Row | None:
    estimate = rate(values)
    return None if estimate is None else asdict(estimate)


def _score_row(outcomes: Values) -> Row | None:
    """Wins and half of the ties, as a share; `p` is the p-value of as many wins as losses."""
    if not outcomes:
        return None
    means = by_question(outcomes).means
    return {**asdict(rate_of_means(means, samples=len(outcomes))), "p": p_of_half(means)}


def _written_tokens(completion: Completion) -> int:
    return completion.reasoning_tokens + completion.answer_tokens


def pair_up(
    before: RunCheckpoint,
    after: RunCheckpoint,
    *,
    prompts: int | None,
    order: Callable[[str], int],
    answer_of: Callable[[Completion], str],
) -> tuple[list[Duel], Counts]:
    """Pair the completions of two policies by prompt and index.

    Args:
        prompts: number of prompts to take, the first by `order` of their ids; None takes all.
        answer_of: answer of a completion as a judge reads it.

    Returns:
        The duels, not judged yet; and counts of completions in, of duels, and of what was dropped
        by reason.

    Raises:
        ConfigError: the policies were given different prompts under one id, or no pair is left.
    """
    old_records = _records_by_sample(before.records)
    new_records = _records_by_sample(after.records)
    common_ids = {prompt_id for prompt_id, _ in old_records.keys() & new_records.keys()}
    chosen_ids = set(sorted(common_ids, key=order)[:prompts])
    duels: list[Duel] = []
    dropped = {"one_side": 0, "not_chosen": 0, "failed": 0}
    samples = old_records | new_records
    for prompt_id, index in samples:
        old = old_records.get((prompt_id, index))
        new = new_records.get((prompt_id, index))
        if old is None or new is None:
            dropped["one_side"] += 1
        elif prompt_id not in chosen_ids:
            dropped["not_chosen"] += 1
        elif old.failed or new.failed:
            dropped["failed"] += 1
        elif _policy_input(old.prompt) != _policy_input(new.prompt):
            raise ConfigError(f"prompt {prompt_id!r} is another one in {after.run}")
        else:
            answers = (answer_of(old.completion), answer_of(new.completion))
            duels.append(Duel(old.prompt, index, old.completion, new.completion, answers))
    reasons = {reason: count for reason, count in dropped.items() if count}
    if not duels:
        raise ConfigError(f"{before.run}, {after.run}: no two answers to one prompt, {reasons}")
    return duels, Counts(len(samples), len(duels), reasons)


def _records_by_sample(records: Sequence[Record]) -> dict[tuple[str, int], Record]:
    """Records by prompt id and index."""
    return {(record.prompt.id, record.completion.index): record for record in records}


def _policy_input(prompt: Prompt) -> tuple[object, ...]:
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
    """Write the figures and all duels, and finish the run.

    Args:
        judgements: two for each duel that needs a judge, the order with the old answer first.
        ledger: counts of the judge's calls and tokens.
        judge: identity of the judge.
    """
    remaining_judgements = iter(judgements)
    judged: list[Duel] = []
    for duel in duels:
        if duel.decided is None:
            both_orders = (next(remaining_judgements), next(remaining_judgements))
            duel = replace(duel, judgements=both_orders)
        judged.append(duel)
    metrics = {"rows": win_rows(judged), "ledger": dict(ledger)}
    atomic_write_json(run.path / METRICS, metrics)
    atomic_write_text(run.path / DUELS, "".join(row_line(duel.row()) for duel in judged))
    # both policies may be checkpoints of the same run, which is then one parent
    parents_by_digest = {parent.digest: parent for parent in parents}
    run.finish(
        counts=counts,
        files={METRICS: None, DUELS: len(duels)},
        parents=list(parents_by_digest.values()),
        seed=recipe.seed,
        stats={"before": recipe.before, "after": recipe.after, "judge": dict(judge)},
    )
