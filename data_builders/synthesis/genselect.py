"""Graded samples → prompts that ask which of several solutions is right, and traces that say it.

As in NVIDIA's GenSelect: solutions are numbered from 0, the answer ends in `Judgment: [i]`, and a
prompt holds at least one right and one wrong solution. The trace is kept if it names a right one.
Text of a question or a solution that looks like the prompt's frame is quoted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from data_builders.keyed import key64
from data_builders.pairs.grading import grade_samples
from data_builders.registry import all_graders
from data_builders.rows.inputs import Input
from data_builders.synthesis.seeds import example_of
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
    ask_one,
    chat_row,
    filled,
)
from posttrain.config.synthesize import GenSelect
from posttrain.records import Message, Score, json_text
from posttrain.rollouts import Completion, Prompt, metadata_of
from posttrain.runs import Parent, parent_of, read_artifact
from reward.environments.genselect import judgment_of, selection_quoted

GradedPrompt = tuple[Prompt, tuple[tuple[Completion, Score], ...]]


class SelectionTraces(SynthesisKind):
    """The kind `genselect`; the content of its seeds is one of the `selection_prompts`."""

    config: GenSelect

    def inputs(self) -> tuple[list[Input], list[Parent]]:
        manifest = read_artifact(self.config.samples, kind="samples")
        parent = parent_of(self.config.samples, relative_to=self.setup.out, manifest=manifest)
        return [], [parent]

    def seeds(self, work: Path) -> SeedSet:
        """Build prompts from all graded samples; they are tasks of the environment too."""
        read_artifact(self.config.samples, kind="samples", verify=False)  # before a file of it
        result = SeedSet([])
        template = self.setup.templates["select_best"]
        for prompt, grades in grade_samples(Path(self.config.samples), all_graders(), work=work):
            graded = tuple((completion, score) for completion, score, _ in grades)
            make_prompts = evaluation_prompts if self.config.for_evaluation else selection_prompts
            try:
                prompts = make_prompts(
                    (prompt, graded), self.config, template=template, seed=self.setup.seed
                )
            except Discarded as problem:
                result.dropped[problem.reason] += 1
                continue
            for selection in prompts:
                result.seeds.append(Seed(selection.id, selection, example_of(selection)))
                result.tasks.append(_task_row(selection))
        return result

    def max_completions(self, seed: Seed) -> Mapping[str, int]:
        return {"generator": 1}

    def make(self, seed: Seed) -> Making:
        """Keep a trace whose judgment is right; without a generator keep the task alone."""
        if "generator" not in self.setup.models:
            return Keep(checks=("right and wrong solutions",))
        prompt: Prompt = seed.content
        completion = yield from ask_one(Ask("generator", prompt))
        right: list[int] = metadata_of(prompt)["right"]
        judgment = judgment_of(completion.answer)
        if judgment is None:
            raise Discarded("no_judgment", completion.answer[-200:])
        # a model's preference of a place shows in all judgments, the data's in those that are kept
        yield Note("position of all judgments", str(judgment))
        if judgment not in right:
            raise Discarded("wrong_judgment", f"[{judgment}] where {right} are right")
        yield Note("position of right judgments", str(judgment))
        row = chat_row(
            [*prompt.messages, *completion.messages],
            right=right,
            judgment=judgment,
            source=prompt.source,
        )
        return Keep((row,), checks=("genselect",))

    def bad_answer(self, seed: Seed, answered: Answered) -> str:
        """Plant a judgment that names a wrong solution, or one that is not there."""
        metadata = metadata_of(seed.content)
        wrong = next(k for k in range(metadata["candidates"] + 1) if k not in metadata["right"])
        return f"All of them are close.\nJudgment: [{wrong}]"


def _task_row(prompt: Prompt) -> Row:
    return {
        "environment": "genselect",
        "id": prompt.id,
        "question": prompt.messages[0].content,
        "metadata": metadata_of(prompt),
    }


def selection_prompts(
    graded: GradedPrompt, config: GenSelect, *, template: str, seed: int
) -> list[Prompt]:
    """Build prompts that ask for the best of several completions of one question.

    Completions that failed, were cut off or are unscored are not shown. The first right and the
    first wrong one of an instance's order are always shown, so that there is something to choose.

    Returns:
        At most `config.instances` prompts that differ.

    Raises:
        Discarded: there is none.
    """
    prompt, completions = graded
    solutions: dict[str, bool] = {}  # text of each different solution → whether it is right
    for completion, score in completions:
        text = completion.answer.strip()
        if completion.finish == "stop" and score.value is not None and text:
            solutions[text] = score.value == 1.0
    if len(solutions) < config.minimum:
        raise Discarded("too_few_solutions", f"{len(solutions)} different ones")
    if len(set(solutions.values())) == 1:
        raise Discarded("all_right" if all(solutions.values()) else "all_wrong")
    prompts: dict[str, Prompt] = {}
    for instance in range(config.instances):
        order = sorted(
            solutions, key=lambda text: key64(seed, "genselect", prompt.id, instance, text)
        )
        shown = _show_right_and_wrong(order, solutions, config.candidates)
        if sum(map(len, shown)) > config.longest:
            continue
        right = [k for k, solution in enumerate(shown) if solutions[solution]]
        metadata = {"right": right, "candidates": len(shown)}
        selection = _selection_prompt(prompt, shown, metadata, template=template, instance=instance)
        prompts[selection.messages[0].content] = selection
    if not prompts:
        raise Discarded("too_long", f"more than {config.longest:,} characters")
    return list(prompts.values())


def evaluation_prompts(
    graded: GradedPrompt, config: GenSelect, *, template: str, seed: int
) -> list[Prompt]:
    """Build one prompt with the first completions of a question, and figures of other methods.

    `figures` in its metadata are of the same completions: `pass@1`, the share that is right;
    `pass@k`, 1 if any is right; `majority@k`, 1 if the most frequent answer is, shared among ties.

    Raises:
        Discarded: fewer completions than `config.candidates`, one that is not scored, or none that
            can be shown.
    """
    prompt, completions = graded
    k = config.candidates
    if len(completions) < k:
        raise Discarded("too_few_solutions", f"{len(completions)} of {k}")
    chosen = completions[:k]
    if any(score.value is None for _, score in chosen):
        raise Discarded("unscored")
    values = [score.value == 1.0 for _, score in chosen]
    solutions = {
        completion.answer.strip(): score.value == 1.0
        for completion, score in chosen
        if completion.finish == "stop" and completion.answer.strip()
    }
    if not solutions:
        raise Discarded("too_few_solutions", "no completion has an answer")
    shown = sorted(solutions, key=lambda text: key64(seed, "genselect", prompt.id, 0, text))
    if sum(map(len, shown)) > config.longest:
        raise Discarded("too_long", f"more than {config.longest:,} characters")
    figures = {
        "pass@1": sum(values) / k,
        f"majority@{k}": _majority([score for _, score in chosen]),
        f"pass@{k}": float(any(values)),
    }
    metadata = {
        "right": [k for k, text in enumerate(shown) if solutions[text]],
        "candidates": len(shown),
        "figures": figures,
    }
    return [_selection_prompt(prompt, shown, metadata, template=template, instance=0)]


def _majority(scores: Sequence[Score]) -> float:
    """Share of the most frequent answers that are right; 0 without any answer."""
    answers = Counter(score.answer for score in scores if score.answer is not None)
    highest_count = max(answers.values(), default=0)
    frequent = [answer for answer, count in answers.items() if count == highest_count]
    right = {score.answer for score in scores if score.value == 1.0}
    return sum(answer in right for answer in frequent) / max(1, len(frequent))


def _selection_prompt(
    prompt: Prompt, shown: Sequence[str], metadata: Row, *, template: str, instance: int
) -> Prompt:
    """Prompt with a question and its numbered solutions, all of them quoted."""
    contents = [message.content for message in prompt.messages if message.role != "system"]
    question = selection_quoted("\n\n".join(contents))
    solutions = [
        f"Solution {number}:\n{selection_quoted(text)}" for number, text in enumerate(shown)
    ]
    text = filled(template, question=question, solutions="\n\n".join(solutions))
    return Prompt(
        id=f"{prompt.id}/select-{instance}",
        task=prompt.task,
        setting="genselect",
        messages=(Message("user", text),),
        environment="genselect",
        grader="environment",
        source=prompt.source,
        metadata=json_text(metadata),
    )


def _show_right_and_wrong(
    order: Sequence[str], solutions: Mapping[str, bool], candidates: int
) -> list[str]:
    """First candidates of an order, of which at least one is right and one wrong."""
    shown = list(order[:candidates])
    if len({solutions[text] for text in shown}) == 1:
        missing = next(text for text in order if solutions[text] != solutions[shown[0]])
        # hashed from the texts shown, so that it differs from one order to the next
        position = key64(0, "genselect_position", *shown) % candidates
        shown[position] = missing
    return shown
