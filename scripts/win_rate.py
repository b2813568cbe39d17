"""One policy against another: the same prompts, a judge, both orders; wins, ties and losses.

    posttrain win_rate --config tiny/win_rate
    posttrain win_rate --config F before=runs/eval:sft after=runs/eval:rlhf out=runs/x

Verdicts are kept: killed and started again, the same command asks for none of them twice.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.win_rate import WinRateConfig
from posttrain.runs import Run, atomic_write_json, atomic_write_text

if TYPE_CHECKING:
    from posttrain.evaluation.win_rate import AnswerPair

    Rows = list[dict[str, Any]]  # the judgements of a pair in both orders; none of equal answers

KIND, WORK, METRICS, DUELS = "win_rate", "work", "metrics.json", "duels.jsonl"


def main(arguments: list[str]) -> None:
    parser = recipe_parser("Judge two policies' answers to the same prompts.")
    recipe, options = parse_recipe(parser, WinRateConfig, arguments)
    console, out = Console(width=None if sys.stdout.isatty() else 160), Path(recipe.out)

    from data_builders.keyed import key64
    from posttrain.evaluation.win_rate import pair_up, read_answers, win_rows
    from posttrain.report import run_stage
    from posttrain.sampling.generate import row_line
    from reward.judge.judge import judge_parents
    from reward.judge.prompt import shown_answer

    before, after = (read_answers(path, out) for path in (recipe.before, recipe.after))

    def order(name: str) -> int:
        return key64(recipe.seed, "duel", name)

    pairs, counts = pair_up(recipe, before, after, order=order, answer_of=shown_answer)
    judges = judge_parents(recipe.judge.models, out=out)
    config = recipe.owner_config() | {
        # one run may hold both sides
        "sides": [[side.parent.digest, side.name] for side in (before, after)],
        "judges": [parent.digest for parent in judges],
    }
    to_judge = sum(not pair.same for pair in pairs)
    plan = f"{len(pairs):,} pairs of answers, {to_judge:,} of them to judge, in both orders"
    console.print(plan, highlight=False)
    if options.dry_run:
        Run.open(out, kind=KIND, config=config, dry_run=True)
        return

    def make(run: Run) -> None:
        judged, identity, ledger = judge_pairs(recipe, pairs, out / WORK / "judgements")
        duels = [pair.duel(rows) for pair, rows in zip(pairs, judged, strict=True)]
        metrics = {"rows": win_rows(duels, seed=recipe.seed), "ledger": ledger}
        atomic_write_json(out / METRICS, metrics)
        lines = (row_line(pair.row(rows)) for pair, rows in zip(pairs, judged, strict=True))
        atomic_write_text(out / DUELS, "".join(lines))
        run.finish(
            counts=counts,
            files={METRICS: None, DUELS: len(duels)},
            parents=list({p.digest: p for p in (before.parent, after.parent, *judges)}.values()),
            seed=recipe.seed,
            stats={"before": recipe.before, "after": recipe.after, "judge": identity},
        )

    run_stage(console, out, kind=KIND, config=config, make=make, scratch=WORK)


def judge_pairs(
    recipe: WinRateConfig, pairs: Sequence[AnswerPair], folder: Path
) -> tuple[list[Rows], dict[str, Any], dict[str, int]]:
    """The judgements of every pair in both orders; the judge's identity, and the cost."""
    from reward.judge.judge import judge_all
    from reward.judge.votes import Comparison
    from reward.rlhf import principle_of

    matches = [
        Comparison(pair.prompt.messages, first, second, principle_of(pair.prompt))
        for pair in pairs
        if not pair.same
        for first, second in (pair.answers, pair.answers[::-1])
    ]
    with Progress() as bar:
        task = bar.add_task("judging", total=len(matches) * len(recipe.judge.models))
        judgements, identity, cost = asyncio.run(
            judge_all(
                recipe.judge,
                matches,
                folder=folder,
                seed=recipe.seed,
                on_progress=lambda n: bar.advance(task, n),
            )
        )
    rows = iter([judgement.row() for judgement in judgements])
    # seconds differ from run to run: they are printed, not kept
    print(f"{cost['calls']:,} calls in {cost.pop('seconds'):.0f} s")
    return [[] if pair.same else [next(rows), next(rows)] for pair in pairs], identity, cost


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
