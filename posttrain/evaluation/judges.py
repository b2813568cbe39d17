"""Evaluate judges on held-out pairs: every pair in both orders, resumable, with intervals. Pairs of
one question, and both orders of a pair, are one cluster.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from posttrain.config.eval import EvalGenRmConfig
from posttrain.errors import DataError
from posttrain.evaluation.compare import differences, length_difference, rate_difference
from posttrain.evaluation.intervals import Values, length, rate
from posttrain.hashing import digest_of
from posttrain.jsontext import row_line
from posttrain.rollouts import Completion, Prompt, RolloutLimits
from posttrain.runs import (
    Counts,
    Manifest,
    Parent,
    Run,
    atomic_write_json,
    atomic_write_text,
)
from posttrain.sampling.alerts import alert
from posttrain.sampling.generate import (
    bind,
    generate,
    prompt_lines,
    read_completions,
    read_prompts,
    rollouts_at_once,
    sampling_time,
    tasks_of,
)
from posttrain.sampling.open import opened_sampler
from posttrain.sampling.progress import ProgressBar

KIND = "genrm_evaluation"
WORK, RECORDS, METRICS, EXAMPLES = "work", "records", "metrics.json", "examples.jsonl"
PROMPTS = "prompts.jsonl"
TO_READ = 4  # judgements of each kind and checkpoint kept for the report
Row = dict[str, Any]
ALL = "all"
RATES = (
    "pairwise_accuracy",
    "pairwise_accuracy_readable",
    "right_in_both_orders",
    "position_consistency",
    "format",
    "prefers_first",
    "prefers_neither",
    "same_scores",
    "truncated",
)
MEANS = ("reward", "score_error", "ranking_error", "tokens")


@dataclass(frozen=True, slots=True)
class Judged:
    """One judgement of one pair in one order.

    Attributes:
        question: shared by all pairs that answer the same.
        index: which of the samples; sample i in the one order stands beside sample i in the other.
        prefers: the position that it prefers: 1, 2, or 0 for neither; None without a verdict.
        figures: those of `RATES` and `MEANS` that one judgement has; None where one does not apply.
    """

    checkpoint: str
    source: str
    question: str
    pair: str
    index: int
    swapped: bool
    prefers: int | None
    figures: Mapping[str, float | None]


def _values(judged: Sequence[Judged]) -> dict[str, Values]:
    """The values of every figure, each with its question; those of None are left out."""
    values: dict[str, list[tuple[float, str]]] = {name: [] for name in (*RATES, *MEANS)}
    for one in judged:
        for name, value in one.figures.items():
            if value is not None:
                values[name].append((float(value), one.question))
    swapped = {(one.pair, one.index): one for one in judged if one.swapped}
    for one in judged:
        other = swapped.get((one.pair, one.index))
        if one.swapped or other is None:
            continue
        right = [side.figures["pairwise_accuracy"] for side in (one, other)]
        if None not in right:
            values["right_in_both_orders"].append((float(right == [1, 1]), one.question))
        if one.prefers is not None and other.prefers is not None:
            same = one.prefers == {0: 0, 1: 2, 2: 1}[other.prefers]
            values["position_consistency"].append((float(same), one.question))
    return {**values}


def judge_cells(judged: Sequence[Judged], *, seed: int) -> list[Row]:
    """A row a checkpoint × source, and one over all sources where there are several; `seed` is of
    the bootstrap of means."""
    rows: list[Row] = []
    for checkpoint in dict.fromkeys(one.checkpoint for one in judged):
        for source, own in _by_source(judged, checkpoint):
            values = _values(own)
            figures = {name: rate(values[name]) for name in RATES}
            for name in MEANS:
                spread = length(values[name], seed=seed)
                figures[name] = spread and spread.mean
            rows.append({
                "checkpoint": checkpoint,
                "source": source,
                "pairs": len({one.pair for one in own}),
                "judgements": len(own),
                **{name: figure and asdict(figure) for name, figure in figures.items()},
            })  # fmt: skip
    return rows


def alert_rows(judged: Sequence[Judged]) -> list[Row]:
    """What is to be known first: judges of whose judgements more than a third are truncated or hold
    no verdict in the format that they are asked for."""
    rows: list[Row] = []
    for checkpoint in dict.fromkeys(one.checkpoint for one in judged):
        own = [one.figures for one in judged if one.checkpoint == checkpoint]
        ended = [figures for figures in own if not figures["truncated"]]
        found = alert(
            checkpoint,
            completions=len(own),
            truncated=len(own) - len(ended),
            unformatted=sum(not figures["format"] for figures in ended),
        )
        rows += [] if found is None else [found]
    return rows


def judge_differences(judged: Sequence[Judged]) -> list[Row]:
    """Each other checkpoint against the first, on questions where a figure applies to both."""
    names = list(dict.fromkeys(one.checkpoint for one in judged))
    rows: list[Row] = []
    for name in names[1:]:
        theirs = dict(_by_source(judged, name))
        for source, ours in _by_source(judged, names[0]):
            if source in theirs:
                row: Row = {"a": names[0], "b": name, "source": source}
                a, b = _values(ours), _values(theirs[source])
                for figures, difference in ((RATES, rate_difference), (MEANS, length_difference)):
                    row |= differences(a, b, figures, difference, least=2)
                rows.append(row)
    return rows


def _by_source(judged: Sequence[Judged], checkpoint: str) -> list[tuple[str, list[Judged]]]:
    own = [one for one in judged if one.checkpoint == checkpoint]
    names = list(dict.fromkeys(one.source for one in own))
    cells = [(name, [one for one in own if one.source == name]) for name in names]
    return [*cells, (ALL, own)] if len(names) > 1 else cells


Read = Callable[[str, Prompt, Completion], Judged | None]
"""A checkpoint's name, a prompt and its judgement → what it is worth; None: the backend failed."""
Judgements = Sequence[tuple[Prompt, Completion, Judged | None]]


def held_out(recipe: EvalGenRmConfig, data: Manifest) -> list[Prompt]:
    """The held-out judging prompts, both orders of a pair one after the other; DataError where
    there are none."""
    path = Path(recipe.data) / data.stats["files"]["held_out"]
    prompts = read_prompts(path)
    if not prompts:
        raise DataError(f"{path} is empty: build_genrm held nothing out; raise its held_out")
    pairs = [list(group) for _, group in itertools.groupby(prompts, key=lambda p: p.task)]
    return [prompt for pair in pairs[: recipe.pairs] for prompt in pair]


async def time_lines(recipe: EvalGenRmConfig, prompts: Sequence[Prompt]) -> list[str]:
    """How long each checkpoint's judgements take at most, as `sampling_time`."""
    lines: list[str] = []
    for name in recipe.checkpoints:
        backend = recipe.backend_of(name)
        completions = len(prompts) * recipe.n
        needed = await sampling_time(
            backend,
            recipe.path_of(name),
            prompts,
            parameters=recipe.parameters_of(name),
            tokens=completions * recipe.sampling.max_tokens,
            rows=min(getattr(backend, "batch_size", 1), recipe.chunk, completions),
        )
        lines.append(f"time of {name}: {needed}")
    return lines


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
    """Make what is missing of the run, then its figures and manifest; DataError where a backend
    gave up too often."""
    out = stage.path
    atomic_write_text(out / PROMPTS, prompt_lines(prompts))
    total = len(prompts) * recipe.n * len(recipe.checkpoints)
    most_tokens = recipe.sampling.max_tokens
    with ProgressBar(total=total, most_tokens=most_tokens, console=console) as progress:
        samplers = asyncio.run(_judge_all(recipe, prompts, progress))
    by_id = {prompt.id: prompt for prompt in prompts}
    judgements: dict[str, Judgements] = {}
    for name in recipe.checkpoints:
        completions = read_completions(out / RECORDS / f"{name}.jsonl")
        own = ((by_id[completion.prompt_id], completion) for completion in completions)
        judgements[name] = [(p, c, read(name, p, c)) for p, c in own]
    judged = [one for rows in judgements.values() for *_, one in rows if one is not None]
    alerts = alert_rows(judged)
    metrics = {
        **({"alerts": alerts} if alerts else {}),
        "cells": judge_cells(judged, seed=recipe.seed),
        "differences": judge_differences(judged),
        "failed": {name: sum(one is None for *_, one in own) for name, own in judgements.items()},
    }
    examples = [row for name, own in judgements.items() for row in _to_read(name, own)]
    atomic_write_json(out / METRICS, metrics)
    atomic_write_text(out / EXAMPLES, "".join(map(row_line, examples)))
    files: dict[str, int | None] = {PROMPTS: len(prompts), METRICS: None, EXAMPLES: len(examples)}
    files |= {f"{RECORDS}/{name}.jsonl": len(rows) for name, rows in judgements.items()}
    pairs = len({prompt.task for prompt in prompts})
    left: int = data.stats["held_out"]["pairs"] - pairs
    stage.finish(
        counts=Counts(pairs + left, pairs, {"not_selected": left} if left else {}),
        files=files,
        parents=parents,
        seed=recipe.seed,
        stats={
            "checkpoints": list(judgements),
            "samplers": samplers,
            "prompts": digest_of(prompt_lines(prompts)),
            "layout": data.stats["layout"],
        },
    )


async def _judge_all(
    recipe: EvalGenRmConfig, prompts: Sequence[Prompt], progress: ProgressBar
) -> dict[str, Row]:
    """Every checkpoint's judgements, into its file; returns what identifies the samplers."""
    out, digest, samplers = Path(recipe.out), digest_of(prompt_lines(prompts)), dict[str, Row]()
    (out / RECORDS).mkdir(exist_ok=True)
    tasks = tasks_of(prompts, lambda _: recipe.n, seed=recipe.seed)
    for name in recipe.checkpoints:
        backend, work = recipe.backend_of(name), out / WORK / name
        async with opened_sampler(backend, checkpoint=recipe.path_of(name), parts=False) as sampler:
            samplers[name] = dict(sampler.identity)
            bind(work, {"prompts": digest, "sampler": samplers[name]})
            await generate(
                tasks,
                sampler,
                work=work,
                to=out / RECORDS / f"{name}.jsonl",
                open_environment=lambda _: None,
                limits=RolloutLimits(recipe.parameters_of(name), 1, None, 1),
                chunk=recipe.chunk,
                at_once=rollouts_at_once(backend),
                max_failure_rate=recipe.max_failure_rate,
                progress=progress,
            )
    return samplers


def _to_read(checkpoint: str, judgements: Judgements) -> list[dict[str, Any]]:
    """Some that are right, some that are wrong, some without a verdict; with prompt and gold."""
    kinds: dict[object, list[dict[str, Any]]] = {}
    for prompt, completion, judged in judgements:
        figures = {} if judged is None else judged.figures
        right = figures.get("pairwise_accuracy")
        row: Row = {
            "checkpoint": checkpoint,
            "prompt": prompt.id,
            "request": prompt.messages[-1].content,
            "answer": completion.steps[-1].text if completion.steps else completion.error or "",
            "gold": prompt.gold,
            "reward": figures.get("reward"),
            "right": right,
        }
        kinds.setdefault(judged and (figures["format"], right), []).append(row)
    return [row for rows in kinds.values() for row in rows[:TO_READ]]
