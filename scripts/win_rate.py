"""One policy against another: the same prompts, a judge, both orders; wins, ties and losses.

    python scripts/win_rate.py --config recipes/tiny/win_rate.yaml
    python scripts/win_rate.py --config F before=runs/eval:sft after=runs/eval:rlhf out=runs/x

Verdicts are kept: killed and started again, the same command asks for none of them twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.win_rate import WinRateConfig
from posttrain.runs import Run, atomic_write_json, atomic_write_text, open_run

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
    from posttrain.report import show_finished, show_up_to_date
    from posttrain.sampling.generate import row_line
    from reward.judge.open import judge_parents
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

    with open_run(out, kind=KIND, config=config, scratch=WORK) as stage:
        if stage.complete:
            shutil.rmtree(out / WORK, ignore_errors=True)
            show_up_to_date(console, out)
            return
        judged, identity, ledger = asyncio.run(judge_all(recipe, pairs, out / WORK))
        duels = [pair.duel(rows) for pair, rows in zip(pairs, judged, strict=True)]
        metrics = {"rows": win_rows(duels, seed=recipe.seed), "ledger": ledger}
        atomic_write_json(out / METRICS, metrics)
        lines = (row_line(pair.row(rows)) for pair, rows in zip(pairs, judged, strict=True))
        atomic_write_text(out / DUELS, "".join(lines))
        stage.finish(
            counts=counts,
            files={METRICS: None, DUELS: len(duels)},
            parents=list({p.digest: p for p in (before.parent, after.parent, *judges)}.values()),
            seed=recipe.seed,
            stats={"before": recipe.before, "after": recipe.after, "judge": identity},
        )
        shutil.rmtree(out / WORK, ignore_errors=True)
        show_finished(console, out)


async def judge_all(
    recipe: WinRateConfig, pairs: Sequence[AnswerPair], work: Path
) -> tuple[list[Rows], dict[str, Any], dict[str, int]]:
    """Both orders of every pair, all in flight at once; the judge's identity, and the cost.

    Raises:
        JudgeError: too many failed.
    """
    from reward.judge.cache import VerdictCache
    from reward.judge.judge import GenRmJudge
    from reward.judge.open import open_judges
    from reward.judge.votes import Comparison, failures_of, refuse_failures
    from reward.rlhf import principle_of

    matches: list[Comparison] = []
    for pair in pairs:
        if not pair.same:
            history, principle = pair.prompt.messages, principle_of(pair.prompt)
            for first, second in (pair.answers, pair.answers[::-1]):
                matches.append(Comparison(history, first, second, principle))
    config, shared = recipe.judge, recipe.judge.cache
    async with contextlib.AsyncExitStack() as stack:
        models = await open_judges(config.models, stack)
        folder = work / "judgements" if shared is None else Path(shared)
        cache = stack.enter_context(VerdictCache(folder, any_step=shared is not None))
        bar = stack.enter_context(Progress())
        task = bar.add_task("judging", total=len(matches) * len(models))
        judge = GenRmJudge(models, config, cache=cache, on_progress=lambda n: bar.advance(task, n))
        judgements = await judge.judge(matches, seed=recipe.seed)
        failures = failures_of(judgements)
        refuse_failures(len(matches), failures, max_failure_rate=config.max_failure_rate)
        judge.keep_failures()
    rows = iter([judgement.row() for judgement in judgements])
    # seconds differ from run to run: they are printed, not kept
    cost = asdict(judge.ledger)
    print(f"{cost['calls']:,} calls in {cost.pop('seconds'):.0f} s")
    judged = [[] if pair.same else [next(rows), next(rows)] for pair in pairs]
    return judged, dict(judge.identity), cost


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
