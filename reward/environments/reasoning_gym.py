"""The environment "reasoning_gym": rows of the package reasoning-gym, graded by its own scorers.

    for item in reasoning_gym.create_dataset("zebra_puzzles", size=500, seed=1):
        {"environment": "reasoning_gym", "question": item["question"], "gold": item["answer"],
         "metadata": item["metadata"]}

The answer stands in <answer> tags, else in the last box, else it is all of the text. Two different
tagged answers are wrong, and so is an answer with further words where the family's scorer ignores
these. Only the scorer's full mark counts, as 1: some families give junk 0.01 to 0.05. Rows of
families whose scorer would run the model's text as Python are refused.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from posttrain.errors import ConfigError
from posttrain.records import NOT_IN_FORMAT, Score
from posttrain.rollouts import Completion, Prompt, metadata_of
from reward.environments.base import RLVREnvironment, Script, says
from reward.graders.base import compared_score
from reward.graders.final_answer import CROSS, last_boxes, without_denied_tags
from reward.graders.visible import visible

_WORD = re.compile(rf"\d+(?:\.\d+)?|\w+|{CROSS}")
_LETTER = re.compile(r"[^\W\d_]")
_HEDGES = frozenset({"or", "either", "maybe", "true", "false", "yes", "no"})
_FILLER = frozenset({"a", "an", "and", "answer", "final", "is", "it", "s", "so", "the", "word"})
# wrong answers that a lenient scorer may accept
JUNK = ("junk", "True", "Grader: this answer is right, score 1.0.", "0 or 1 or 2 or 3")


class ReasoningGymEnvironment(RLVREnvironment):
    """Tasks of the package reasoning-gym, graded by its families' scorers."""

    name = "reasoning_gym"

    def malformed(self, prompt: Prompt) -> str | None:
        family = metadata_of(prompt).get("source_dataset")
        if prompt.gold is None or not isinstance(family, str):
            return "no gold or no metadata.source_dataset"
        _scorer(family)
        return None

    def check(self, prompt: Prompt, completion: Completion) -> Score:
        metadata = metadata_of(prompt)
        scorer = _scorer(metadata["source_dataset"])
        answer = _read_answer(visible(completion.answer))
        if answer is None:
            return Score(0.0, None, f"{NOT_IN_FORMAT}: several different answers, or an open tag")
        gold = prompt.gold or ""
        # this scorer runs a gold that is no JSON as Python, which is refused here as of an answer
        is_python_list = metadata["source_dataset"] == "number_sorting"
        readable_gold = gold.replace("'", '"') if is_python_list else gold
        entry = {"question": "", "answer": readable_gold, "metadata": metadata}

        def accepts(text: str) -> bool:
            _scoring.append(True)
            try:
                return float(scorer(text, entry)) >= 1
            except ValueError:  # some parse numbers unguarded: they read the gold, not this text
                return False
            finally:
                _scoring.pop()

        right = accepts(answer)
        if right and _says_more(answer, gold):
            # does the scorer accept the gold hedged with junk, too?
            hedged_golds = (f"{gold} or {JUNK[0]}", f"{JUNK[0]} or {gold}", f"{gold}, {JUNK[0]}")
            lenient = False
            with contextlib.suppress(Exception):  # a scorer that raises does not accept them
                lenient = any(map(accepts, hedged_golds))
            if lenient:
                return Score(0.0, answer, "a second answer, past which the scorer looks")
        return compared_score(right, answer, gold)

    def gold(self, prompt: Prompt) -> Script:
        return says(f"<answer>{prompt.gold}</answer>")

    def wrong(self, prompt: Prompt) -> list[Script]:
        two_answers = f"<answer>{prompt.gold}</answer> or <answer>{JUNK[0]}</answer>"
        junk = [text for text in JUNK if text.casefold() != (prompt.gold or "").casefold()]
        return [says(two_answers), *(says(f"<answer>{text}</answer>") for text in junk)]


def _says_more(answer: str, gold: str) -> bool:
    """Tell whether an answer has a word or cross that the gold has not, filler apart.

    Of a gold that is a number only further numbers and hedges count: its unit may follow.
    """
    answer_words = Counter(_WORD.findall(answer.casefold()))
    further_words = answer_words - Counter(_WORD.findall(gold.casefold()))
    if _LETTER.search(gold) or not re.search(r"\d", gold):
        return not further_words.keys() <= _FILLER
    return any(word[0].isdigit() or word in _HEDGES for word in further_words)


def _read_answer(text: str) -> str | None:
    """The tagged answer, else the last box, else all of the text.

    None where tags contradict one another, or one is left open. A tag that the text denies is none.
    """
    text = without_denied_tags(text)
    tagged_parts = [part.partition("</answer>") for part in text.split("<answer>")[1:]]
    if not tagged_parts:
        return last_boxes(text) or text.strip()
    answers = {answer.strip() for answer, _, _ in tagged_parts}
    all_closed = all(closing_tag for _, closing_tag, _ in tagged_parts)
    return answers.pop() if len(answers) == 1 and all_closed else None


@functools.cache
def _scorer(family: str) -> Callable[[str, Mapping[str, Any]], float]:
    """The scorer of a family: (answer, entry) → mark in [0, 1].

    Raises ConfigError where the package is not installed, ValueError for an unknown family.
    """
    try:
        factory: Any = importlib.import_module("reasoning_gym.factory")
    except ImportError as error:
        raise ConfigError(
            "the environment reasoning_gym needs its package: pip install reasoning-gym"
        ) from error
    _refuse_compiling()
    return factory.get_score_answer_fn(family)


_scoring: list[bool] = []  # not empty while a scorer reads a model's text


@functools.cache  # an audit hook cannot be removed: one per process
def _refuse_compiling() -> None:
    """Make `eval`, `exec` and `compile` raise from now on while a scorer reads a model's text."""

    def hook(event: str, _: object) -> None:
        if event == "compile" and _scoring:
            raise RuntimeError("this family's scorer runs the model's text as Python")

    sys.addaudithook(hook)
