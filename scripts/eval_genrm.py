"""Evaluate judges on held-out pairs: pairwise accuracy, position consistency, format, errors.

posttrain eval_genrm --config tiny/eval_genrm
posttrain eval_genrm --config F out=runs/x pairs=100 --dry-run
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.eval import EvalGenRmConfig, with_choices
from posttrain.jsontext import printable
from posttrain.rollouts import Completion, Prompt, metadata_of
from posttrain.runs import Run, parent_of, read_artifact

if TYPE_CHECKING:
    from posttrain.evaluation.judges import Judged

KIND = "genrm_evaluation"
WORK = "work"


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Evaluate judges on held-out pairs.")
    recipe, options = parse_recipe(parser, EvalGenRmConfig, argv)
    recipe, choices = with_choices(recipe)
    out = Path(recipe.out)
    data = read_artifact(recipe.data, kind="genrm_data")

    from posttrain.evaluation.judges import held_out, run_evaluation, time_lines
    from posttrain.report.console import open_console
    from posttrain.runner import run_data_stage
    from posttrain.sampling.open import checkpoint_parents

    console = open_console()
    for line in choices:
        console.print(line)
    prompts = held_out(recipe, data)
    parents = [parent_of(recipe.data, relative_to=out, manifest=data)]
    parents += checkpoint_parents(map(recipe.path_of, recipe.checkpoints), out=out)
    config = recipe.owner_config() | {"parents": [parent.digest for parent in parents]}

    def plan() -> None:
        total = len(prompts) * recipe.n
        names = ", ".join(recipe.checkpoints)
        console.print(f"{len(prompts):,} prompts × {recipe.n} = {total:,} for each: {names}")
        for line in asyncio.run(time_lines(recipe, prompts)):
            console.print(line, soft_wrap=True)
        console.print(printable(prompts[0].messages[-1].content), soft_wrap=True)

    def make(run: Run) -> None:
        run_evaluation(run, recipe, prompts, judged_of, data=data, parents=parents, console=console)

    run_data_stage(
        console,
        out,
        kind=KIND,
        config=config,
        recipe=recipe,
        dry_run=options.dry_run,
        make=make,
        plan=plan,
        scratch=WORK,
    )


def judged_of(checkpoint: str, prompt: Prompt, completion: Completion) -> Judged | None:
    """A judgement compared with its gold; None where the backend failed."""
    from posttrain.evaluation.judges import Judged
    from reward.judge.verdict import gold_from, outcome_of, preferred

    outcome = outcome_of(completion, gold_from(prompt))
    if outcome is None:
        return None
    about = metadata_of(prompt)
    length = completion.reasoning_tokens + completion.answer_tokens
    return Judged(
        checkpoint=checkpoint,
        source=prompt.source,
        question=about["question"],
        pair=about["pair"],
        index=completion.index,
        swapped=about["swapped"],
        prefers=None if outcome.verdict is None else preferred(outcome.verdict),
        figures=outcome.figures | {"truncated": float(completion.truncated), "tokens": length},
    )


if __name__ == "__main__":
    run_command(main)
