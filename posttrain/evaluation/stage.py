"""Generate, grade, measure: a recipe's checkpoints → records → the `evaluation` artifact."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from posttrain.config.eval import EvalConfig, Price, RecoveryConfig
from posttrain.errors import DataError, PosttrainError
from posttrain.evaluation.agentic import agentic_rows
from posttrain.evaluation.compare import paired_rows
from posttrain.evaluation.cost import (
    estimate_rows,
    most_tokens,
    rows_at_once,
    times_path,
    write_costs,
)
from posttrain.evaluation.export import EXPORT, write_exports
from posttrain.evaluation.journal import TimedSampler, sort_lines
from posttrain.evaluation.metrics import alert_rows, cell_rows, examples
from posttrain.evaluation.recovery import recovery_rows
from posttrain.evaluation.run import (
    EXAMPLES,
    INSPECT,
    INSPECT_LOGS,
    JOURNALS,
    LOCK,
    METRICS,
    PACKAGES,
    RECORDS,
    WORK,
    Grade,
    Lock,
    Record,
    Unit,
    bind_lock,
    bind_weights,
    by_unit,
    grade_completions,
    journal_path,
    read_lock,
    read_run,
    record_path,
    records_of,
    write_records,
)
from posttrain.evaluation.sensitivity import sensitivity_rows
from posttrain.evaluation.variants import variant_rows
from posttrain.hashing import digest_of
from posttrain.jsontext import printable
from posttrain.rollouts import prompt_to_row
from posttrain.runs import REPORT, Counts, Manifest, Parent, Run, atomic_write_json
from posttrain.sampling.generate import generate, read_completions, rollouts_at_once, tasks_of
from posttrain.sampling.measure import (
    MEASURING_SECONDS,
    SamplingSpeed,
    measure_speed,
    why_not_measured,
)
from posttrain.sampling.open import opened_sampler, refuse_prompts_beyond_context
from posttrain.sampling.progress import ProgressBar
from posttrain.sampling.rollout import OpenEnvironment
from posttrain.sampling.sampler import Sampler
from posttrain.tokens.renderer import PromptRenderer, message_text
from posttrain.tokens.tokenizer import encoder_of
from posttrain.versions import package_versions

Records = Mapping[str, Sequence[Record]]
_TRIED = 8  # samples of a task of inspect that a dry run calls; even, for reasoning on and off


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """What an evaluation is made from, before a model is loaded.

    Attributes:
        renderers: of each checkpoint; None where a server renders.
        files: that prompts are made from, with digests.
        counts: of prompts.
        stats: of sources and inputs, for the manifest.
        judge: what decides the labels of judged tasks.
        scripted: the sampler of a scripted policy, by its name.
    """

    units: Sequence[Unit]
    renderers: Mapping[str, PromptRenderer | None]
    open_environment: OpenEnvironment
    grade: Grade
    files: Mapping[str, str | None]
    parents: Sequence[Parent]
    counts: Counts
    stats: Mapping[str, Any]
    judge: Mapping[str, Any] | None = None
    scripted: Callable[[str], Sampler] | None = None


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """What a run would take.

    Attributes:
        rows: calls and tokens of each unit on each checkpoint, as `estimate_rows` counts them.
        speeds: how fast each checkpoint samples, in words.
    """

    rows: list[dict[str, Any]]
    speeds: dict[str, str]


def show_counts(console: Console, recipe: EvalConfig, plan: EvaluationPlan) -> None:
    """Print how many rows each source gives and how many completions are sampled.

    Raises:
        ConfigError: a prompt and its longest completion do not fit a checkpoint's context.
    """
    for name, renderer in plan.renderers.items():
        for unit in plan.units:
            most = recipe.sampling_of(unit.setting).max_tokens
            refuse_prompts_beyond_context(
                recipe.backend_of(name), unit.prompts, renderer, max_tokens=most
            )
    for name, source in plan.stats["sources"].items():
        console.print(f"{name}: {source['rows_in']:,} rows, {source['kept']:,} kept")
        for reason, count in source["dropped"].items():
            console.print(f"  {reason} {count:,} {source['examples'].get(reason, '')}")
    names = ", ".join(recipe.checkpoints)
    for unit in plan.units:
        console.print(f"{unit.name}: {len(unit.prompts):,} prompts × {unit.samples} × ({names})")


def called_units(plan: EvaluationPlan, console: Console) -> list[Unit]:
    """The units with the prompts that models are sent.

    The solver of a task of inspect writes these. Its first prompts are solved and repeated to the
    number of samples, since solving all would take as long as an evaluation.
    """
    return [_as_called(unit, plan, console) for unit in plan.units]


def estimate(recipe: EvalConfig, plan: EvaluationPlan, units: Sequence[Unit]) -> RunEstimate:
    """Calls, tokens and seconds of the run; seconds from a measured slice of it.

    Raises:
        ConfigError, DataError: as `measure_speeds`.
    """
    speeds = asyncio.run(measure_speeds(recipe, plan, units))
    rows = estimate_rows(recipe, units, plan.renderers, speeds)
    in_words: dict[str, str] = {}
    for name, speed in speeds.items():
        if isinstance(speed, str):
            in_words[name] = f"not measured: {speed}"
        else:
            most_rows = max(rows_at_once(recipe, name, unit) for unit in units)
            in_words[name] = speed.text(most_rows)
    return RunEstimate(rows, in_words)


def show_first_prompts(console: Console, plan: EvaluationPlan, units: Sequence[Unit]) -> None:
    """Print each unit's first prompt as each checkpoint is given it; equal prompts only once."""
    for unit in units:
        prompt = unit.prompts[0]
        shown = None
        for name, renderer in plan.renderers.items():
            text = message_text(prompt) if renderer is None else renderer.text(prompt)
            if text != shown:
                console.print(f"\nfirst prompt of {unit.name} for {name}:")
                console.print(printable(text), soft_wrap=True)
            shown = text


def _as_called(unit: Unit, plan: EvaluationPlan, console: Console) -> Unit:
    """The unit; if it is a task of inspect, with the calls of its solver as its prompts."""
    if unit.prompts[0].grader != INSPECT:
        return unit
    from posttrain.evaluation.inspect_adapter.tasks import first_calls

    try:
        calls = asyncio.run(first_calls(plan.stats["inspect"][unit.name], unit.prompts[:_TRIED]))
    except PosttrainError as error:
        console.print(f"{unit.name}: counted without what its solver adds, which failed: {error}")
        return unit
    prompts = itertools.islice(itertools.cycle(calls), len(unit.prompts))
    return replace(unit, prompts=tuple(prompts))


async def measure_speeds(
    recipe: EvalConfig, plan: EvaluationPlan, units: Sequence[Unit]
) -> dict[str, SamplingSpeed | str]:
    """How fast each checkpoint samples, from a slice of the largest unit; or why that is unknown.

    Raises:
        ConfigError, DataError: a model cannot be sampled, as the real run would find out.
    """
    reasons = {
        name: why_not_measured(recipe.backend_of(name), recipe.path_of(name))
        for name in recipe.checkpoints
    }
    opened = sum(reason is None for reason in reasons.values())
    unit = max(units, key=lambda unit: unit.size)
    speeds: dict[str, SamplingSpeed | str] = {}
    for name, reason in reasons.items():
        if reason is not None:
            speeds[name] = reason
            continue
        async with opened_sampler(
            recipe.backend_of(name), checkpoint=recipe.path_of(name), scripted=plan.scripted
        ) as sampler:
            speed = measure_speed(
                sampler,
                unit.prompts,
                parameters=recipe.sampling_of(unit.setting, name).parameters(),
                rows=rows_at_once(recipe, name, unit),
                limit=MEASURING_SECONDS / opened,
            )
        speeds[name] = speed or "the sampler is no model in this process"
    return speeds


def make_evaluation(run: Run, recipe: EvalConfig, plan: EvaluationPlan, console: Console) -> None:
    """Make what is missing of the run, then its figures and manifest.

    Raises:
        ConfigError: the run was begun with something else.
        DataError: a backend gave up too often.
    """
    out = run.path
    bind_lock(out, _lock_of(recipe, plan, run.config_digest))
    total = len(recipe.checkpoints) * sum(unit.size for unit in plan.units)
    try:
        most = most_tokens(recipe, plan.units)
        with ProgressBar(total=total, most_tokens=most, console=console) as progress:
            asyncio.run(make_records(recipe, plan, progress))
    except PosttrainError:
        if not any((out / folder).is_dir() for folder in (RECORDS, WORK)):
            (out / LOCK).unlink()  # nothing is bound yet: a corrected recipe may have the directory
        raise
    records = records_of(out, recipe.checkpoints, [unit.name for unit in plan.units])
    manifest = finish_run(
        run,
        records,
        counts=plan.counts,
        parents=plan.parents,
        seed=recipe.seed,
        stats=plan.stats,
        recovery=recipe.recovery,
    )
    write_tables(out, manifest, records, recipe.prices)
    _write_inspect_logs(out, recipe)


def refresh_evaluation(run: Run, recipe: EvalConfig, plan: EvaluationPlan) -> None:
    """Write the tables of a finished run again, since prices may have changed.

    Its page shows them: it is removed, to be written again.

    Raises:
        ConfigError: the run was made with something else.
    """
    out = run.path
    bind_lock(out, _lock_of(recipe, plan, run.config_digest), finished=True)
    write_tables(out, *read_run(out), recipe.prices)
    (out / REPORT).unlink(missing_ok=True)
    _write_inspect_logs(out, recipe)


def _write_inspect_logs(out: Path, recipe: EvalConfig) -> None:
    """Write logs for the viewer of inspect, where the recipe wants them and none are there."""
    if recipe.inspect_logs and not (out / INSPECT_LOGS).is_dir():
        from posttrain.evaluation.inspect_adapter.log import write_logs

        write_logs(out, out / INSPECT_LOGS)


def _lock_of(recipe: EvalConfig, plan: EvaluationPlan, config_digest: str) -> Lock:
    """What the run's figures depend on, before any checkpoint is opened."""
    rendering: dict[str, dict[str, str] | None] = {}
    for name, renderer in plan.renderers.items():
        rendering[name] = renderer and {
            "template": renderer.template.digest,
            "tokenizer": encoder_of(renderer.tokenizer).digest,
        }
    artifacts = sorted({parent.digest for parent in plan.parents})
    choices = {name: recipe.choice_of(name).chosen() for name in recipe.checkpoints}
    return {
        "config": config_digest,
        # with their golds and graders, in order
        "prompts": {u.name: digest_of([prompt_to_row(p) for p in u.prompts]) for u in plan.units},
        "sampling": {
            # the number of tools that run at a time changes no sample
            **recipe.sampling.model_dump(mode="json", exclude={"tools_at_once"}),
            "samples": {unit.name: unit.samples for unit in plan.units},
            "settings": {s.name: s.sampling for s in recipe.settings if s.sampling},
            "seed": recipe.seed,
            # of checkpoints that differ in it
            **({"checkpoints": choices} if any(choices.values()) else {}),
        },
        "judge": plan.judge,
        "rendering": rendering,
        "data": {"files": dict(plan.files), "artifacts": artifacts},
        "versions": package_versions(PACKAGES),
        "weights": {},
    }


async def make_records(recipe: EvalConfig, plan: EvaluationPlan, progress: ProgressBar) -> None:
    """Generate and grade every unit without records, checkpoint by checkpoint."""
    out = Path(recipe.out)
    for name in recipe.checkpoints:
        missing = [u for u in plan.units if not record_path(out, name, u.name).is_file()]
        progress.add(restored=sum(unit.size for unit in plan.units if unit not in missing))
        if not missing:
            continue
        backend, path = recipe.backend_of(name), recipe.path_of(name)
        async with opened_sampler(backend, checkpoint=path, scripted=plan.scripted) as sampler:
            bind_weights(out, name, sampler.identity)
            for unit in missing:
                timed = TimedSampler(sampler, times_path(out, name, unit.name))
                if unit.prompts[0].grader == INSPECT:
                    records = await _inspect_records(recipe, plan, name, unit, timed)
                    progress.add(restored=len(records))
                else:
                    records = await _unit_records(recipe, plan, name, unit, timed, progress)
                write_records(record_path(out, name, unit.name), records)


async def _unit_records(
    recipe: EvalConfig,
    plan: EvaluationPlan,
    checkpoint: str,
    unit: Unit,
    sampler: Sampler,
    progress: ProgressBar,
) -> list[Record]:
    work = Path(recipe.out) / WORK / checkpoint / unit.name
    tasks = tasks_of(unit.prompts, lambda _: unit.samples, seed=recipe.seed)
    samples = work / "samples.jsonl"
    await generate(
        tasks,
        sampler,
        work=work,
        to=samples,
        open_environment=plan.open_environment,
        limits=recipe.sampling_of(unit.setting, checkpoint).limits(),
        # a prompt's samples are never in two chunks
        chunk=max(1, recipe.chunk // unit.samples) * unit.samples,
        at_once=rollouts_at_once(recipe.backend_of(checkpoint)),
        max_failure_rate=recipe.max_failure_rate,
        progress=progress,
    )
    prompts = (task.prompt for task in tasks)
    attempts = list(zip(prompts, read_completions(samples), strict=True))
    # graders may run an event loop of their own
    return await asyncio.to_thread(grade_completions, checkpoint, attempts, plan.grade)


async def _inspect_records(
    recipe: EvalConfig, plan: EvaluationPlan, checkpoint: str, unit: Unit, sampler: Sampler
) -> list[Record]:
    """The records of a task of inspect; killed and started again, it asks for no answer twice."""
    from posttrain.evaluation.inspect_adapter.tasks import run_task

    out = Path(recipe.out)
    config = next(task for task in recipe.inspect_tasks if task.name == unit.task)
    async with contextlib.AsyncExitStack() as stack:
        samplers: dict[str, Sampler | None] = {"": sampler}
        for name, role in config.roles.items():
            opened = opened_sampler(role.backend, checkpoint=role.checkpoint)
            samplers[name] = await stack.enter_async_context(opened)
        parameters = recipe.sampling_of(unit.setting, checkpoint).parameters()
        records = await run_task(
            {**plan.stats["inspect"][unit.name], "parameters": asdict(parameters)},
            unit.prompts,
            samplers,
            checkpoint=checkpoint,
            journal=partial(journal_path, out, checkpoint, unit.name),
            logs=out / WORK / checkpoint / unit.name,
        )
    failed = [record.completion.error for record in records if record.failed]
    if len(failed) > recipe.max_failure_rate * len(records):
        raise DataError(
            f"{unit.name}: {len(failed):,} of {len(records):,} samples failed, max_failure_rate "
            f"allows {recipe.max_failure_rate:.2%}; the first: {failed[0]}"
        )
    return records


def metrics_of(
    records: Records, *, seed: int, recovery: RecoveryConfig | None = None
) -> dict[str, Any]:
    """All figures of a run; the first checkpoint is the one that others are compared with. `seed`
    is of bootstrap draws."""
    first, *others = records.values()
    agentic = agentic_rows(records)
    sensitive = [row for own in records.values() for row in sensitivity_rows(own)]
    varied = [row for own in records.values() for row in variant_rows(own)]
    alerts = [row for own in records.values() for row in alert_rows(own)]
    return {
        **({"alerts": alerts} if alerts else {}),
        **({} if agentic is None else {"agentic": agentic}),
        **({"sensitivity": sensitive} if sensitive else {}),
        **({"variants": varied} if varied else {}),
        **({} if recovery is None else {"recovery": recovery_rows(records, recovery)}),
        "cells": [row for own in records.values() for row in cell_rows(own, seed=seed)],
        "pairs": [row for own in others for row in paired_rows(first, own)],
    }


def finish_run(
    stage: Run,
    records: Records,
    *,
    counts: Counts,
    parents: Sequence[Parent],
    seed: int,
    stats: Mapping[str, Any],
    recovery: RecoveryConfig | None = None,
) -> Manifest:
    """Write `metrics.json`, `examples.jsonl` and the manifest; `records` and the lock are there."""
    out = stage.path
    lock = read_lock(out)
    atomic_write_json(out / METRICS, metrics_of(records, seed=seed, recovery=recovery))
    to_read = examples([record for own in records.values() for record in own])
    write_records(out / EXAMPLES, to_read)
    files: dict[str, int | None] = {METRICS: None, LOCK: None, EXAMPLES: len(to_read)}
    units: dict[str, None] = {}
    for name, own in records.items():
        for unit, rows in by_unit(own).items():
            units[unit] = None
            files[record_path(out, name, unit).relative_to(out).as_posix()] = len(rows)
    for path in sorted((out / JOURNALS).rglob("*.jsonl")):
        files[path.relative_to(out).as_posix()] = sort_lines(path)
    templates = {(rendering or {}).get("template") for rendering in lock["rendering"].values()}
    return stage.finish(
        counts=counts,
        files=files,
        parents=parents,
        # one only where every checkpoint's prompts are rendered by the same
        template_digest=templates.pop() if len(templates) == 1 else None,
        seed=seed,
        stats={
            "units": list(units),
            "checkpoints": list(records),
            "weights": lock["weights"],
            "judge": lock.get("judge"),
            **stats,
        },
    )


def write_tables(
    out: Path, manifest: Manifest, records: Records, prices: Mapping[str, Price]
) -> None:
    """Costs and exports of a finished run, beside what its manifest lists: prices may change."""
    write_costs(out, records, prices)
    write_exports(out / EXPORT, json.loads((out / METRICS).read_text("utf-8")), manifest)
