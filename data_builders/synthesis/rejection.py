"""Prompts with a verifier → chat rows of the model's own completions that pass.

Every prompt gets the same number of completions. A verifier that fails drops a completion and never
keeps one: data must not hold what nobody checked. The exception is a control arm (`keep: any`),
whose rows name no check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from data_builders.keyed import key64
from data_builders.registry import BY_ENVIRONMENT
from data_builders.synthesis.seeds import prompt_seeds
from data_builders.synthesis.steps import (
    Answered,
    Ask,
    Discarded,
    Keep,
    Making,
    Note,
    Round,
    Row,
    Seed,
    SeedSet,
    SynthesisKind,
    ask,
    chat_row,
    grade,
    unusable,
)
from posttrain.config.synthesize import Rejection
from posttrain.records import Message, Score
from posttrain.rollouts import Completion, Prompt
from reward.environments import find_environment
from reward.environments.base import replay
from reward.graders.base import Attempt


class RejectionSampling(SynthesisKind):
    """The kind `rejection`; the content of its seeds is a `Prompt`."""

    config: Rejection

    def seeds(self, work: Path) -> SeedSet:
        assert self.plan is not None
        return prompt_seeds(self.plan)

    def max_completions(self, seed: Seed) -> Mapping[str, int]:
        return {"generator": self.config.n}

    def make(self, seed: Seed) -> Making:
        """Sample n completions, grade them, and keep some of those that pass."""
        prompt: Prompt = seed.content
        [answered] = yield from ask(Ask("generator", prompt, self.config.n))
        completions = answered.completions
        scores = yield from grade(*(Attempt(prompt, completion) for completion in completions))
        usable: list[Completion] = []
        passed: list[Completion] = []
        for completion, score in zip(completions, scores, strict=True):
            if unusable(completion, answered) is None:
                usable.append(completion)
                if score.value == 1.0:
                    passed.append(completion)
        yield Note("completions that pass", f"{len(passed)} of {len(completions)}")
        candidates = usable if self.config.keep == "any" else passed
        if not candidates:
            raise Discarded(_failure_reason(answered, scores), scores[0].explanation)
        if self.config.choose == "shortest":
            candidates.sort(key=_length_and_index)
        else:
            candidates.sort(
                key=lambda completion: key64(
                    self.setup.seed, "rejection", seed.id, completion.index
                )
            )
        # a control arm has its samples as often as the model writes them
        different = candidates if self.config.keep == "any" else _drop_repeated(candidates)
        rows = tuple(_chat_row(prompt, completion) for completion in different[: self.config.most])
        checks = () if self.config.keep == "any" else (str(prompt.grader),)
        return Keep(rows, checks=checks)

    def spoil(self, seed: Seed, rounds: Sequence[Round], kept: Keep) -> list[Round] | None:
        """Put a wrong completion of the environment, or else a text, in the place of all."""
        if self.config.keep == "any":
            return None  # no check that could find it
        prompt: Prompt = seed.content
        environment = None
        if prompt.grader == BY_ENVIRONMENT:
            environment = find_environment(str(prompt.environment))
        scripts = [] if environment is None else environment.wrong(prompt)
        if environment is None or not scripts:
            return super().spoil(seed, rounds, kept)
        script = scripts[key64(self.setup.seed, "wrong", seed.id) % len(scripts)]
        wrong = asyncio.run(replay(environment, prompt, script))
        [answered] = rounds[0]
        completions = tuple(
            replace(wrong, index=completion.index) for completion in answered.completions
        )
        return [(replace(answered, completions=completions),)]

    def bad_answer(self, seed: Seed, answered: Answered) -> str:
        """Plant an answer in the usual form, with a content that no task has."""
        return "I am sure of it.\n\\boxed{-98765.4321}\nAnswer: -98765.4321"


def _failure_reason(answered: Answered, scores: Sequence[Score]) -> str:
    """Reason why no completion of a prompt passes.

    Where some could be scored it is theirs, else that of the first completion.
    """
    problems = [unusable(completion, answered) for completion in answered.completions]
    usable = [score for score, problem in zip(scores, problems, strict=True) if problem is None]
    if not usable:
        return str(problems[0] and problems[0].reason)
    if all(score.value is None for score in usable):
        return "unscored"
    return "none_passes"


def _length_and_index(completion: Completion) -> tuple[int, int]:
    return completion.reasoning_tokens + completion.answer_tokens, completion.index


def _drop_repeated(completions: Sequence[Completion]) -> list[Completion]:
    """Completions with different messages; of equal ones the first."""
    first_by_messages: dict[tuple[Message, ...], Completion] = {}
    for completion in completions:
        first_by_messages.setdefault(completion.messages, completion)
    return list(first_by_messages.values())


def _chat_row(prompt: Prompt, completion: Completion) -> Row:
    gold = {} if prompt.gold is None else {"gold": prompt.gold}
    return chat_row(
        [*prompt.messages, *completion.messages],
        tools=prompt.tools,
        source=prompt.source,
        task=prompt.task,
        environment=prompt.environment,
        **gold,
    )
