"""One policy against another: the same prompts, a judge, both orders; wins, ties and losses.

    python scripts/win_rate.py --config recipes/tiny/win_rate.yaml
    python scripts/win_rate.py --config F before=runs/eval:sft after=runs/eval:rlhf out=runs/x

Verdicts are kept: killed and started again, the same command asks for none of them twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

# before transformers is imported, which may be by way of trl, whose telemetry is on by default
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

from rich.console import Console
from rich.progress import Progress

from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.win_rate import WinRateConfig
from posttrain.runs import (
    Run,
    atomic_write_json,
    atomic_write_text,
    open_run,
)

if TYPE_CHECKING:
    from posttrain.evaluation.win_rate import AnswerPair
    from reward.judge.votes import Judgement

    Both = tuple[Judgement, Judgement] | None  # None: the answers are the same

KIND, WORK, METRICS, DUELS = "win_rate", "work", "metrics.json", "duels.jsonl"


def main(arguments: list[str]) -> None:
    parser = recipe_parser("Judge two policies' answers to the same prompts.")
    recipe, options = parse_recipe(parser, WinRateConfig, arguments)
    console, out = Console(width=None if sys.stdout.isatty() else 160), Path(recipe.out)

    from data_builders.keyed import key64
    from posttrain.evaluation.tables import print_win_rates
    from posttrain.evaluation.win_rate import pair_up, read_answers, win_rows
    from posttrain.report import ensure_report, write_report
    from posttrain.sampling.generate import row_line
    from reward.judge.open import judge_parents
    from reward.judge.prompt import shown_answer

    before, after = (read_answers(path, out) for path in (recipe.before, recipe.after))
    pairs, counts = pair_up(
        recipe,
        before,
        after,
        order=lambda name: key64(recipe.seed, "duel", name),
        answer_of=shown_answer,
    )
    judges = judge_parents(recipe.judge.models, out=out)
    parents = list({p.digest: p for p in (before.parent, after.parent, *judges)}.values())
    config = recipe.owner_config() | {
        # one run may hold both sides
        "sides": [[side.parent.digest, side.name] for side in (before, after)],
        "judges": [parent.digest for parent in judges],
    }
    to_judge = sum(not pair.same for pair in pairs)
    plan = f"{len(pairs):,} pairs of answers, {to_judge:,} of them to judge, in both orders"
    console.print(plan, highlight=False)
    if options.dry_run:
        if out.is_dir() and any(out.iterdir()):
            Run.open(out, kind=KIND, config=config, dry_run=True)
        return

    with open_run(out, kind=KIND, config=config, scratch=WORK) as stage:
        if stage.complete:
            shutil.rmtree(out / WORK, ignore_errors=True)
            ensure_report(out)
            console.print(f"{out} is complete, nothing to do", highlight=False)
            return
        judged, identity, ledger = asyncio.run(judge_all(recipe, pairs, out / WORK))
        duels = [pair.duel(preferences(both)) for pair, both in zip(pairs, judged, strict=True)]
        rows = win_rows(duels, seed=recipe.seed)
        atomic_write_json(out / METRICS, {"rows": rows, "ledger": ledger})
        lines = (row_line(row_of(p, both)) for p, both in zip(pairs, judged, strict=True))
        atomic_write_text(out / DUELS, "".join(lines))
        stage.finish(
            counts=counts,
            files={METRICS: None, DUELS: len(duels)},
            parents=parents,
            seed=recipe.seed,
            stats={"before": recipe.before, "after": recipe.after, "judge": identity},
        )
        shutil.rmtree(out / WORK, ignore_errors=True)
        print_win_rates(console, rows)
        console.print(f"{write_report(out)}", highlight=False)


async def judge_all(
    recipe: WinRateConfig, pairs: Sequence[AnswerPair], work: Path
) -> tuple[list[Both], dict[str, Any], dict[str, int]]:
    """Both orders of every pair, all in flight at once; the judge's identity, and the cost.

    Raises:
        JudgeError: too many failed.
    """
    from reward.judge.cache import VerdictCache
    from reward.judge.judge import GenRmJudge
    from reward.judge.open import open_judges
    from reward.judge.votes import Comparison, failures_of, refuse_failures
    from reward.rlhf import principle_of

    async with contextlib.AsyncExitStack() as stack:
        judges = await open_judges(recipe.judge.models, stack)
        matches: list[Comparison] = []
        for pair in pairs:
            if not pair.same:
                (old, new), history = pair.answers, pair.prompt.messages
                principle = principle_of(pair.prompt)
                matches += (
                    Comparison(history, old, new, principle),
                    Comparison(history, new, old, principle),
                )
        shared = recipe.judge.cache
        folder = work / "judgements" if shared is None else Path(shared)
        with VerdictCache(folder, any_step=shared is not None) as cache, Progress() as bar:
            task = bar.add_task("judging", total=len(matches) * len(judges))
            judge = GenRmJudge(
                judges, recipe.judge, cache=cache, on_progress=lambda n: bar.advance(task, n)
            )
            judgements = await judge.judge(matches, seed=recipe.seed)
            failures = failures_of(judgements)
            refuse_failures(len(matches), failures, max_failure_rate=recipe.judge.max_failure_rate)
            judge.keep_failures()
        in_order = iter(zip(judgements[::2], judgements[1::2], strict=True))
        both = [None if pair.same else next(in_order) for pair in pairs]
        # seconds differ from run to run: they are printed, not kept
        cost = asdict(judge.ledger)
        print(f"{cost['calls']:,} calls in {cost.pop('seconds'):.0f} s")
        return both, dict(judge.identity), cost


def preferences(both: Both) -> tuple[int | None, int | None] | None:
    """The preferred position in each order."""
    from reward.judge.training import preferred

    if both is None:
        return None
    one, other = (None if j.verdict is None else preferred(j.verdict) for j in both)
    return one, other


def row_of(pair: AnswerPair, both: Both) -> dict[str, Any]:
    """A pair to read: both answers, and the judge's text in each order."""
    before, after = pair.answers
    names = ("before_first", "after_first")
    judgements = dict(zip(names, map(_judgement_row, both), strict=True)) if both else {}
    return {
        "prompt": pair.prompt.id,
        "index": pair.index,
        "asked": pair.prompt.messages[-1].content,
        "before": before,
        "after": after,
        "outcome": pair.duel(preferences(both)).outcome,
        **judgements,
    }


def _judgement_row(judgement: Judgement) -> dict[str, Any]:
    verdict = judgement.verdict
    scores = None if verdict is None else [verdict.score_1, verdict.score_2, verdict.ranking]
    return {"verdict": scores, "reason": judgement.reason,
            "texts": [vote.text for vote in judgement.votes]}  # fmt: skip


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
