"""Evaluate judges on held-out pairs: every pair in both orders, resumable, figures, manifest.

    run_evaluation(stage, recipe, prompts, read, …)  → out/records, metrics.json, examples.jsonl, …

`read` compares a judgement with its gold: what a judge writes is understood by `reward` alone.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from posttrain.config.eval_genrm import EvalGenRmConfig
from posttrain.errors import DataError
from posttrain.evaluation.judges.metrics import Judged, judge_cells, judge_differences
from posttrain.hashing import digest_of
from posttrain.report import show_finished, show_up_to_date
from posttrain.report.console import print_sections
from posttrain.report.pages.judging import evaluation_figures
from posttrain.rollouts import Completion, Prompt, completion_from_row, prompt_from_row
from posttrain.runs import (
    Counts,
    Manifest,
    Parent,
    Run,
    atomic_write_json,
    atomic_write_text,
    read_artifact,
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

KIND = "genrm_evaluation"
WORK, RECORDS, METRICS, EXAMPLES = "work", "records", "metrics.json", "examples.jsonl"
PROMPTS = "prompts.jsonl"
TO_READ = 4  # judgements of each kind and checkpoint kept for the report
Read = Callable[[str, Prompt, Completion], Judged | None]
"""A checkpoint's name, a prompt and its judgement → what it is worth; None: the backend failed."""
Judgements = Sequence[tuple[Prompt, Completion, Judged | None]]


def held_out(recipe: EvalGenRmConfig, data: Manifest) -> list[Prompt]:
    """The held-out judging prompts, both orders of a pair one after the other.

    Raises:
        DataError: nothing was held out.
    """
    path = Path(recipe.data) / data.stats["files"]["held_out"]
    prompts = _read_prompts(path)
    if not prompts:
        raise DataError(f"{path} is empty: build_genrm held nothing out; raise its held_out")
    pairs = [list(group) for _, group in itertools.groupby(prompts, key=lambda p: p.task)]
    return [prompt for pair in pairs[: recipe.pairs] for prompt in pair]


def run_evaluation(
    stage: Run,
    recipe: EvalGenRmConfig,
    prompts: Sequence[Prompt],
    read: Read,
    *,
    data: Manifest,
    parents: Sequence[Parent],
    console: Console,
) -> None:
    """Make what is missing of the run, then its figures, report and manifest.

    Raises:
        DataError: a backend gave up too often.
    """
    out = stage.path
    if stage.complete:
        shutil.rmtree(out / WORK, ignore_errors=True)
        show_up_to_date(console, out)
        return
    atomic_write_text(out / PROMPTS, prompt_lines(prompts))
    total = len(prompts) * recipe.n * len(recipe.checkpoints)
    with ProgressBar(total=total, console=console) as meter:
        asyncio.run(_judge_all(recipe, prompts, meter))
    _finish(stage, recipe, prompts, read, data, parents, console)


async def _judge_all(
    recipe: EvalGenRmConfig, prompts: Sequence[Prompt], meter: ProgressBar
) -> None:
    """Every judgement that is not there yet, checkpoint by checkpoint."""
    out = Path(recipe.out)
    (out / RECORDS).mkdir(exist_ok=True)
    tasks = tasks_of(prompts, lambda _: recipe.n, seed=recipe.seed)
    for name in recipe.checkpoints:
        backend, work = recipe.backend_of(name), out / WORK / name
        async with opened_sampler(backend, checkpoint=recipe.path_of(name), parts=False) as sampler:
            digest = digest_of(prompt_lines(prompts))
            bind(work, {"prompts": digest, "sampler": dict(sampler.identity)})
            await generate(
                tasks,
                sampler,
                work=work,
                to=_record_path(out, name),
                open_environment=lambda _: None,
                limits=RolloutLimits(recipe.sampling.parameters(), 1, None, 1),
                chunk=recipe.chunk,
                at_once=getattr(backend, "concurrency", 1),
                max_failure_rate=recipe.max_failure_rate,
                progress=meter,
            )


def _record_path(out: Path, checkpoint: str) -> Path:
    """The file of a checkpoint's judgements, a completion a line."""
    return out / RECORDS / f"{checkpoint}.jsonl"


def _read_prompts(path: Path) -> list[Prompt]:
    with path.open(encoding="utf-8") as lines:
        return [prompt_from_row(json.loads(line)) for line in lines]


def _read_judgements(
    out: Path, checkpoints: Sequence[str], prompts: Sequence[Prompt], read: Read
) -> dict[str, Judgements]:
    """Every checkpoint's judgements, compared with their golds."""
    by_id = {prompt.id: prompt for prompt in prompts}
    judgements: dict[str, Judgements] = {}
    for name in checkpoints:
        with _record_path(out, name).open(encoding="utf-8") as lines:
            completions = [completion_from_row(json.loads(line)) for line in lines]
        own = ((by_id[completion.prompt_id], completion) for completion in completions)
        judgements[name] = [(p, c, read(name, p, c)) for p, c in own]
    return judgements


def _metrics_of(judgements: Mapping[str, Judgements], *, seed: int) -> dict[str, Any]:
    """All figures of a run."""
    judged = [one for rows in judgements.values() for _, _, one in rows if one is not None]
    return {
        "cells": judge_cells(judged, seed=seed),
        "differences": judge_differences(judged, seed=seed),
        "failed": {
            name: sum(one is None for _, _, one in rows) for name, rows in judgements.items()
        },
    }


def _finish(
    stage: Run,
    recipe: EvalGenRmConfig,
    prompts: Sequence[Prompt],
    read: Read,
    data: Manifest,
    parents: Sequence[Parent],
    console: Console,
) -> None:
    out, names = stage.path, list(recipe.checkpoints)
    judgements = _read_judgements(out, names, prompts, read)
    metrics = _metrics_of(judgements, seed=recipe.seed)
    examples = [row for name in names for row in _to_read(name, judgements[name])]
    atomic_write_json(out / METRICS, metrics)
    atomic_write_text(out / EXAMPLES, "".join(map(row_line, examples)))
    files: dict[str, int | None] = {
        PROMPTS: len(prompts),
        METRICS: None,
        EXAMPLES: len(examples),
    }
    for name, rows in judgements.items():
        files[_record_path(out, name).relative_to(out).as_posix()] = len(rows)
    pairs = len({prompt.task for prompt in prompts})
    left: int = data.stats["held_out"]["pairs"] - pairs
    stage.finish(
        counts=Counts(pairs + left, pairs, {"not_selected": left} if left else {}),
        files=files,
        parents=parents,
        seed=recipe.seed,
        stats={
            "checkpoints": names,
            "samplers": {
                name: json.loads((out / WORK / name / MADE_BY).read_text("utf-8"))["sampler"]
                for name in names
            },
            "prompts": digest_of(prompt_lines(prompts)),
            "layout": data.stats["layout"],
        },
    )
    shutil.rmtree(out / WORK, ignore_errors=True)
    show_finished(console, out)


def rescore(run: Path, read: Read, console: Console) -> None:
    """Read a finished run's judgements again, without a model, and print their figures."""
    manifest = read_artifact(run, kind=KIND)
    prompts = _read_prompts(run / PROMPTS)
    judgements = _read_judgements(run, manifest.stats["checkpoints"], prompts, read)
    metrics = _metrics_of(judgements, seed=manifest.seed)
    print_sections(console, evaluation_figures(metrics))
    same = metrics == json.loads((run / METRICS).read_text("utf-8"))
    console.print("unchanged" if same else f"other figures than {run / METRICS}", highlight=False)


def _to_read(checkpoint: str, judgements: Judgements) -> list[dict[str, Any]]:
    """Some that are right, some that are wrong, some without a verdict; with prompt and gold."""
    kinds: dict[object, list[dict[str, Any]]] = {}
    for prompt, completion, judged in judgements:
        kind = None if judged is None else (judged.readable, judged.right)
        kinds.setdefault(kind, []).append(
            {
                "checkpoint": checkpoint,
                "prompt": prompt.id,
                "request": prompt.messages[-1].content,
                "answer": completion.steps[-1].text
                if completion.steps
                else (completion.error or ""),
                "gold": prompt.gold,
                "reward": None if judged is None else judged.reward,
                "right": None if judged is None else judged.right,
            }
        )
    return [row for rows in kinds.values() for row in rows[:TO_READ]]
