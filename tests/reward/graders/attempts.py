"""Prompts and completions as graders meet them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from posttrain.chat.parse import ParsedCompletion
from posttrain.records import json_text
from posttrain.rollouts import Completion, Finish, Prompt, Step
from reward.graders.base import Attempt, Grader


def prompt_of(gold: str | None, **metadata: Any) -> Prompt:
    """A prompt with a gold answer."""
    return Prompt(
        id="p", task="p", setting="s", messages=(), gold=gold, metadata=json_text(metadata)
    )


def completion_of(
    answer: str, *, reasoning: str | None = None, finish: Finish = "stop"
) -> Completion:
    """A completion of one step that answers so."""
    parsed = ParsedCompletion(reasoning, answer, (), (), finished=finish == "stop")
    step = Step(
        text=answer,
        parsed=parsed,
        finish="stop",
        reasoning_tokens=0,
        answer_tokens=0,
        prompt_tokens=0,
    )
    return Completion(prompt_id="p", index=0, steps=(step,), finish=finish)


def values(grader: Grader, requests: Iterable[tuple[Prompt, str]]) -> list[float | None]:
    """The value of each answer."""
    attempts = [Attempt(prompt, completion_of(answer)) for prompt, answer in requests]
    return [score.value for score in grader.grade(attempts)]
