"""The environments "math" and "multiple_choice": one final answer in the requested format.

    {"environment": "math", "question": "7*8? Put your answer in \\\\boxed{}.", "gold": "56"}
    {"environment": "multiple_choice", "question": "…\\\\boxed{}…", "gold": "B",
     "metadata": {"options": {"A": "3", "B": "4"}}}

Math: the last box is compared by the grader "math"; an answer without a box scores 0. `metadata`
may hold `tolerance`, a share of the gold number.

Multiple choice: if `metadata` has an `output_regex`, the last match of the first pattern that
matches counts; if a message asks for `\\boxed{}`, the last box; otherwise the option that the
grader "multiple_choice" reads. An answer that names several options is wrong.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from typing import Any

from posttrain.records import NOT_IN_FORMAT, Score
from posttrain.rollouts import Completion, Prompt
from reward.environments.base import RLVREnvironment, Script, says
from reward.graders.base import Attempt, compared_score
from reward.graders.choice import (
    SEVERAL,
    WORD_BEHIND,
    MultipleChoice,
    chosen_option,
    options_of,
    patterns_of,
    read_option,
    without_verdict_texts,
)
from reward.graders.final_answer import answer_places, is_denied, last_boxes
from reward.graders.math import Math, gold_text, tolerance_of
from reward.graders.tidy import bare, tidy
from reward.graders.visible import visible

LONGEST = 200_000  # characters of an answer


class MathEnvironment(RLVREnvironment):
    """Math problems with a final answer in a box."""

    name = "math"

    @staticmethod
    def load() -> None:
        importlib.import_module("reward.graders.algebra")  # sympy, which only a worker needs

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
        from reward.graders.worker_main import run_inline

        answer = visible(completion.answer)
        box = last_boxes(answer) if len(answer) <= LONGEST else None
        if not box:
            return Score(0.0, None, f"{NOT_IN_FORMAT}: no closed \\boxed{{}} in the answer")
        # the grader sees the box alone: nothing outside of it counts
        step = completion.steps[-1]
        boxed_step = replace(step, parsed=replace(step.parsed, answer=f"\\boxed{{{box}}}"))
        boxed_completion = replace(completion, steps=(boxed_step,))
        [score] = Math(run=run_inline).grade([Attempt(prompt, boxed_completion)])
        if score.value is None and score.failure is None:  # a box that holds nothing to compare
            return Score(0.0, score.answer, score.explanation)
        return score


# words between the chosen letter and one that is only mentioned: "C, because B is …"
_REASON = re.compile(
    r"[\s*_.,;:)\]}$-]*(?:because|since|as|for|so|which|not|unlike|rather than|instead of)\b",
    re.IGNORECASE,
)
# "A" begins a sentence as an article, "I" is also a pronoun, but not before these words
_OPTION_NAME = re.compile(
    r"(?<![\w'’])(?:(?<![.!?]\s)A|[B-HJ-Z]"
    r"|I(?!\s+(?!(?:if|unless|or|and|is|otherwise)\b)[a-z]))(?![\w'’])"
)
_LETTER = re.compile(r"(?:either\b|[\s*_(\[{|])*([A-Za-z])\b", re.IGNORECASE)
_WORD = re.compile(r"[\w'’]")


class MultipleChoiceEnvironment(RLVREnvironment):
    """Questions with options, one of which is right."""

    name = "multiple_choice"

    def malformed(self, prompt: Prompt) -> str | None:
        return MultipleChoice().refuse([prompt])[0]

    def gold(self, prompt: Prompt) -> Script:
        return _answer_script(prompt, read_option(prompt.gold or "", options_of(prompt)) or "")

    def wrong(self, prompt: Prompt) -> list[Script]:
        letters = list(options_of(prompt))
        gold = read_option(prompt.gold or "", options_of(prompt)) or letters[0]
        wrong_letter = letters[(letters.index(gold) + 1) % len(letters)]
        return [_answer_script(prompt, wrong_letter), _answer_script(prompt, " or ".join(letters))]

    def check(self, prompt: Prompt, completion: Completion) -> Score:
        options = options_of(prompt)
        answer = without_verdict_texts(visible(completion.answer), options)
        gold = read_option(prompt.gold or "", options)
        assert gold is not None, "the gold is an option"
        if len(answer) > LONGEST:
            return Score(0.0, None, f"longer than {LONGEST} characters")
        letter = by_pattern(patterns_of(prompt), answer, options)
        if letter is None and _asks_for_box(prompt):
            letter = _boxed_option(answer, options)
        elif letter is None:
            letter = _option_in_prose(answer, options)
        if letter is None:
            return Score(0.0, None, f"{NOT_IN_FORMAT}: no option in it")
        if letter == SEVERAL:
            return Score(0.0, None, "several options are chosen, or one that the text denies")
        return compared_score(letter == gold, letter, gold)


def _answer_script(prompt: Prompt, text: str) -> Script:
    if _asks_for_box(prompt):
        return says(f"\\boxed{{{text}}}")
    return says(f"Answer: {text}")


def _asks_for_box(prompt: Prompt) -> bool:
    return any("\\boxed" in message.content for message in prompt.messages)


def _boxed_option(answer: str, options: dict[str, str]) -> str | None:
    """Letter in the last box; SEVERAL where an answer behind the box is another one."""
    box = last_boxes(answer)
    letter = read_option(box, options) if box else None
    behind = answer[answer.rfind("\\boxed") :].partition("}")[2]
    return SEVERAL if _explicit_answers(behind, options) - {letter} else letter


def _option_in_prose(answer: str, options: dict[str, str]) -> str | None:
    """Letter that the grader reads; SEVERAL where the text behind it names another option."""
    chosen = chosen_option(answer, options)
    place = next(answer_places(tidy(answer)), None)
    letter = _LETTER.match(place.text) if place else None
    if place and place.kind == "label" and letter is None and chosen in options:
        line = place.text.split("\n", 1)[0]
        letter = re.search(rf"(?<![\w'’])({chosen})(?![\w'’])", line)
    if letter and _contradicted(letter[1], letter.string[letter.end() :], options):
        return SEVERAL
    return chosen


def _contradicted(letter: str, behind: str, options: dict[str, str]) -> bool:
    """Check whether the line behind a letter speaks for another option.

    It is the text of another one, or names another letter and is not a reason for the choice.
    """
    line = behind.split("\n", 1)[0]
    option_text = line.strip(" \t:.,)-*_]}([$")
    letter_of_text = read_option(option_text, options)
    if letter_of_text is not None or not option_text:
        return letter_of_text not in (None, letter.upper())
    # a choice in lower case may be hedged in lower case: "a or b"
    searched = line.upper() if letter.islower() else line
    named_letters = {match[0] for match in _OPTION_NAME.finditer(searched)}
    other_options = options.keys() - {letter.upper()}
    return bool(named_letters & other_options) and _REASON.match(line) is None


def _explicit_answers(text: str, options: dict[str, str]) -> set[str]:
    """Letters that the tags, boxes, fields and labels of a text choose, or its only line is."""
    letters: set[str] = set()
    lines = [bare(line).strip("- ") for line in text.split("\n") if re.search(r"\w", line)]
    if len(lines) == 1 and len(lines[0]) == 1 and (letter := read_option(lines[0], options)):
        letters.add(letter)
    for place in answer_places(tidy(text)):
        if place.kind != "line":
            letter = chosen_option(f"Answer: {place.text}", options)
            if letter:
                letters.add(letter)
    return letters


def by_pattern(patterns: list[Any], answer: str, options: dict[str, str]) -> str | None:
    """Letter in the last match of the first pattern that matches; None where none does.

    SEVERAL where the match is contradicted on its line, or by another answer behind it.
    """
    for pattern in patterns:
        choice: re.Match[str] | None = None
        has_denied_choice = False
        for match in re.finditer(pattern, answer, re.IGNORECASE):
            if is_denied(answer, match.start(), match.end(_group(match))):
                has_denied_choice = True
            else:
                choice = match
        if choice is not None:
            return _chosen_by(choice, options)
        if has_denied_choice:
            return SEVERAL
    return None


def _group(match: re.Match[str]) -> int:
    """Number of the first group that a match has text in; 0, all of it, where none has."""
    return next((k for k in range(1, len(match.groups()) + 1) if match[k]), 0)


def _chosen_by(match: re.Match[str], options: dict[str, str]) -> str | None:
    """Letter that a match chooses; SEVERAL where the text behind it contradicts it."""
    choice = match[_group(match)]
    behind = match.string[match.end(_group(match)) :]
    letter = read_option(choice, options)
    if len(choice) == 1 and (_WORD.match(behind) or _is_word(choice, behind, options)):
        return None  # the letter begins a word, or is one
    if _contradicted(choice, behind, options):
        return SEVERAL
    return SEVERAL if _explicit_answers(behind, options) - {letter} else letter


def _is_word(letter: str, behind: str, options: dict[str, str]) -> bool:
    """Tell whether a letter is the word I, or an article: "I don't know", "A guess"."""
    line = behind.split("\n", 1)[0]
    if letter.upper() not in "AI" or read_option(line, options) is not None:
        return False
    return WORD_BEHIND.match(line) is not None
