"""Prompts, completions and near misses as graders meet them."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from posttrain.records import json_text
from posttrain.rollouts import Completion, Finish, ParsedCompletion, Prompt, Step
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


def near_misses(gold: str) -> dict[str, str]:
    """Wrong answers to a decimal or integer gold, by how they are wrong: "1,234" → 1,235, -1,234…"""
    number = Decimal(gold.replace(",", ""))
    text = str(number)
    found = {
        "off by one": str(number + 1),
        "one less": str(number - 1),
        "sign": str(-number),
        "tenfold": str(number * 10),
        "a tenth": str(number / 10),
        "half": str(number / 2),
        "a digit more": f"{text}7",
    }
    if text[-2:].isdigit() and len(text) > 1:
        found["grouped wrongly"] = f"{text[:-1]},{text[-1]}"
    for place in range(len(text) - 1):
        if text[place].isdigit() and text[place + 1].isdigit() and text[place] != text[place + 1]:
            found["swapped digits"] = (
                text[:place] + text[place + 1] + text[place] + text[place + 2 :]
            )
    return {kind: wrong for kind, wrong in found.items() if not _is(wrong, number)}


def _is(text: str, number: Decimal) -> bool:
    return "," not in text and Decimal(text) == number
