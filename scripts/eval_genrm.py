"""Evaluate judges on held-out pairs: pairwise accuracy, position consistency, format, errors.

    python scripts/eval_genrm.py --config recipes/tiny/eval_genrm.yaml
    python scripts/eval_genrm.py --config F out=runs/x pairs=100 --dry-run
    python scripts/eval_genrm.py rescore RUN               # read the records again

Every pair is asked in both orders. Killed and started again, the same command finishes the run and
repeats nothing that was finished.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from posttrain.artifacts import (
    MANIFEST,
    Counts,
    Manifest,
    Parent,
    StageDir,
    atomic_write_json,
    atomic_write_text,
    digest_of,
    parent_of,
    read_artifact,
)
from posttrain.claim import claimed, run_command
from posttrain.config.command import parse_recipe, recipe_parser
from posttrain.config.eval_genrm import EvalGenRmConfig
from posttrain.errors import DataError
from posttrain.evaluation.judged import Judged, judge_cells, judge_differences
from posttrain.evaluation.judged_tables import print_judge_differences, print_judges
from posttrain.report import ensure_report, write_report
from posttrain.rollouts import (
    Completion,
    Prompt,
    completion_from_row,
    metadata_of,
    prompt_from_row,
)
from posttrain.sampling.generate import (
    MADE_BY,
    bind,
    generate,
    prompt_lines,
    row_line,
    tasks_of,
)
from posttrain.sampling.open import opened_sampler
from posttrain.sampling.progress import ProgressBar
from posttrain.sampling.rollout import RolloutLimits
from reward.genrm_training import gold_from, outcome_of, preferred

KIND = "genrm_evaluation"
WORK, RECORDS, METRICS, EXAMPLES = "work", "records", "metrics.json", "examples.jsonl"
TO_READ = 4  # judgements of each kind and checkpoint kept for the report


def main(arguments: list[str]) -> None:
    if arguments and arguments[0] == "rescore":
        rescore(arguments[1:])
    else:
        evaluate(arguments)


def evaluate(arguments: list[str]) -> None:
    """Make what is missing of a run, or show what it would be."""
    recipe, options = parse_recipe(
        recipe_parser("Evaluate judges on held-out pairs."), EvalGenRmConfig, arguments
    )
    console = Console(width=None if sys.stdout.isatty() else 180)
    out = Path(recipe.out)
    data = read_artifact(recipe.data, kind="genrm_data")
    parents = [parent_of(recipe.data, relative_to=out, manifest=data), *judges(recipe)]
    config = recipe.owner_config() | {"parents": [parent.digest for parent in parents]}
    prompts = held_out(recipe, data)

    if options.dry_run:
        if out.is_dir() and any(out.iterdir()):
            StageDir.open(out, kind=KIND, config=config, claim=False)
        asked, names = len(prompts) * recipe.n, ", ".join(recipe.checkpoints)
        console.print(f"{len(prompts):,} prompts × {recipe.n} = {asked:,} for each: {names}")
        console.print(prompts[0].messages[-1].content, markup=False, highlight=False)
        return

    with claimed(out, kind=KIND, config=config, scratch=WORK) as stage:
        if stage.complete:
            shutil.rmtree(out / WORK, ignore_errors=True)
            ensure_report(out)
            console.print(f"{out} is complete, nothing to do", highlight=False)
            return
        atomic_write_text(out / "prompts.jsonl", prompt_lines(prompts))
        total = len(prompts) * recipe.n * len(recipe.checkpoints)
        with ProgressBar(total=total, console=console) as meter:
            asyncio.run(judge_all(recipe, prompts, meter))
        finish(stage, recipe, prompts, parents, data, console)


def held_out(recipe: EvalGenRmConfig, data: Manifest) -> list[Prompt]:
    """The held-out judging prompts, both orders of a pair one behind the other.

    Raises:
        DataError: nothing was held out.
    """
    path = Path(recipe.data) / data.stats["files"]["held_out"]
    with path.open(encoding="utf-8") as lines:
        prompts = [prompt_from_row(json.loads(line)) for line in lines]
    if not prompts:
        raise DataError(f"{path} is empty: build_genrm held nothing out; raise its held_out")
    pairs = [list(group) for _, group in itertools.groupby(prompts, key=lambda p: p.task)]
    return [prompt for pair in pairs[: recipe.pairs] for prompt in pair]


def judges(recipe: EvalGenRmConfig) -> list[Parent]:
    """The lineage of the checkpoints that are artifacts; their files are verified."""
    found: list[Parent] = []
    for path in filter(None, map(recipe.path_of, recipe.checkpoints)):
        if (Path(path) / MANIFEST).is_file():
            manifest = read_artifact(path, kind="checkpoint")
            found.append(parent_of(path, relative_to=Path(recipe.out), manifest=manifest))
    return found


async def judge_all(recipe: EvalGenRmConfig, prompts: Sequence[Prompt], meter: ProgressBar) -> None:
    """Every judgement that is not there yet, checkpoint by checkpoint."""
    out = Path(recipe.out)
    (out / RECORDS).mkdir(exist_ok=True)
    tasks = tasks_of(prompts, lambda _: recipe.n, seed=recipe.seed)
    for name in recipe.checkpoints:
        backend, work = recipe.backend_of(name), out / WORK / name
        async with opened_sampler(backend, checkpoint=recipe.path_of(name), parts=False) as sampler:
            asked = {"prompts": digest_of(prompt_lines(prompts))}
            bind(work, asked | {"sampler": dict(sampler.identity)})
            await generate(
                tasks,
                sampler,
                work=work,
                to=record_path(out, name),
                open_environment=lambda _: None,
                limits=RolloutLimits(recipe.sampling.parameters(), 1, None, 1),
                chunk=recipe.chunk,
                at_once=getattr(backend, "concurrency", 1),
                max_failure_rate=recipe.max_failure_rate,
                progress=meter,
            )


def record_path(out: Path, checkpoint: str) -> Path:
    """Where a checkpoint's judgements are, a completion a line."""
    return out / RECORDS / f"{checkpoint}.jsonl"


Said = tuple[Prompt, Completion, Judged | None]  # None: the backend lost it


def read_judgements(
    out: Path, checkpoints: Sequence[str], prompts: Sequence[Prompt]
) -> dict[str, list[Said]]:
    """Every checkpoint's judgements, held against their golds as they are read."""
    by_id = {prompt.id: prompt for prompt in prompts}
    found: dict[str, list[Said]] = {}
    for name in checkpoints:
        with record_path(out, name).open(encoding="utf-8") as lines:
            completions = [completion_from_row(json.loads(line)) for line in lines]
        asked = [by_id[completion.prompt_id] for completion in completions]
        found[name] = [
            (p, c, judged_of(name, p, c)) for p, c in zip(asked, completions, strict=True)
        ]
    return found


def figures_of(said: Mapping[str, Sequence[Said]], *, seed: int) -> dict[str, Any]:
    """All figures of a run."""
    judged = [one for rows in said.values() for _, _, one in rows if one is not None]
    return {
        "cells": judge_cells(judged, seed=seed),
        "differences": judge_differences(judged, seed=seed),
        "failed": {name: sum(one is None for _, _, one in rows) for name, rows in said.items()},
    }


def finish(
    stage: StageDir,
    recipe: EvalGenRmConfig,
    prompts: Sequence[Prompt],
    parents: Sequence[Parent],
    data: Manifest,
    console: Console,
) -> None:
    """Figures from the records, judgements to read, and the manifest that makes it an artifact."""
    out, names = stage.path, list(recipe.checkpoints)
    said = read_judgements(out, names, prompts)
    metrics = figures_of(said, seed=recipe.seed)
    examples = [example(name, *one) for name in names for one in to_read(said[name])]
    atomic_write_json(out / METRICS, metrics)
    atomic_write_text(out / EXAMPLES, "".join(map(row_line, examples)))
    files: dict[str, int | None] = {
        "prompts.jsonl": len(prompts),
        METRICS: None,
        EXAMPLES: len(examples),
    }
    for name, rows in said.items():
        files[record_path(out, name).relative_to(out).as_posix()] = len(rows)
    asked = len({prompt.task for prompt in prompts})
    left: int = data.stats["held_out"]["pairs"] - asked
    stage.finish(
        counts=Counts(asked + left, asked, {"not_asked": left} if left else {}),
        files=files,
        parents=parents,
        seed=recipe.seed,
        stats={
            "checkpoints": names,
            "samplers": {name: made_by(out, name)["sampler"] for name in names},
            "prompts": digest_of(prompt_lines(prompts)),
            "layout": data.stats["layout"],
        },
    )
    shutil.rmtree(out / WORK, ignore_errors=True)
    print_judges(console, metrics["cells"])
    print_judge_differences(console, metrics["differences"])
    console.print(f"{write_report(out)}", highlight=False)


def rescore(arguments: list[str]) -> None:
    """Read a finished run's judgements again, without a model, and print their figures."""
    parser = argparse.ArgumentParser(description="Figures of a run's records, read again.")
    parser.add_argument("run", type=Path, help="a finished evaluation of judges")
    run: Path = parser.parse_intermixed_args(arguments).run
    manifest = read_artifact(run, kind=KIND)
    with (run / "prompts.jsonl").open(encoding="utf-8") as lines:
        prompts = [prompt_from_row(json.loads(line)) for line in lines]
    said = read_judgements(run, manifest.stats["checkpoints"], prompts)
    metrics = figures_of(said, seed=manifest.seed)
    console = Console(width=None if sys.stdout.isatty() else 180)
    print_judges(console, metrics["cells"])
    print_judge_differences(console, metrics["differences"])
    same = metrics == json.loads((run / METRICS).read_text("utf-8"))
    console.print("as they were" if same else f"not what {run / METRICS} says", highlight=False)


def to_read(said: Sequence[Said]) -> list[Said]:
    """Some that are right, some that are wrong, some without a verdict."""
    kinds: dict[object, list[Said]] = {}
    for one in said:
        judged = one[2]
        kind = None if judged is None else (judged.readable, judged.right)
        kinds.setdefault(kind, []).append(one)
    return [one for rows in kinds.values() for one in rows[:TO_READ]]


def made_by(out: Path, checkpoint: str) -> dict[str, Any]:
    """What a checkpoint's judgements were made with."""
    return json.loads((out / WORK / checkpoint / MADE_BY).read_text("utf-8"))


def judged_of(checkpoint: str, prompt: Prompt, completion: Completion) -> Judged | None:
    """A judgement held against its gold; None where the backend lost it."""
    gold, about = gold_from(prompt), metadata_of(prompt)
    outcome = outcome_of(completion, gold)
    if outcome is None:
        return None
    verdict = outcome.verdict
    errors = [e for e in (outcome.score_error_1, outcome.score_error_2) if e is not None]
    return Judged(
        checkpoint=checkpoint,
        source=prompt.source,
        question=about["question"],
        pair=about["pair"],
        index=completion.index,
        swapped=about["swapped"],
        readable=verdict is not None,
        truncated=completion.truncated,
        reward=outcome.reward,
        prefers=None if verdict is None else preferred(verdict),
        wanted=preferred(gold),
        right=outcome.right_order,
        same_scores=None if verdict is None else verdict.score_1 == verdict.score_2,
        score_error=sum(errors) / len(errors) if errors else None,
        ranking_error=outcome.ranking_error,
        tokens=completion.reasoning_tokens + completion.answer_tokens,
    )


def example(
    checkpoint: str, prompt: Prompt, completion: Completion, judged: Judged | None
) -> dict[str, Any]:
    """A judgement to read, with what was asked and what would have been right."""
    return {
        "checkpoint": checkpoint,
        "prompt": prompt.id,
        "asked": prompt.messages[-1].content,
        "said": completion.steps[-1].text if completion.steps else (completion.error or ""),
        "gold": prompt.gold,
        "reward": None if judged is None else judged.reward,
        "right": None if judged is None else judged.right,
    }


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
