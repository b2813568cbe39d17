"""Graded samples → prompts that ask which of several solutions is right, and traces that say it.

As in NVIDIA's GenSelect: solutions are numbered from 0, the answer ends in `Judgment: [i]`, and a
prompt holds at least one right and one wrong solution. The trace is kept if it names a right one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from data_builders.keyed import key64
from data_builders.synthesis.steps import (
    Ask,
    Asks,
    Discard,
    Keep,
    Move,
    Round,
    Seed,
    chat_message,
    filled,
    first_refusal,
)
from posttrain.config.synthesize import GenSelect
from posttrain.environments.base import Environment
from posttrain.records import Message, Score, json_text
from posttrain.rollouts import Completion, Prompt, metadata_of
from reward.environments.genselect import judgment_of

GradedPrompt = tuple[Prompt, tuple[tuple[Completion, Score], ...]]


class SelectionTraces:
    """The kind `genselect`; the content of its seeds is one of the `selection_prompts`."""

    def __init__(self, templates: Mapping[str, str]) -> None:
        self.templates = templates

    def moves(self, seeds: Sequence[tuple[Seed, Sequence[Round]]]) -> list[Move]:
        """One trace a prompt, kept if its judgment is right."""
        return [self._move(seed.content, rounds) for seed, rounds in seeds]

    def open_environment(self, prompt: Prompt) -> Environment | None:
        """None: nothing is called."""
        return None

    def _move(self, prompt: Prompt, rounds: Sequence[Round]) -> Move:
        if not rounds:
            return Asks((Ask("generator", prompt),))
        [answers] = rounds
        if (problem := first_refusal(answers)) is not None:
            return problem
        [completion] = answers[0].completions
        right: list[int] = metadata_of(prompt)["right"]
        judgment = judgment_of(completion.answer)
        if judgment is None:
            return Discard("no_judgment", completion.answer[-200:])
        if judgment not in right:
            return Discard("wrong_judgment", f"[{judgment}] where {right} are right")
        messages = [*prompt.messages, *completion.messages]
        metadata = {"right": right, "judgment": judgment, "source": prompt.source}
        row = {"messages": [chat_message(message) for message in messages], "metadata": metadata}
        return Keep((row,), {"position of the judgment": str(judgment)})


def selection_prompts(
    graded: GradedPrompt, config: GenSelect, *, template: str, seed: int
) -> list[Prompt] | Discard:
    """Prompts that ask for the best of several completions of one question.

    Completions that failed, were cut off or are unscored are not shown. The first right and the
    first wrong one of an instance's order are always shown, so that there is something to choose.

    Returns:
        At most `config.instances` prompts that differ, or the reason why there is none.
    """
    prompt, completions = graded
    usable = [
        (completion, score.value == 1.0)
        for completion, score in completions
        if completion.finish == "stop" and score.value is not None and completion.answer.strip()
    ]
    solutions = {completion.answer.strip(): is_right for completion, is_right in usable}
    if len(solutions) < config.minimum:
        return Discard("too_few_solutions", f"{len(solutions)} different ones")
    if len(set(solutions.values())) == 1:
        return Discard("all_right" if all(solutions.values()) else "all_wrong")
    prompts: dict[str, Prompt] = {}
    for instance in range(config.instances):
        order = sorted(
            solutions, key=lambda text: key64(seed, "genselect", prompt.id, instance, text)
        )
        shown = _with_both(order, solutions, config.candidates)
        if sum(map(len, shown)) > config.longest:
            continue
        question = "\n\n".join(m.content for m in prompt.messages if m.role != "system")
        listed = "\n\n".join(f"Solution {k}:\n{text}" for k, text in enumerate(shown))
        text = filled(template, question=question, solutions=listed)
        right = [k for k, solution in enumerate(shown) if solutions[solution]]
        prompts[text] = Prompt(
            id=f"{prompt.id}/select-{instance}",
            task=prompt.task,
            setting="genselect",
            messages=(Message("user", text),),
            environment="genselect",
            grader="environment",
            source=prompt.source,
            metadata=json_text({"right": right, "candidates": len(shown)}),
        )
    if not prompts:
        return Discard("too_long", f"more than {config.longest:,} characters")
    return list(prompts.values())


def _with_both(order: Sequence[str], solutions: Mapping[str, bool], candidates: int) -> list[str]:
    """The first candidates of an order, of which one at least is right and one wrong."""
    shown = list(order[:candidates])
    if len({solutions[text] for text in shown}) == 1:
        missing = next(text for text in order if solutions[text] != solutions[shown[0]])
        # hashed from the texts shown, so that it differs from one order to the next
        position = key64(0, "genselect_position", *shown) % candidates
        shown[position] = missing
    return shown
