"""The environment "multiple_choice": one of the prompt's options, in the format it asks for.

    {"environment": "multiple_choice", "question": "…\\\\boxed{}…", "gold": "B",
     "metadata": {"options": {"A": "3", "B": "4"}}}

Where `metadata` has an `output_regex`, the last match of the first pattern that matches counts;
where a message asks for `\\boxed{}`, the last box; otherwise the place that the grader
"multiple_choice" finds. An answer that names several options is wrong.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any

from posttrain.records import Score
from posttrain.rollouts import Completion, Prompt
from reward.environments.base import RLVREnvironment, Script, says
from reward.graders.base import verdict
from reward.graders.choice import SEVERAL, MultipleChoice, choice, chosen, options_of, patterns_of
from reward.graders.final_answer import answer_places, has_box, joined_boxes
from reward.graders.tidy import tidy

LONGEST = 200_000  # characters of an answer
# "A or B", "A/B", "A, maybe B": behind a first letter, what makes it one of several
_ANOTHER = re.compile(
    r"[\s*_)\]}.]*(?:(?:\b(?:or|and|also|maybe|perhaps|possibly)\b|[/,&|+])[\s*_(\[{]*)+([A-Za-z])\b"
    r"(?!\s+(?:is|are|was|can|cannot|would|does)\b)",
    re.IGNORECASE,
)
_LETTER = re.compile(r"(?:either\b|[\s*_(\[{])*([A-Za-z])\b", re.IGNORECASE)
_WORD = re.compile(r"[\w'’]")


class MultipleChoiceEnvironment(RLVREnvironment):
    """Questions of science and engineering with lettered options."""

    name = "multiple_choice"

    def malformed(self, prompt: Prompt) -> str | None:
        """What the grader "multiple_choice" refuses."""
        return MultipleChoice().refuse([prompt])[0]

    def gold(self, prompt: Prompt) -> Script:
        """The gold's letter."""
        return _answered(prompt, choice(prompt.gold or "", options_of(prompt)) or "")

    def wrong(self, prompt: Prompt) -> list[Script]:
        """The next letter; all letters."""
        letters = list(options_of(prompt))
        gold = choice(prompt.gold or "", options_of(prompt)) or letters[0]
        other = letters[(letters.index(gold) + 1) % len(letters)]
        return [_answered(prompt, other), _answered(prompt, " or ".join(letters))]

    def check(self, prompt: Prompt, completion: Completion) -> Score:
        """Patterns are the row's and may not end: the worker is killed then."""
        answer, options = completion.answer, options_of(prompt)
        gold = choice(prompt.gold or "", options)
        assert gold is not None, "the gold is an option"
        if len(answer) > LONGEST:
            return Score(0.0, None, f"longer than {LONGEST} characters")
        letter = by_pattern(patterns_of(prompt), answer, options)
        if letter is None and _asks_for_box(prompt):
            box = joined_boxes(answer) if has_box(answer) else None
            letter = None if box is None else choice(box, options)
        elif letter is None:
            hedged = any(_hedges(place.text, options) for place in answer_places(tidy(answer)))
            letter = SEVERAL if hedged else chosen(answer, options)
        if letter is None:
            return Score(0.0, None, "no option in the requested format")
        if letter == SEVERAL:
            return Score(0.0, None, "several options are chosen")
        return verdict(letter == gold, letter, gold)


def _answered(prompt: Prompt, text: str) -> Script:
    return says(f"\\boxed{{{text}}}" if _asks_for_box(prompt) else f"Answer: {text}")


def _asks_for_box(prompt: Prompt) -> bool:
    return any("\\boxed" in message.content for message in prompt.messages)


def _hedges(text: str, options: dict[str, str]) -> bool:
    """Whether a text begins with one option's letter and goes on with another's."""
    first = _LETTER.match(text)
    other = _ANOTHER.match(text, first.end()) if first else None
    return other is not None and other[1].upper() in options


def by_pattern(patterns: list[Any], answer: str, options: dict[str, str]) -> str | None:
    """The letter of the last match of the first pattern that matches; None where none does.

    A letter that begins a word is no match, and one that another letter follows is one of several.
    """
    for pattern in patterns:
        for match in deque(re.finditer(pattern, answer, re.IGNORECASE), maxlen=1):
            group = next((k for k in range(1, len(match.groups()) + 1) if match[k]), 0)
            behind = answer[match.end(group) :].split("\n", 1)[0]
            other = _ANOTHER.match(behind)
            if other and other[1].upper() in options:
                return SEVERAL
            if len(match[group]) == 1 and _WORD.match(behind):
                return None
            return choice(match[group], options)
    return None
