"""Task rows → variants: the same idea with other numbers, other names, or another order of options.

The paper's robustness sets (appendix B) change numbers and equations by a model. Here the gold of a
variant is computed: by the program of a worked solution (`twin_program.py`), or it is the option
whose place changed; where a model writes the variant, independent solvers have to agree on its
answer. Each original is written beside its variants, and `metadata.variant_of` pairs them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from data_builders.keyed import key64
from data_builders.rows.inputs import Input
from data_builders.synthesis.seeds import plain_seeds, row_inputs, row_value, text_field
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
    ask_usable,
    grade,
    prompt_of,
)
from data_builders.synthesis.twin_program import Program, other_values, program_of, shown
from posttrain.config.prompts import OPEN_TEMPLATE
from posttrain.config.synthesize import TaskRows, TaskVariants
from posttrain.config.templates import OPTION_LETTERS
from posttrain.records import json_text
from posttrain.rollouts import Prompt
from posttrain.runs import Parent
from reward.graders.base import Attempt
from reward.graders.final_answer import last_boxes

_FINAL = re.compile(r"####\s*(.+)")
_NAMES = (
    ("Anna", "Beth", "Carla", "Dana", "Ella", "Emma", "Hannah", "Jane", "Julie", "Kate", "Laura",
     "Lisa", "Maria", "Mary", "Mia", "Nina", "Olivia", "Rachel", "Sarah", "Sophia", "Tina"),
    ("Adam", "Ben", "Carl", "David", "Eric", "Frank", "George", "Henry", "Jack", "James", "John",
     "Kevin", "Luke", "Mark", "Mike", "Nick", "Paul", "Peter", "Robert", "Sam", "Tim", "Tom"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GoldTask:
    """A question with its right answer.

    Attributes:
        solution: the answer as the row has it, which may hold calculations.
        gold: the final answer; of a question with options, its letter.
        options: texts in order; () for an open question.
    """

    question: str
    solution: str
    gold: str
    options: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The question, with a line for each option."""
        lines = [f"{OPTION_LETTERS[k]}. {option}" for k, option in enumerate(self.options)]
        return "\n".join([self.question, *lines])


class VariantTasks(SynthesisKind):
    """The kind `twin`; the content of its seeds is a `GoldTask`."""

    config: TaskVariants
    spoiled_roles = ("rewriter",)

    def inputs(self) -> tuple[list[Input], list[Parent]]:
        return row_inputs(self.config.sources, self.setup.out)

    def seeds(self, work: Path) -> SeedSet:
        return plain_seeds(self.config.sources, task_of)

    def most(self, seed: Seed) -> Mapping[str, int]:
        attempts = self.config.attempts * (1 + self.config.variants)
        return {
            "rewriter": self.config.variants,
            "solver": self.config.variants * self.config.solvers,
            "reference": attempts,
        }

    def make(self, seed: Seed) -> Making:
        """Twins by code where the row allows it, else by a model; then the check of difficulty."""
        original: GoldTask = seed.content
        variants: list[GoldTask] = []
        program: Program | None = None
        if original.options:
            variants = self._with_options_moved(seed)
            checks = ["gold follows its option"]
        else:
            try:
                program = program_of(original.question, original.solution)
            except Discarded:
                if "rewriter" not in self.setup.models or "solver" not in self.setup.models:
                    raise
                for number in range(self.config.variants):
                    variants.append((yield from self._written(seed, number)))
                checks = ["agreement of solvers"]
            else:
                variants = self._with_other_numbers(seed, program)
                checks = ["gold by program"]
        variants = [
            variant for variant in variants if _plain(variant.text) != _plain(original.text)
        ]
        if not variants:
            raise Discarded("equal_to_original", original.question[:200])
        if "reference" in self.setup.models:
            variants = yield from self._in_band(seed, variants)
            checks.append("difficulty")
        yield Note("variants by", checks[0])
        tasks = [_task_row(original, seed, "original", program)]
        for number, variant in enumerate(variants):
            tasks.append(_task_row(variant, seed, f"variant-{number}", program))
        return Keep(tasks=tuple(tasks), checks=("not the original", *checks))

    def _with_other_numbers(self, seed: Seed, program: Program) -> list[GoldTask]:
        variants: list[GoldTask] = []
        for number in range(self.config.variants):
            rng = random.Random(key64(self.setup.seed, "variant", seed.id, number))
            values = other_values(program, rng)
            question = with_other_names(program.question_with(values), rng)
            gold = shown(program.run(values)[-1])
            variant = GoldTask(question, gold, gold)
            if variant not in variants:
                variants.append(variant)
        return variants

    def _with_options_moved(self, seed: Seed) -> list[GoldTask]:
        """The options in other orders, in each of which the right one has another letter."""
        task: GoldTask = seed.content
        right = OPTION_LETTERS.index(task.gold)
        variants: list[GoldTask] = []
        for number in range(self.config.variants):
            order = list(range(len(task.options)))
            rng = random.Random(key64(self.setup.seed, "variant", seed.id, number))
            rng.shuffle(order)
            if order.index(right) == right:
                other = (right + 1) % len(order)
                order[right], order[other] = order[other], order[right]
            options = tuple(task.options[k] for k in order)
            gold = OPTION_LETTERS[order.index(right)]
            variant = GoldTask(task.question, gold, gold, options)
            if variant not in variants:
                variants.append(variant)
        return variants

    def _written(self, seed: Seed, number: int) -> Generator[Any, Any, GoldTask]:
        """A variant that a model writes, if independent solvers agree on its answer."""
        original: GoldTask = seed.content
        text = self.text("variant_question", question=original.question)
        question = yield from ask_text(Ask("rewriter", prompt_of(seed, f"variant-{number}", text)))
        if _plain(question) == _plain(original.question):
            raise Discarded("equal_to_original", question[:200])
        names = self.setup.models["solver"]
        requests: list[Ask] = []
        for solver in range(self.config.solvers):
            prompt = _math_prompt(seed, f"solve-{number}-{solver}", question, gold=None)
            requests.append(Ask("solver", prompt, model=names[solver % len(names)]))
        answers = yield from ask_usable(*requests)
        boxes = [last_boxes(answered.text) for answered in answers]
        if not all(boxes):
            raise Discarded("solver_gives_no_box", answers[0].text[-200:])
        attempts: list[Attempt] = []
        for box in dict.fromkeys(boxes):
            prompt = _math_prompt(seed, "agree", question, gold=box)
            attempts += [Attempt(prompt, answered.completions[0]) for answered in answers]
        scores = yield from grade(*attempts)
        agreeing: dict[str, int] = {}
        for attempt, score in zip(attempts, scores, strict=True):
            gold = str(attempt.prompt.gold)
            agreeing[gold] = agreeing.get(gold, 0) + (score.value == 1.0)
        gold = max(agreeing, key=lambda box: agreeing[box])
        if agreeing[gold] < self.config.agreement * self.config.solvers:
            raise Discarded("solvers_disagree", ", ".join(map(str, boxes)))
        return GoldTask(question, gold, gold)

    def _in_band(
        self, seed: Seed, variants: Sequence[GoldTask]
    ) -> Generator[Any, Any, list[GoldTask]]:
        """The variants that a reference model solves about as often as the original."""
        original: GoldTask = seed.content
        prompts: list[Prompt] = []
        for number, task in enumerate([original, *variants]):
            prompts.append(_prompt(seed, f"reference-{number}", task))
        asks = (Ask("reference", prompt, self.config.attempts) for prompt in prompts)
        answers = yield from ask(*asks)
        attempts = [
            Attempt(answered.ask.prompt, completion)
            for answered in answers
            for completion in answered.completions
        ]
        scores = yield from grade(*attempts)
        passes = [score.value == 1.0 for score in scores]
        n = self.config.attempts
        rates = [sum(passes[k : k + n]) / n for k in range(0, len(passes), n)]
        kept: list[GoldTask] = []
        for variant, rate in zip(variants, rates[1:], strict=True):
            within = abs(rate - rates[0]) <= self.config.band
            yield Note("difficulty within the band", "yes" if within else "no")
            kept += [variant] if within else []
        if not kept:
            raise Discarded("difficulty", f"pass rates {', '.join(f'{r:.2f}' for r in rates)}")
        return kept

    def bad_answer(self, seed: Seed, answered: Answered) -> str:
        """The original itself, in the place of a variant."""
        return f"  {seed.content.question.upper()}"


def task_of(row: Row, source: TaskRows) -> tuple[str, GoldTask]:
    """The task of a row, and the text that stands for it. Raises Discarded: it is none."""
    question = text_field(row, source.question)
    solution = text_field(row, source.answer)
    options = _options_of(row, source)
    final = _FINAL.search(solution)
    gold = (final[1] if final else solution).strip().replace(",", "")
    if options:
        gold = _letter_of(row_value(row, source.answer), options)
    task = GoldTask(question, solution, gold, options)
    return task.text, task


def _options_of(row: Row, source: TaskRows) -> tuple[str, ...]:
    """Texts of the options, which have fields of their own or one with a list."""
    if len(source.options) == 1:
        listed = row_value(row, source.options[0])
        if not isinstance(listed, list) or len(cast(list[Any], listed)) < 2:
            raise Discarded("malformed_row", f"{source.options[0]} is no list of options")
        return tuple(str(option).strip() for option in cast(list[Any], listed))
    return tuple(text_field(row, name) for name in source.options)


def _letter_of(answer: Any, options: Sequence[str]) -> str:
    """The letter of the right option, which an answer names by letter, position or text."""
    letters = OPTION_LETTERS[: len(options)]
    if isinstance(answer, int) and 0 <= answer < len(options):
        return letters[answer]
    if isinstance(answer, str) and answer.strip() in (*letters, *options):
        text = answer.strip()
        return text if text in letters else letters[options.index(text)]
    raise Discarded("malformed_row", f"the answer {answer!r:.40} is none of the options")


def _task_row(task: GoldTask, seed: Seed, arm: str, program: Program | None) -> Row:
    """A row of an environment; `arm` is `original`, or a variant with its number."""
    metadata: Row = {"variant_of": seed.id, "arm": arm.partition("-")[0]}
    row: Row = {"id": f"{seed.id}/{arm}", "gold": task.gold, "metadata": metadata}
    if task.options:
        letters = dict(zip(OPTION_LETTERS, task.options, strict=False))
        box = "Give the letter of the right option inside \\boxed{}."
        metadata["options"] = letters
        return {"environment": "multiple_choice", "question": f"{task.text}\n\n{box}", **row}
    if program is not None:
        metadata["program"] = list(program.steps)
    question = OPEN_TEMPLATE.replace("{question}", task.question)
    return {"environment": "math", "question": question, **row}


def _prompt(seed: Seed, name: str, task: GoldTask) -> Prompt:
    if not task.options:
        return _math_prompt(seed, name, task.question, gold=task.gold)
    row = _task_row(task, seed, name, None)
    return prompt_of(
        seed,
        name,
        row["question"],
        grader="environment",
        environment="multiple_choice",
        gold=task.gold,
        metadata=json_text({"options": row["metadata"]["options"]}),
    )


def _math_prompt(seed: Seed, name: str, question: str, *, gold: str | None) -> Prompt:
    text = OPEN_TEMPLATE.replace("{question}", question)
    return prompt_of(seed, name, text, grader="math", gold=gold)


def with_other_names(question: str, rng: random.Random) -> str:
    """The question with other first names of the same kind, where it has names that we know."""
    renamed: dict[str, str] = {}
    for names in _NAMES:
        present = [name for name in names if re.search(rf"\b{name}\b", question)]
        others = [name for name in names if name not in present]
        renamed |= dict(zip(present, rng.sample(others, len(present)), strict=True))
    if not renamed:
        return question
    pattern = rf"\b({'|'.join(renamed)})\b"
    return re.sub(pattern, lambda match: renamed[match[1]], question)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
