"""Evaluate judges on held-out pairs: pairwise accuracy, position consistency, format, errors.

posttrain eval_genrm --config tiny/eval_genrm
posttrain eval_genrm --config F out=runs/x pairs=100 --dry-run
posttrain eval_genrm rescore RUN               # read the records again
"""

import argparse
import sys
from pathlib import Path

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.eval import EvalGenRmConfig
from posttrain.rollouts import Completion, Prompt
from posttrain.runs import Run, parent_of, read_artifact

KIND, WORK = "genrm_evaluation", "work"
Figures = dict[str, float | None]


def main(argv: list[str] | None = None) -> None:
    given = sys.argv[1:] if argv is None else argv
    if given[:1] == ["rescore"]:
        parser = argparse.ArgumentParser(description="Figures of a run's records, read again.")
        parser.add_argument("run", type=Path, help="a finished evaluation of judges")
        run: Path = parser.parse_args(given[1:]).run
        from posttrain.evaluation.judges import rescore

        rescore(run, read)
        return
    parser = recipe_parser("Evaluate judges on held-out pairs.")
    recipe, options = parse_recipe(parser, EvalGenRmConfig, given)
    out, data = Path(recipe.out), read_artifact(recipe.data, kind="genrm_data")

    from posttrain.evaluation.judges import held_out, run_evaluation
    from posttrain.report.console import open_console
    from posttrain.report.write import run_stage
    from posttrain.sampling.open import checkpoint_parents

    console = open_console()
    prompts = held_out(recipe, data)
    parents = [parent_of(recipe.data, relative_to=out, manifest=data)]
    parents += checkpoint_parents(map(recipe.path_of, recipe.checkpoints), out=out)
    config = recipe.owner_config() | {"parents": [parent.digest for parent in parents]}
    if options.dry_run:
        Run.open(out, kind=KIND, config=config, dry_run=True)
        total, names = len(prompts) * recipe.n, ", ".join(recipe.checkpoints)
        console.print(f"{len(prompts):,} prompts × {recipe.n} = {total:,} for each: {names}")
        console.print(prompts[0].messages[-1].content, markup=False, highlight=False)
        return

    def make(run: Run) -> None:
        run_evaluation(run, recipe, prompts, read, data=data, parents=parents, console=console)

    run_stage(console, out, kind=KIND, config=config, make=make, scratch=WORK)


def read(prompt: Prompt, completion: Completion) -> tuple[int | None, Figures] | None:
    """What a judgement prefers, and its figures against gold; None where the backend failed."""
    from reward.judge.verdict import gold_from, outcome_of, preferred

    outcome = outcome_of(completion, gold_from(prompt))
    if outcome is None:
        return None
    return outcome.verdict and preferred(outcome.verdict), outcome.figures


if __name__ == "__main__":
    run_command(main)
