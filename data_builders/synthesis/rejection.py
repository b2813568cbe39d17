"""Prompts with a verifier → chat rows of the model's own completions that pass.

Every prompt gets the same number of completions. A verifier that fails drops a completion and never
keeps one: data must not hold what nobody checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from data_builders.keyed import key64
from data_builders.registry import AnyToolkit, all_graders, toolkit_of
from data_builders.synthesis.steps import (
    Ask,
    Asks,
    Discard,
    Keep,
    Move,
    Round,
    Row,
    Seed,
    chat_message,
    refusal,
)
from posttrain.config.synthesize import Rejection
from posttrain.environments.base import Environment
from posttrain.records import Score, tools_to_template
from posttrain.rollouts import Completion, Prompt
from reward.graders.base import Attempt, Grader


class RejectionSampling:
    """The kind `rejection`; the content of its seeds is a `Prompt`."""

    templates: Mapping[str, str] = {}

    def __init__(self, config: Rejection, *, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._graders: dict[str, Grader] = all_graders()
        self._toolkits: dict[str, AnyToolkit] = {}

    def moves(self, seeds: Sequence[tuple[Seed, Sequence[Round]]]) -> list[Move]:
        """One round of completions, then the verdicts of all of them."""
        answered = [(seed, rounds[0][0].completions) for seed, rounds in seeds if rounds]
        if not answered:
            return [Asks((Ask("generator", seed.content, self._config.n),)) for seed, _ in seeds]
        assert len(answered) == len(seeds), "all seeds are in the same round"
        attempts = [
            Attempt(seed.content, completion)
            for seed, completions in answered
            for completion in completions
        ]
        scores = iter(self._grade(attempts))
        return [
            self._decide(seed, [(completion, next(scores)) for completion in completions])
            for seed, completions in answered
        ]

    def open_environment(self, prompt: Prompt) -> Environment | None:
        """The environment that answers a prompt's calls, where it has one."""
        name = prompt.environment
        if name is None:
            return None
        if name not in self._toolkits:
            self._toolkits[name] = toolkit_of(name)
        return self._toolkits[name].open(prompt)

    def _grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        """Scores in order, one call a grader."""
        scores: dict[int, Score] = {}
        for name in sorted({str(attempt.prompt.grader) for attempt in attempts}):
            positions = [k for k, each in enumerate(attempts) if each.prompt.grader == name]
            verdicts = self._graders[name].grade([attempts[k] for k in positions])
            scores |= dict(zip(positions, verdicts, strict=True))
        return [scores[k] for k in range(len(attempts))]

    def _decide(self, seed: Seed, graded: Sequence[tuple[Completion, Score]]) -> Move:
        passed: list[Completion] = []
        for completion, score in graded:
            if refusal(completion) is None and score.value == 1.0:
                passed.append(completion)
        passes = f"{len(passed)} of {len(graded)}"
        if not passed:
            return Discard(_why_none(graded), graded[0][1].explanation)
        if self._config.choose == "shortest":
            passed.sort(key=lambda one: (one.reasoning_tokens + one.answer_tokens, one.index))
        else:
            passed.sort(key=lambda one: key64(self._seed, "rejection", seed.id, one.index))
        chosen = _distinct(passed)[: self._config.most]
        rows = tuple(_row(seed.content, completion) for completion in chosen)
        return Keep(rows, {"completions that pass": passes})


def _why_none(graded: Sequence[tuple[Completion, Score]]) -> str:
    """The reason why no completion of a prompt passes: the best that any of them came to."""
    problems = [refusal(completion) for completion, _ in graded]
    usable = [score for (_, score), problem in zip(graded, problems, strict=True) if not problem]
    if not usable:
        return str(problems[0] and problems[0].reason)
    if all(score.value is None for score in usable):
        return "unscored"
    return "none_passes"


def _distinct(completions: Sequence[Completion]) -> list[Completion]:
    """The completions without those that say the same again."""
    by_messages = {completion.messages: completion for completion in reversed(completions)}
    return [
        completion for completion in completions if by_messages[completion.messages] is completion
    ]


def _row(prompt: Prompt, completion: Completion) -> Row:
    messages = [*prompt.messages, *completion.messages]
    row: Row = {"messages": [chat_message(message) for message in messages]}
    if prompt.tools is not None:
        row["tools"] = tools_to_template(prompt.tools)
    gold = {} if prompt.gold is None else {"gold": prompt.gold}
    checks = {"passed": prompt.grader, "environment": prompt.environment}
    row["metadata"] = {"source": prompt.source, "task": prompt.task, **gold, "checks": checks}
    return row
