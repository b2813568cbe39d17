"""The environments "math" and "multiple_choice": one final answer in the format that is asked for.

    {"environment": "math", "question": "7*8? Put your answer in \\\\boxed{}.", "gold": "56"}
    {"environment": "multiple_choice", "question": "…\\\\boxed{}…", "gold": "B",
     "metadata": {"options": {"A": "3", "B": "4"}}}

Math: the last box is compared by the grader "math"; an answer without a box scores 0. `metadata`
may hold `tolerance`, a share of the gold number.

Multiple choice: where `metadata` has an `output_regex`, the last match of the first pattern that
matches counts; where a message asks for `\\boxed{}`, the last box; otherwise the place that the
grader "multiple_choice" finds. An answer that names several options is wrong.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import replace
from typing import Any

from posttrain.records import NOT_IN_FORMAT, Score
from posttrain.rollouts import Completion, Prompt
from reward.environments.base import RLVREnvironment, Script, says
from reward.graders.base import Attempt, verdict
from reward.graders.choice import SEVERAL, MultipleChoice, choice, chosen, options_of, patterns_of
from reward.graders.final_answer import answer_places, joined_boxes
from reward.graders.math import Math, gold_text, tolerance_of
from reward.graders.tidy import tidy

LONGEST = 200_000  # characters of an answer


class MathEnvironment(RLVREnvironment):
    name = "math"

    def malformed(self, prompt: Prompt) -> str | None:
        if prompt.gold is None or not gold_text(prompt.gold):
            return "no gold"
        tolerance_of(prompt)
        return None if _asks_for_box(prompt) else "no message asks for \\boxed{}"

    def gold(self, prompt: Prompt) -> Script:
        return says(f"The answer is $\\boxed{{{gold_text(prompt.gold or '')}}}$.")

    def wrong(self, prompt: Prompt) -> list[Script]:
        gold = gold_text(prompt.gold or "")
        return [says("\\boxed{-98765.4321}"), says(f"The answer is {gold}.")]

    def check(self, prompt: Prompt, completion: Completion) -> Score:
        # imported here: it loads sympy, which only a worker needs
        from reward.graders.worker_main import run_inline

        answer = completion.answer
        box = joined_boxes(answer) if len(answer) <= LONGEST else None
        if not box:
            return Score(0.0, None, f"{NOT_IN_FORMAT}: no closed \\boxed{{}} in the answer")
        step = completion.steps[-1]
        boxed = replace(step, parsed=replace(step.parsed, answer=f"\\boxed{{{box}}}"))
        [score] = Math(run=run_inline).grade([Attempt(prompt, replace(completion, steps=(boxed,)))])
        if score.value is None and score.failure is None:  # a box that holds nothing to compare
            return Score(0.0, score.answer, score.explanation)
        return score


# what may stand between a letter and another one that it is not hedged with: "C, because B is …"
_REASON = re.compile(
    r"[\s*_.,;:)\]}$-]*(?:because|since|as|for|so|which|not|unlike|rather than|instead of)\b",
    re.IGNORECASE,
)
# "A" begins a sentence as an article, "I" is also a pronoun, but not before these words
_OTHER = re.compile(
    r"(?<![\w'’])(?:(?<![.!?]\s)A|[B-HJ-Z]"
    r"|I(?!\s+(?!(?:if|unless|or|and|is|otherwise)\b)[a-z]))(?![\w'’])"
)
_LETTER = re.compile(r"(?:either\b|[\s*_(\[{|])*([A-Za-z])\b", re.IGNORECASE)
_WORD = re.compile(r"[\w'’]")


class MultipleChoiceEnvironment(RLVREnvironment):
    name = "multiple_choice"

    def malformed(self, prompt: Prompt) -> str | None:
        return MultipleChoice().refuse([prompt])[0]

    def gold(self, prompt: Prompt) -> Script:
        return _answered(prompt, choice(prompt.gold or "", options_of(prompt)) or "")

    def wrong(self, prompt: Prompt) -> list[Script]:
        letters = list(options_of(prompt))
        gold = choice(prompt.gold or "", options_of(prompt)) or letters[0]
        other = letters[(letters.index(gold) + 1) % len(letters)]
        return [_answered(prompt, other), _answered(prompt, " or ".join(letters))]

    def check(self, prompt: Prompt, completion: Completion) -> Score:
        answer, options = completion.answer, options_of(prompt)
        gold = choice(prompt.gold or "", options)
        assert gold is not None, "the gold is an option"
        if len(answer) > LONGEST:
            return Score(0.0, None, f"longer than {LONGEST} characters")
        letter = by_pattern(patterns_of(prompt), answer, options)
        if letter is None and _asks_for_box(prompt):
            box = joined_boxes(answer)
            letter = choice(box, options) if box else None
            behind = answer[answer.rfind("\\boxed") :].partition("}")[2]
            letter = SEVERAL if _answers_behind(behind, options) - {letter} else letter
        elif letter is None:
            place = next(answer_places(tidy(answer)), None)
            first = _LETTER.match(place.text) if place else None
            hedged = first and _contradicted(first[1], first.string[first.end() :], options)
            letter = SEVERAL if hedged else chosen(answer, options)
        if letter is None:
            return Score(0.0, None, f"{NOT_IN_FORMAT}: no option in it")
        if letter == SEVERAL:
            return Score(0.0, None, "several options are chosen")
        return verdict(letter == gold, letter, gold)


def _answered(prompt: Prompt, text: str) -> Script:
    return says(f"\\boxed{{{text}}}" if _asks_for_box(prompt) else f"Answer: {text}")


def _asks_for_box(prompt: Prompt) -> bool:
    return any("\\boxed" in message.content for message in prompt.messages)


def _contradicted(letter: str, behind: str, options: dict[str, str]) -> bool:
    """Whether what stands behind a letter, on its line, is another's text or names another letter,
    without being a reason."""
    line = behind.split("\n", 1)[0]
    rest = line.strip(" \t:.,)-*_]}([$")
    text = choice(rest, options)
    if text is not None or not rest:
        return text not in (None, letter.upper())
    shown = line.upper() if letter.islower() else line
    named = {match[0] for match in _OTHER.finditer(shown)} & options.keys() - {letter.upper()}
    return bool(named) and _REASON.match(line) is None


def _answers_behind(text: str, options: dict[str, str]) -> set[str]:
    places = [place.text for place in answer_places(tidy(text)) if place.kind != "line"]
    return {letter for t in places if (letter := chosen(f"Answer: {t}", options))}


def by_pattern(patterns: list[Any], answer: str, options: dict[str, str]) -> str | None:
    """The letter of the last match of the first pattern that matches; None where none does. One
    that is contradicted on its line, or by another answer behind it, is one of several."""
    for pattern in patterns:
        for match in deque(re.finditer(pattern, answer, re.IGNORECASE), maxlen=1):
            group = next((k for k in range(1, len(match.groups()) + 1) if match[k]), 0)
            behind, letter = answer[match.end(group) :], choice(match[group], options)
            if len(match[group]) == 1 and _WORD.match(behind):
                return None
            hedged = _contradicted(match[group], behind, options)
            return SEVERAL if hedged or _answers_behind(behind, options) - {letter} else letter
    return None
