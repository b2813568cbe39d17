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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from data_builders.keyed import key64
from data_builders.preferences.grading import read_groups
from posttrain.artifacts import (
    Counts,
    Parent,
    StageDir,
    atomic_write_json,
    atomic_write_text,
    parent_of,
    read_artifact,
)
from posttrain.claim import claimed, run_command
from posttrain.config.command import parse_recipe, recipe_parser
from posttrain.config.win_rate import WinRateConfig
from posttrain.errors import ConfigError
from posttrain.evaluation.compare import side_of
from posttrain.evaluation.tables import interval
from posttrain.evaluation.win_rate import Duel, win_rows
from posttrain.report import ensure_report, write_report
from posttrain.rollouts import Completion, Prompt
from posttrain.sampling.generate import row_line
from posttrain.sampling.open import opened_sampler
from posttrain.sampling.render import RenderedSampler
from reward.genrm_judge import GenRmJudge, Seat, seat_for
from reward.genrm_prompt import shown_answer
from reward.genrm_training import preferred
from reward.judgements import Judgement, Match, failures_of, refuse_failures
from reward.rlhf import principle_of
from reward.verdict_cache import VerdictCache

KIND, WORK, METRICS, DUELS = "win_rate", "work", "metrics.json", "duels.jsonl"


@dataclass(frozen=True, slots=True)
class Side:
    """One policy's completions by prompt id and index, and where they are from.

    `name` is that of the checkpoint in an evaluation, "" of samples.
    """

    name: str
    prompts: dict[str, Prompt]
    completions: dict[tuple[str, int], Completion]
    parent: Parent


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two completions of one prompt, and what a judge is shown of them."""

    prompt: Prompt
    index: int
    before: Completion
    after: Completion

    @property
    def answers(self) -> tuple[str, str]:
        """The old and the new answer."""
        return shown_answer(self.before), shown_answer(self.after)

    @property
    def same(self) -> bool:
        """Whether there is nothing to judge."""
        before, after = self.answers
        return before.strip() == after.strip()

    def matches(self) -> tuple[Match, Match]:
        """Both orders: the old answer first, the new answer first."""
        before, after = self.answers
        history, principle = self.prompt.messages, principle_of(self.prompt)
        return (
            Match(history, before, after, principle),
            Match(history, after, before, principle),
        )


def main(arguments: list[str]) -> None:
    recipe, options = parse_recipe(
        recipe_parser("Judge two policies' answers to the same prompts."), WinRateConfig, arguments
    )
    console = Console(width=None if sys.stdout.isatty() else 160)
    out = Path(recipe.out)
    before, after = (read_side(given, out) for given in (recipe.before, recipe.after))
    meetings, counts = pair_up(recipe, before, after)
    judges = judge_parents(recipe)
    parents = list({p.digest: p for p in (before.parent, after.parent, *judges)}.values())
    config = recipe.owner_config() | {
        # one run may hold both sides
        "sides": [[side.parent.digest, side.name] for side in (before, after)],
        "judges": [parent.digest for parent in judges],
    }
    asked = sum(not meeting.same for meeting in meetings)
    plan = f"{len(meetings):,} pairs of answers, {asked:,} of them to judge, in both orders"
    console.print(plan, highlight=False)
    if options.dry_run:
        if out.is_dir() and any(out.iterdir()):
            StageDir.open(out, kind=KIND, config=config, claim=False)
        return

    with claimed(out, kind=KIND, config=config, scratch=WORK) as stage:
        if stage.complete:
            shutil.rmtree(out / WORK, ignore_errors=True)
            ensure_report(out)
            console.print(f"{out} is complete, nothing to do", highlight=False)
            return
        judged, identity, ledger = asyncio.run(judge_all(recipe, meetings, out / WORK))
        duels = [duel_of(m, j) for m, j in zip(meetings, judged, strict=True)]
        rows = win_rows(duels, seed=recipe.seed)
        atomic_write_json(out / METRICS, {"rows": rows, "ledger": ledger})
        lines = (row_line(row_of(m, j)) for m, j in zip(meetings, judged, strict=True))
        atomic_write_text(out / DUELS, "".join(lines))
        stage.finish(
            counts=counts,
            files={METRICS: None, DUELS: len(duels)},
            parents=parents,
            seed=recipe.seed,
            stats={"before": recipe.before, "after": recipe.after, "judge": identity},
        )
        shutil.rmtree(out / WORK, ignore_errors=True)
        print_rows(console, rows)
        console.print(f"{write_report(out)}", highlight=False)


def read_side(given: str, out: Path) -> Side:
    """One policy's completions.

    Raises:
        ConfigError: an evaluation of several checkpoints, and none named.
        DataError: neither samples nor a finished evaluation.
    """
    if Path(given).is_dir() and read_artifact(given, verify=False).kind == "samples":
        manifest = read_artifact(given, kind="samples")
        groups = list(read_groups(Path(given)))
        completions = {(c.prompt_id, c.index): c for _, found in groups for c in found}
        path, name, prompts = Path(given), "", {prompt.id: prompt for prompt, _ in groups}
    else:
        side = side_of(given)
        path, name = side.run, side.checkpoint
        manifest = read_artifact(path, kind="evaluation")
        prompts = {record.prompt.id: record.prompt for record in side.records}
        completions = {(r.prompt.id, r.completion.index): r.completion for r in side.records}
    return Side(name, prompts, completions, parent_of(path, relative_to=out, manifest=manifest))


def pair_up(recipe: WinRateConfig, before: Side, after: Side) -> tuple[list[Meeting], Counts]:
    """Completions of the same prompt and index, and what became of the others.

    Raises:
        ConfigError: the sides were asked different things, or have nothing in common.
    """
    for name, prompt in before.prompts.items():
        other = after.prompts.get(name)
        if other is not None and asked_of(other) != asked_of(prompt):
            raise ConfigError(f"prompt {name!r} is another one in {recipe.after}")
    shared = [name for name in before.prompts if name in after.prompts]
    if not shared:
        raise ConfigError(f"{recipe.before} and {recipe.after} share no prompt")
    chosen = set(sorted(shared, key=lambda n: key64(recipe.seed, "duel", n))[: recipe.prompts])
    found: list[Meeting] = []
    dropped = {"one_side": 0, "not_chosen": 0, "failed": 0}
    keys = {**before.completions, **after.completions}
    for name, index in keys:
        old, new = before.completions.get((name, index)), after.completions.get((name, index))
        if old is None or new is None:
            dropped["one_side"] += 1
        elif name not in chosen:
            dropped["not_chosen"] += 1
        elif "failed" in (old.finish, new.finish):
            dropped["failed"] += 1
        else:
            found.append(Meeting(before.prompts[name], index, old, new))
    reasons = {reason: count for reason, count in dropped.items() if count}
    return found, Counts(len(keys), len(found), reasons)


def asked_of(prompt: Prompt) -> tuple[object, ...]:
    """All that a policy is told."""
    return prompt.messages, prompt.tools, prompt.thinking, prompt.reasoning_budget


def judge_parents(recipe: WinRateConfig) -> list[Parent]:
    """The lineage of judges that are artifacts."""
    paths = {m.checkpoint for m in recipe.judge.models if m.checkpoint is not None}
    return [
        parent_of(path, relative_to=Path(recipe.out), manifest=read_artifact(path))
        for path in sorted(paths)
        if (Path(path) / "manifest.json").is_file()
    ]


Both = tuple[Judgement, Judgement] | None  # None: the answers are the same


async def judge_all(
    recipe: WinRateConfig, meetings: Sequence[Meeting], work: Path
) -> tuple[list[Both], dict[str, Any], dict[str, int]]:
    """Both orders of every meeting, all in flight at once; and who judged, and at what cost.

    Raises:
        JudgeError: too many failed.
    """
    seats: list[Seat] = []
    async with contextlib.AsyncExitStack() as stack:
        for model in recipe.judge.models:
            sampler = await stack.enter_async_context(
                opened_sampler(model.backend, checkpoint=model.checkpoint, parts=False)
            )
            template = sampler.template.source if isinstance(sampler, RenderedSampler) else None
            tokens = sampler.encoder.special_tokens if isinstance(sampler, RenderedSampler) else ()
            seats.append(seat_for(model, sampler, template=template, tokens=tokens))
        matches = [m for meeting in meetings if not meeting.same for m in meeting.matches()]
        shared = recipe.judge.cache
        folder = work / "judgements" if shared is None else Path(shared)
        with VerdictCache(folder, any_step=shared is not None) as cache, Progress() as bar:
            task = bar.add_task("judging", total=len(matches) * len(seats))
            judge = GenRmJudge(
                seats, recipe.judge, cache=cache, progress=lambda n: bar.advance(task, n)
            )
            judgements = await judge.judge(matches, seed=recipe.seed)
            failures = failures_of(judgements)
            refuse_failures(len(matches), failures, max_failure_rate=recipe.judge.max_failure_rate)
            judge.keep_failures()
        pairs = iter(zip(judgements[::2], judgements[1::2], strict=True))
        both = [None if meeting.same else next(pairs) for meeting in meetings]
        # seconds differ from run to run: they are said, not kept
        cost = asdict(judge.ledger)
        print(f"{cost['calls']:,} calls in {cost.pop('seconds'):.0f} s")
        return both, dict(judge.identity), cost


def duel_of(meeting: Meeting, both: Both) -> Duel:
    """What became of a meeting."""
    prompt = meeting.prompt
    said = [None if j.verdict is None else preferred(j.verdict) for j in both or ()]
    before_first, after_first = said or (None, None)
    old, new = meeting.before, meeting.after
    return Duel(
        question=f"{prompt.source}/{prompt.task}",
        unit=f"{prompt.source}.{prompt.setting} {'on' if prompt.thinking else 'off'}",
        index=meeting.index,
        before_first=before_first,
        after_first=after_first,
        same=both is None,
        before_tokens=old.reasoning_tokens + old.answer_tokens,
        after_tokens=new.reasoning_tokens + new.answer_tokens,
    )


def row_of(meeting: Meeting, both: Both) -> dict[str, Any]:
    """A meeting to read: both answers, and what the judge said of each order."""
    before, after = meeting.answers
    names = ("before_first", "after_first")
    said = dict(zip(names, (_said(j) for j in both), strict=True)) if both else {}
    return {
        "prompt": meeting.prompt.id,
        "index": meeting.index,
        "asked": meeting.prompt.messages[-1].content,
        "before": before,
        "after": after,
        "outcome": duel_of(meeting, both).outcome,
        **said,
    }


def _said(judgement: Judgement) -> dict[str, Any]:
    verdict = judgement.verdict
    scores = None if verdict is None else [verdict.score_1, verdict.score_2, verdict.ranking]
    return {"verdict": scores, "reason": judgement.reason,
            "texts": [vote.text for vote in judgement.votes]}  # fmt: skip


def print_rows(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """Shares in per cent with 95 % intervals."""
    table = Table("", "pairs", "same", "unjudged", "won", "tied", "lost", "won + tied / 2",
                  "orders disagree", "tokens")  # fmt: skip
    for row in rows:
        tokens = row["tokens"]
        table.add_row(
            row["unit"],
            *(f"{row[name]:,}" for name in ("duels", "same", "unjudged")),
            *(interval(row[name]) for name in ("win", "tie", "loss", "score", "disagree")),
            "" if tokens is None else f"{tokens['a']:.1f} → {tokens['b']:.1f}",
        )
    console.print(table)


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
