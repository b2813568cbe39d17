"""One policy against another: the same prompts, a judge, both orders; wins, ties and losses.

posttrain win_rate --config tiny/win_rate
posttrain win_rate --config F before=runs/eval:sft after=runs/eval:rlhf out=runs/x
"""

import asyncio
from functools import partial
from pathlib import Path

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.eval import WinRateConfig
from posttrain.runs import Run, parent_of, read_artifact

KIND = "win_rate"
WORK = "work"


def main(argv: list[str] | None = None) -> None:
    parser = recipe_parser("Judge two policies' answers to the same prompts.")
    recipe, options = parse_recipe(parser, WinRateConfig, argv)
    out = Path(recipe.out)

    from data_builders.keyed import key64
    from posttrain.evaluation.compare import read_checkpoint
    from posttrain.evaluation.win_rate import pair_up, write_duels
    from posttrain.report.console import open_console
    from posttrain.runner import run_data_stage
    from posttrain.sampling.progress import ProgressBar
    from reward.judge.judge import judge_all, judge_parents
    from reward.judge.prompt import shown_answer
    from reward.judge.votes import Comparison
    from reward.rlhf import principle_of

    console = open_console()
    sides = [read_checkpoint(path) for path in (recipe.before, recipe.after)]
    manifests = {side.run: read_artifact(side.run, verify=False) for side in sides}
    parents = [parent_of(side.run, relative_to=out, manifest=manifests[side.run]) for side in sides]
    order = partial(key64, recipe.seed, "duel")
    pairs, counts = pair_up(*sides, prompts=recipe.prompts, order=order, answer_of=shown_answer)
    judges = judge_parents(recipe.judge.models, out=out)
    config = recipe.owner_config() | {
        # one run may hold both sides
        "sides": [[p.digest, s.checkpoint] for p, s in zip(parents, sides, strict=True)],
        "judges": [parent.digest for parent in judges],
    }
    comparisons: list[Comparison] = []
    for pair in pairs:
        if pair.decided is not None:
            continue
        principle = principle_of(pair.prompt)
        for first, second in (pair.answers, pair.answers[::-1]):
            comparisons.append(Comparison(pair.prompt.messages, first, second, principle))
    to_judge = f"{len(comparisons) // 2:,} of them to judge, in both orders"
    console.print(f"{len(pairs):,} pairs of answers, {to_judge}")

    def make(run: Run) -> None:
        total = len(comparisons) * len(recipe.judge.models)
        work = out / WORK / "judgements"
        bar = ProgressBar(total=total, most_tokens=None, console=console, unit="judgements")
        with bar as progress:
            judging = judge_all(
                recipe.judge,
                comparisons,
                folder=work,
                seed=recipe.seed,
                on_progress=lambda votes: progress.add(done=votes),
            )
            judgements, identity, ledger = asyncio.run(judging)
        # seconds differ from run to run: they are printed, not kept
        print(f"{ledger['calls']:,} calls in {ledger.pop('seconds'):.0f} s")
        write_duels(
            run,
            recipe,
            pairs,
            [judgement.row() for judgement in judgements],
            counts=counts,
            ledger=ledger,
            parents=[*parents, *judges],
            judge=identity,
        )

    run_data_stage(
        console,
        out,
        kind=KIND,
        config=config,
        recipe=recipe,
        dry_run=options.dry_run,
        make=make,
        scratch=WORK,
    )


if __name__ == "__main__":
    run_command(main)
