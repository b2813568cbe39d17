"""Multiple choice → open questions with a gold answer.

As the paper's science data: options are taken away, the prompt is paraphrased and its format is
varied. A question is kept if a solver that sees no options comes to the gold, and a judge finds
that the question still asks for the same.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from data_builders.keyed import key64
from data_builders.synthesis.seeds import plain_seeds
from data_builders.synthesis.steps import (
    Answered,
    Ask,
    Discarded,
    Keep,
    Making,
    Note,
    Row,
    Seed,
    SeedSet,
    SynthesisKind,
    ask,
    ask_text,
    chat_row,
    labelled,
    labels_of,
    prompt_of,
    unusable,
)
from data_builders.synthesis.twin import GoldTask, task_of
from posttrain.config.synthesize import OpenQuestion
from posttrain.config.templates import OPTION_LETTERS
from posttrain.records import Message
from posttrain.rollouts import Completion
from reward.graders.final_answer import find_answer
from reward.graders.numbers import read_number, same_number
from reward.judge.quoting import quoted

# forms in which the final answer is requested; a keyed hash of the question chooses
FORMATS = (
    "Put the final answer inside \\boxed{}.",
    "End with one line of the form\nAnswer: [the answer]",
    "Put the final answer between <answer> and </answer>.",
)
# phrases of a question that needs its options
_OPTIONS = re.compile(
    r"\b(?:which|what) (?:one )?of (?:the following|these)\b"
    r"|\b(?:options?|choices?) (?:below|above)\b"
    r"|\b(?:following|above|below) (?:options?|choices?|statements?)\b|^\s*\(?[A-D][.)]\s",
    re.IGNORECASE | re.MULTILINE,
)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


class OpenQuestions(SynthesisKind):
    """The kind `open_question`; the content of its seeds is a `GoldTask` with options."""

    config: OpenQuestion
    spoiled_roles = ("rewriter", "solver")

    def seeds(self, work: Path) -> SeedSet:
        return plain_seeds(self.config.sources, task_of)

    def max_completions(self, seed: Seed) -> Mapping[str, int]:
        return {
            "rewriter": 1 + self.config.paraphrases,
            "solver": self.config.attempts,
            "judge": 1 + self.config.attempts,
        }

    def make(self, seed: Seed) -> Making:
        """Take the options away, have the question judged and solved, and paraphrase it."""
        task: GoldTask = seed.content
        gold = task.options[OPTION_LETTERS.index(task.gold)].strip()
        options = task.text.removeprefix(task.question).strip()
        text = self.text("open_question", question=task.question, options=options, gold=gold)
        question = yield from ask_text(Ask("rewriter", prompt_of(seed, "open", text)))
        _refuse_unfit(question, task, gold)
        judge_checks = yield from self.agreed(
            seed,
            "same",
            template="judge_intent",
            detail=question[:200],
            original=quoted(task.text),
            gold=quoted(gold),
            question=quoted(question),
        )
        answered = yield from self._solve(seed, question)
        right = yield from self._find_right(seed, question, gold, answered)
        yield Note("solver is right", f"{len(right)} of {self.config.attempts}")
        if len(right) < self.config.passes:
            raise Discarded("not_answerable", f"gold {gold[:80]}; {answered.completions[0].answer}")
        wordings = [question]
        for number in range(self.config.paraphrases):
            text = self.text("paraphrase", question=question)
            request = Ask("rewriter", prompt_of(seed, f"paraphrase-{number}", text))
            wording = yield from ask_text(request)
            if _is_paraphrase(wording, wordings, task, gold):
                wordings.append(wording)
        prompt = answered.ask.prompt
        row = chat_row([*prompt.messages, *right[0].messages], gold=gold, original=task.text)
        tasks = tuple(_task_row(seed, wording, gold) for wording in wordings)
        return Keep((row,), tasks=tasks, checks=("no options", "solver", *judge_checks))

    def _solve(self, seed: Seed, question: str) -> Generator[Any, Any, Answered]:
        form = FORMATS[key64(self.setup.seed, "format", seed.id) % len(FORMATS)]
        prompt = prompt_of(seed, "solve", [Message("user", f"{question}\n\n{form}")])
        [answered] = yield from ask(Ask("solver", prompt, self.config.attempts))
        return answered

    def _find_right(
        self, seed: Seed, question: str, gold: str, answered: Answered
    ) -> Generator[Any, Any, list[Completion]]:
        """Find the completions with the gold: by number or word for word, else by the judge."""
        right: list[Completion] = []
        unsure: list[tuple[Completion, Ask]] = []
        for completion in answered.completions:
            if unusable(completion, answered) is not None:
                continue
            answer, _ = find_answer(completion.answer)
            if answer is None:
                continue
            if same_answer(answer, gold):
                right.append(completion)
            elif "judge" in self.setup.models and read_number(gold) is None:
                text = self.text(
                    "judge_equal",
                    question=quoted(question),
                    gold=quoted(gold),
                    answer=quoted(answer),
                )
                request = Ask("judge", prompt_of(seed, f"equal-{completion.index}", text))
                unsure.append((completion, labelled(request, "equal")))
        if unsure:
            verdicts = yield from ask(*(request for _, request in unsure))
            for (completion, _), verdict in zip(unsure, verdicts, strict=True):
                is_equal = labels_of(verdict, "equal")["equal"]
                yield Note("judge: equal", "yes" if is_equal else "no")
                if is_equal:
                    right.append(completion)
        return right

    def bad_answer(self, seed: Seed, answered: Answered) -> str | None:
        """Plant another option as the solver's answer, or a question that is no open one of it.

        Such a question gives its answer away, or is about something else.
        """
        task: GoldTask = seed.content
        right = OPTION_LETTERS.index(task.gold)
        fault = key64(self.setup.seed, "bad", seed.id) % 3
        if answered.ask.role == "solver":
            other_option = task.options[(right + 1) % len(task.options)]
            return f"\\boxed{{{other_option}}}" if fault == 0 else None
        if answered.ask.prompt.setting != "open":
            return None
        if fault == 1:
            return f"{task.question} Is it {task.options[right]}?"
        return "How many ferries waited in the harbour because of the fog on Tuesday?"


def _refuse_unfit(question: str, task: GoldTask, gold: str) -> None:
    """Raise Discarded for a question that still needs its options, or gives the answer away."""
    if _OPTIONS.search(question):
        raise Discarded("asks_for_options", question[:200])
    if _contains(question, gold) and not _contains(task.question, gold):
        raise Discarded("answer_given_away", question[:200])


def _is_paraphrase(wording: str, wordings: list[str], task: GoldTask, gold: str) -> bool:
    try:
        _refuse_unfit(wording, task, gold)
    except Discarded:
        return False
    same_numbers = sorted(_NUMBER.findall(wording)) == sorted(_NUMBER.findall(wordings[0]))
    return same_numbers and _normalise(wording) not in map(_normalise, wordings)


def _task_row(seed: Seed, question: str, gold: str) -> Row:
    """Row of an environment: numbers are compared by code, other answers by a judge."""
    metadata = {"open_question_of": seed.id}
    if read_number(gold) is None:
        return {
            "environment": "equivalence",
            "question": question,
            "gold": gold,
            "metadata": metadata,
        }
    text = f"{question}\n\n{FORMATS[0]}"
    return {"environment": "math", "question": text, "gold": gold, "metadata": metadata}


def same_answer(answer: str, gold: str) -> bool:
    """True if an answer is the gold as a number, or word for word."""
    number = read_number(gold)
    if number is None:
        return bool(answer.strip()) and _normalise(answer) == _normalise(gold)
    answered_number = read_number(answer)
    return answered_number is not None and same_number(number, answered_number)


def _contains(text: str, phrase: str) -> bool:
    pattern = rf"(?<!\w){re.escape(_normalise(phrase))}(?!\w)"
    return re.search(pattern, _normalise(text)) is not None


def _normalise(text: str) -> str:
    return " ".join(text.split()).casefold().strip(" .!?\"'*")
