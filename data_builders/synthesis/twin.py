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
from data_builders.synthesis.seeds import plain_seeds, row_value, text_field
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
from data_builders.synthesis.twin_program import (
    Program,
    has_same_digits,
    other_values,
    program_of,
    shown,
)
from posttrain.config.prompts import OPEN_TEMPLATE
from posttrain.config.synthesize import TaskRows, TaskVariants
from posttrain.config.templates import OPTION_LETTERS
from posttrain.records import json_text
from posttrain.rollouts import Prompt
from reward.graders.base import Attempt
from reward.graders.final_answer import last_boxes

_FINAL = re.compile(r"####\s*(.+)")
# largest difference of pass rates at which a variant counts as difficult as its original; ours
_BAND = 0.5
_NAMES = (
    ("Anna", "Beth", "Carla", "Dana", "Ella", "Emma", "Hannah", "Jane", "Julie", "Kate", "Laura",
     "Lisa", "Maria", "Mary", "Mia", "Nina", "Olivia", "Rachel", "Sarah", "Sophia", "Tina"),
    ("Adam", "Ben", "Carl", "David", "Eric", "Frank", "George", "Henry", "Jack", "James", "John",
     "Kevin", "Luke", "Mark", "Mike", "Nick", "Paul", "Peter", "Robert", "Sam", "Tim", "Tom"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GoldTask:
    """Question with its right answer.

    Attributes:
        solution: answer as the row has it, which may hold calculations.
        gold: final answer; for a question with options, the letter of the right one.
        options: texts in order; () for an open question.
    """

    question: str
    solution: str
    gold: str
    options: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Question, with a line for each option."""
        lines = [
            f"{OPTION_LETTERS[position]}. {option}" for position, option in enumerate(self.options)
        ]
        return "\n".join([self.question, *lines])


class VariantTasks(SynthesisKind):
    """The kind `twin`; the content of its seeds is a `GoldTask`."""

    config: TaskVariants
    spoiled_roles = ("rewriter",)

    def seeds(self, work: Path) -> SeedSet:
        return plain_seeds(self.config.sources, task_of)

    def max_completions(self, seed: Seed) -> Mapping[str, int]:
        attempts = self.config.attempts * (1 + self.config.variants)
        return {
            "rewriter": self.config.variants,
            "solver": self.config.variants * self.config.solvers,
            "reference": attempts,
        }

    def make(self, seed: Seed) -> Making:
        """Make variants by code if possible, else by a model; then check their difficulty."""
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
                    variants.append((yield from self._write_variant(seed, number)))
                checks = ["agreement of solvers"]
            else:
                variants = yield from self._with_other_numbers(seed, program)
                checks = ["gold by program"]
        variants = [
            variant for variant in variants if _normalise(variant.text) != _normalise(original.text)
        ]
        if not variants:
            raise Discarded("equal_to_original", original.question[:200])
        if "reference" in self.setup.models:
            variants = yield from self._keep_in_band(seed, variants)
            checks.append("difficulty")
        yield Note("variants by", checks[0])
        tasks = [_task_row(original, seed, "original", program)]
        for number, variant in enumerate(variants):
            tasks.append(_task_row(variant, seed, f"variant-{number}", program))
        return Keep(tasks=tuple(tasks), checks=("not the original", *checks))

    def _with_other_numbers(
        self, seed: Seed, program: Program
    ) -> Generator[Note, Any, list[GoldTask]]:
        variants: list[GoldTask] = []
        for number in range(self.config.variants):
            rng = random.Random(key64(self.setup.seed, "variant", seed.id, number))
            values = other_values(program, rng)
            same_digits = has_same_digits(program, values)
            yield Note("numbers as long as the original's", "yes" if same_digits else "no")
            question = with_other_names(program.question_with(values), rng)
            gold = shown(program.run(values)[-1])
            variant = GoldTask(question, gold, gold)
            if variant not in variants:
                variants.append(variant)
        return variants

    def _with_options_moved(self, seed: Seed) -> list[GoldTask]:
        """Put the options in other orders, in each of which the right one has another letter."""
        task: GoldTask = seed.content
        right = OPTION_LETTERS.index(task.gold)
        variants: list[GoldTask] = []
        for number in range(self.config.variants):
            order = list(range(len(task.options)))
            rng = random.Random(key64(self.setup.seed, "variant", seed.id, number))
            rng.shuffle(order)
            if order.index(right) == right:
                neighbour = (right + 1) % len(order)
                order[right], order[neighbour] = order[neighbour], order[right]
            options = tuple(task.options[index] for index in order)
            gold = OPTION_LETTERS[order.index(right)]
            variant = GoldTask(task.question, gold, gold, options)
            if variant not in variants:
                variants.append(variant)
        return variants

    def _write_variant(self, seed: Seed, number: int) -> Generator[Any, Any, GoldTask]:
        """Have a model write a variant; its gold is the answer that solvers agree on."""
        original: GoldTask = seed.content
        text = self.text("variant_question", question=original.question)
        question = yield from ask_text(Ask("rewriter", prompt_of(seed, f"variant-{number}", text)))
        if _normalise(question) == _normalise(original.question):
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
        # answers that the grader finds equal to each box: 0.5 and 1/2 agree
        agreeing: dict[str, int] = {}
        for attempt, score in zip(attempts, scores, strict=True):
            gold = str(attempt.prompt.gold)
            agreeing[gold] = agreeing.get(gold, 0) + (score.value == 1.0)
        gold = max(agreeing, key=lambda box: agreeing[box])
        if agreeing[gold] < self.config.agreement * self.config.solvers:
            raise Discarded("solvers_disagree", ", ".join(map(str, boxes)))
        return GoldTask(question, gold, gold)

    def _keep_in_band(
        self, seed: Seed, variants: Sequence[GoldTask]
    ) -> Generator[Any, Any, list[GoldTask]]:
        """Keep the variants that a reference model solves about as often as the original."""
        original: GoldTask = seed.content
        prompts: list[Prompt] = []
        for number, task in enumerate([original, *variants]):
            prompts.append(_task_prompt(seed, f"reference-{number}", task))
        asks = (Ask("reference", prompt, self.config.attempts) for prompt in prompts)
        answers = yield from ask(*asks)
        attempts: list[Attempt] = []
        for answered in answers:
            for completion in answered.completions:
                if completion.finish == "failed":
                    raise Discarded("request_failed", completion.error or "")
                attempts.append(Attempt(answered.ask.prompt, completion))
        scores = yield from grade(*attempts)
        passes: list[bool] = []
        for score in scores:
            # an answer without a number is no pass; a verifier that failed says nothing
            if score.failure is not None:
                raise Discarded("unscored", score.explanation)
            passes.append(score.value == 1.0)
        n = self.config.attempts
        rates = [sum(passes[start : start + n]) / n for start in range(0, len(passes), n)]
        original_rate, *variant_rates = rates
        kept_variants: list[GoldTask] = []
        for variant, rate in zip(variants, variant_rates, strict=True):
            is_within = abs(rate - original_rate) <= _BAND
            yield Note("difficulty within the band", "yes" if is_within else "no")
            if is_within:
                kept_variants.append(variant)
        if not kept_variants:
            rate_texts = [f"{rate:.2f}" for rate in rates]
            raise Discarded("difficulty", f"pass rates {', '.join(rate_texts)}")
        return kept_variants

    def bad_answer(self, seed: Seed, answered: Answered) -> str:
        """Plant the original itself in the place of a variant."""
        return f"  {seed.content.question.upper()}"


def task_of(row: Row, source: TaskRows) -> tuple[str, GoldTask]:
    """Read the task of a row, and the text that stands for it. Raises Discarded without a task."""
    question = text_field(row, source.question)
    solution = text_field(row, source.answer)
    options = _read_options(row, source)
    final_match = _FINAL.search(solution)
    final_answer = final_match[1] if final_match else solution
    gold = final_answer.strip().replace(",", "")
    if options:
        gold = _read_letter(row_value(row, source.answer), options)
    task = GoldTask(question, solution, gold, options)
    return task.text, task


def _read_options(row: Row, source: TaskRows) -> tuple[str, ...]:
    """Read the texts of the options, which have a field each, or one with a list."""
    if len(source.options) == 1:
        options = row_value(row, source.options[0])
        if not isinstance(options, list) or len(cast(list[Any], options)) < 2:
            raise Discarded("malformed_row", f"{source.options[0]} is no list of options")
        return tuple(str(option).strip() for option in cast(list[Any], options))
    return tuple(text_field(row, name) for name in source.options)


def _read_letter(answer: Any, options: Sequence[str]) -> str:
    """Letter of the right option, which a row names by letter, position or text."""
    letters = OPTION_LETTERS[: len(options)]
    if isinstance(answer, int) and 0 <= answer < len(options):
        return letters[answer]
    if isinstance(answer, str) and answer.strip() in (*letters, *options):
        text = answer.strip()
        return text if text in letters else letters[options.index(text)]
    raise Discarded("malformed_row", f"the answer {answer!r:.40} is none of the options")


def _task_row(task: GoldTask, seed: Seed, arm: str, program: Program | None) -> Row:
    """Row of an environment; `arm` is `original`, or `variant-` or `reference-` with a number."""
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


def _task_prompt(seed: Seed, name: str, task: GoldTask) -> Prompt:
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
    """Replace first names in a question by others of the same kind, as far as we know them."""
    renamed: dict[str, str] = {}
    for names in _NAMES:
        present = [name for name in names if re.search(rf"\b{name}\b", question)]
        absent = [name for name in names if name not in present]
        renamed |= dict(zip(present, rng.sample(absent, len(present)), strict=True))
    if not renamed:
        return question
    pattern = rf"\b({'|'.join(renamed)})\b"
    return re.sub(pattern, lambda match: renamed[match[1]], question)


def _normalise(text: str) -> str:
    """Text without differences of case and white space, for comparisons."""
    return " ".join(text.split()).casefold()
