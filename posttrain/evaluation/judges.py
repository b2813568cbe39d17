"""Evaluate judge models on held-out pairs, each in both orders; resumable, with intervals.

Pairs of one question, and both orders of a pair, are one cluster of the intervals.
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
from posttrain.evaluation.intervals import Values, mean, rate
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
WORK = "work"
RECORDS = "records"
METRICS = "metrics.json"
EXAMPLES = "examples.jsonl"
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
# position that holds, in the swapped order, the answer of a position; 0: neither is preferred
_SWAPPED_POSITION = {0: 0, 1: 2, 2: 1}


@dataclass(frozen=True, slots=True)
class Judged:
    """Judgement of a pair of answers in one order, as read.

    Attributes:
        question: name of the question, shared by all pairs that answer it.
        index: number of the sample; sample i of one order is paired with sample i of the other.
        swapped: the second answer of the pair stands first.
        prefers: preferred position: 1, 2, or 0 for neither; None without a verdict.
        figures: values of those `RATES` and `MEANS` that a single judgement has; None where a
            figure does not apply.
    """

    checkpoint: str
    source: str
    question: str
    pair: str
    index: int
    swapped: bool
    prefers: int | None
    figures: Mapping[str, float | None]


def _question_values(judged: Sequence[Judged]) -> dict[str, Values]:
    """Values of each figure, each with its question; figures of None are left out."""
    values: dict[str, list[tuple[float, str]]] = {name: [] for name in (*RATES, *MEANS)}
    for judgement in judged:
        for name, value in judgement.figures.items():
            if value is not None:
                values[name].append((float(value), judgement.question))
    # two figures need both orders of a pair, and count the pair once
    swapped_by_pair = {
        (judgement.pair, judgement.index): judgement for judgement in judged if judgement.swapped
    }
    for judgement in judged:
        swapped = swapped_by_pair.get((judgement.pair, judgement.index))
        if judgement.swapped or swapped is None:
            continue
        accuracies = [
            judgement.figures["pairwise_accuracy"],
            swapped.figures["pairwise_accuracy"],
        ]
        if None not in accuracies:
            right_in_both = float(accuracies == [1, 1])
            values["right_in_both_orders"].append((right_in_both, judgement.question))
        if judgement.prefers is not None and swapped.prefers is not None:
            same_answer = judgement.prefers == _SWAPPED_POSITION[swapped.prefers]
            values["position_consistency"].append((float(same_answer), judgement.question))
    return {**values}


def judge_cells(judged: Sequence[Judged]) -> list[Row]:
    """Figures of each checkpoint and source, and over all sources where there are several.

    Returns:
        Rows of counts, and of each figure with its interval; None where a figure has no value.
    """
    rows: list[Row] = []
    for checkpoint in dict.fromkeys(judgement.checkpoint for judgement in judged):
        for source, source_judgements in _by_source(judged, checkpoint):
            values = _question_values(source_judgements)
            figures = {name: rate(values[name]) for name in RATES}
            for name in MEANS:
                figures[name] = mean(values[name])
            row: Row = {
                "checkpoint": checkpoint,
                "source": source,
                "pairs": len({judgement.pair for judgement in source_judgements}),
                "judgements": len(source_judgements),
            }
            for name, figure in figures.items():
                row[name] = figure and asdict(figure)
            rows.append(row)
    return rows


def alert_rows(judged: Sequence[Judged]) -> list[Row]:
    """Alerts about judge models whose judgements are often of no use.

    A judge model has a row where more than a third of its judgements are truncated, or hold no
    verdict in the format that the prompt asks for.
    """
    rows: list[Row] = []
    for checkpoint in dict.fromkeys(judgement.checkpoint for judgement in judged):
        figures = [judgement.figures for judgement in judged if judgement.checkpoint == checkpoint]
        finished_figures = [row for row in figures if not row["truncated"]]
        alert_row = alert(
            checkpoint,
            completions=len(figures),
            truncated=len(figures) - len(finished_figures),
            unformatted=sum(not row["format"] for row in finished_figures),
        )
        if alert_row is not None:
            rows.append(alert_row)
    return rows


def judge_differences(judged: Sequence[Judged]) -> list[Row]:
    """Paired differences of each further checkpoint from the first, for each source.

    A figure is compared over the questions where it applies to both checkpoints.
    """
    names = list(dict.fromkeys(judgement.checkpoint for judgement in judged))
    rows: list[Row] = []
    for name in names[1:]:
        compared_by_source = dict(_by_source(judged, name))
        for source, baseline in _by_source(judged, names[0]):
            if source not in compared_by_source:
                continue
            row: Row = {"a": names[0], "b": name, "source": source}
            a = _question_values(baseline)
            b = _question_values(compared_by_source[source])
            row |= differences(a, b, RATES, rate_difference, least=2)
            row |= differences(a, b, MEANS, length_difference, least=2)
            rows.append(row)
    return rows


def _by_source(judged: Sequence[Judged], checkpoint: str) -> list[tuple[str, list[Judged]]]:
    """Judgements of a checkpoint by source, and all of them last where there are several."""
    judgements = [judgement for judgement in judged if judgement.checkpoint == checkpoint]
    by_source: dict[str, list[Judged]] = {}
    for judgement in judgements:
        by_source.setdefault(judgement.source, []).append(judgement)
    cells = list(by_source.items())
    return [*cells, (ALL, judgements)] if len(cells) > 1 else cells


Read = Callable[[str, Prompt, Completion], Judged | None]
"""Checkpoint's name, prompt and completion → judgement as read; None: the backend failed."""
Judgements = Sequence[tuple[Prompt, Completion, Judged | None]]


def held_out(recipe: EvalGenRmConfig, data: Manifest) -> list[Prompt]:
    """Held-out judging prompts of the recipe's data, both orders of a pair one after the other.

    Raises:
        DataError: the data holds nothing out.
    """
    path = Path(recipe.data) / data.stats["files"]["held_out"]
    prompts = read_prompts(path)
    if not prompts:
        raise DataError(f"{path} is empty: build_genrm held nothing out; raise its held_out")
    pairs = [list(group) for _, group in itertools.groupby(prompts, key=lambda p: p.task)]
    return [prompt for pair in pairs[: recipe.pairs] for prompt in pair]


async def time_lines(recipe: EvalGenRmConfig, prompts: Sequence[Prompt]) -> list[str]:
    """Longest time of each checkpoint's judgements, a line each, as `sampling_time` words it."""
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
    """Sample the missing judgements, then write the figures and finish the run.

    Args:
        prompts: of `held_out`.
        read: reads a completion as a judgement.
        data: manifest of the judging data.

    Raises:
        DataError: a backend gave up too often.
    """
    out = stage.path
    atomic_write_text(out / PROMPTS, prompt_lines(prompts))
    total = len(prompts) * recipe.n * len(recipe.checkpoints)
    most_tokens = recipe.sampling.max_tokens
    with ProgressBar(total=total, most_tokens=most_tokens, console=console) as progress:
        samplers = asyncio.run(_sample_judgements(recipe, prompts, progress))
    prompts_by_id = {prompt.id: prompt for prompt in prompts}
    judgements: dict[str, Judgements] = {}
    judged: list[Judged] = []
    failed: dict[str, int] = {}
    examples: list[Row] = []
    for name in recipe.checkpoints:
        rows: list[tuple[Prompt, Completion, Judged | None]] = []
        for completion in read_completions(out / RECORDS / f"{name}.jsonl"):
            prompt = prompts_by_id[completion.prompt_id]
            rows.append((prompt, completion, read(name, prompt, completion)))
        verdicts = [judgement for _, _, judgement in rows if judgement is not None]
        judgements[name] = rows
        judged += verdicts
        failed[name] = len(rows) - len(verdicts)
        examples += _examples(name, rows)
    metrics: Row = {}
    if alerts := alert_rows(judged):
        metrics["alerts"] = alerts
    metrics["cells"] = judge_cells(judged)
    metrics["differences"] = judge_differences(judged)
    metrics["failed"] = failed
    atomic_write_json(out / METRICS, metrics)
    atomic_write_text(out / EXAMPLES, "".join(map(row_line, examples)))
    files: dict[str, int | None] = {PROMPTS: len(prompts), METRICS: None, EXAMPLES: len(examples)}
    for name, checkpoint_rows in judgements.items():
        files[f"{RECORDS}/{name}.jsonl"] = len(checkpoint_rows)
    pairs = len({prompt.task for prompt in prompts})
    not_selected: int = data.stats["held_out"]["pairs"] - pairs
    dropped = {"not_selected": not_selected} if not_selected else {}
    stage.finish(
        counts=Counts(pairs + not_selected, pairs, dropped),
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


async def _sample_judgements(
    recipe: EvalGenRmConfig, prompts: Sequence[Prompt], progress: ProgressBar
) -> dict[str, Row]:
    """Sample each checkpoint's judgements into its file. Returns the identity of each sampler."""
    out = Path(recipe.out)
    (out / RECORDS).mkdir(exist_ok=True)
    prompts_digest = digest_of(prompt_lines(prompts))
    tasks = tasks_of(prompts, lambda _: recipe.n, seed=recipe.seed)
    samplers: dict[str, Row] = {}
    for name in recipe.checkpoints:
        backend = recipe.backend_of(name)
        work = out / WORK / name
        async with opened_sampler(backend, checkpoint=recipe.path_of(name), parts=False) as sampler:
            samplers[name] = dict(sampler.identity)
            # judgements of another sampler or of other prompts must not be mixed in
            bind(work, {"prompts": prompts_digest, "sampler": samplers[name]})
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


def _examples(checkpoint: str, judgements: Judgements) -> list[Row]:
    """Judgements to read in the report: right, wrong, and without a verdict; with their gold."""
    rows_by_kind: dict[object, list[Row]] = {}
    for prompt, completion, judgement in judgements:
        figures = {} if judgement is None else judgement.figures
        right = figures.get("pairwise_accuracy")
        answer = completion.steps[-1].text if completion.steps else completion.error or ""
        row: Row = {
            "checkpoint": checkpoint,
            "prompt": prompt.id,
            "request": prompt.messages[-1].content,
            "answer": answer,
            "gold": prompt.gold,
            "reward": figures.get("reward"),
            "right": right,
        }
        kind = None if judgement is None else (figures["format"], right)
        rows_by_kind.setdefault(kind, []).append(row)
    return [row for rows in rows_by_kind.values() for row in rows[:TO_READ]]
