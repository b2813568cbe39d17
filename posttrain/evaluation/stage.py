"""The evaluation stage: generate and grade a recipe's checkpoints, then compute their figures."""

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
from posttrain.evaluation.agentic import agentic_figures
from posttrain.evaluation.compare import paired_rows
from posttrain.evaluation.cost import (
    estimate_rows,
    most_tokens,
    rows_at_once,
    write_costs,
)
from posttrain.evaluation.export import EXPORT, write_exports
from posttrain.evaluation.journal import TimedSampler, sort_lines
from posttrain.evaluation.long_context import long_context_rows
from posttrain.evaluation.metrics import alert_rows, cell_rows, select_examples
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
    times_path,
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
from posttrain.sampling.open import check_context, opened_sampler
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
    """Inputs of an evaluation, known before a model is loaded.

    Attributes:
        renderers: prompt renderer of each checkpoint; None where a server renders.
        files: files that the prompts are made from, with their digests.
        counts: counts of the prompts read, kept and dropped.
        stats: stats of sources and inputs, for the manifest.
        judge: settings that decide the labels of judged tasks.
        scripted: function that opens a scripted policy's sampler by name.
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
    """Cost of a run, estimated before it starts.

    Attributes:
        rows: calls and tokens of each unit on each checkpoint, counted by `estimate_rows`.
        speeds: sampling speed of each checkpoint, in words.
    """

    rows: list[dict[str, Any]]
    speeds: dict[str, str]


def show_counts(console: Console, recipe: EvalConfig, plan: EvaluationPlan) -> None:
    """Print how many rows each source gives, how many completions are sampled, and what cuts them.

    Raises:
        ConfigError: a prompt and its longest completion do not fit a checkpoint's context.
    """
    cut_lines: list[str] = []
    for name, renderer in plan.renderers.items():
        for unit in plan.units:
            cut_line = check_context(
                recipe.backend_of(name),
                recipe.path_of(name),
                unit.prompts,
                renderer,
                max_tokens=recipe.sampling_of(unit.setting).max_tokens,
            )
            if cut_line is not None:
                cut_lines.append(f"{unit.name} ({name}): {cut_line}")
    for name, source in plan.stats["sources"].items():
        console.print(f"{name}: {source['rows_in']:,} rows, {source['kept']:,} kept")
        for reason, count in source["dropped"].items():
            console.print(f"  {reason} {count:,} {source['examples'].get(reason, '')}")
    names = ", ".join(recipe.checkpoints)
    for unit in plan.units:
        console.print(f"{unit.name}: {len(unit.prompts):,} prompts × {unit.samples} × ({names})")
    for line in cut_lines:
        console.print(line, soft_wrap=True)


def units_as_sent(plan: EvaluationPlan, console: Console) -> list[Unit]:
    """Replace the prompts of inspect units by those that inspect's solver sends to a model.

    Only the first few prompts are solved, then repeated to the number of prompts, since solving
    all would take as long as an evaluation.
    """
    return [_unit_as_sent(unit, plan, console) for unit in plan.units]


def estimate(recipe: EvalConfig, plan: EvaluationPlan, units: Sequence[Unit]) -> RunEstimate:
    """Estimate calls, tokens and seconds of the run; seconds come from a measured slice of it.

    Raises:
        ConfigError, DataError: a model cannot be sampled.
    """
    speeds = asyncio.run(measure_speeds(recipe, plan, units))
    rows = estimate_rows(recipe, units, plan.renderers, speeds)
    speed_texts: dict[str, str] = {}
    for name, speed in speeds.items():
        if isinstance(speed, str):
            speed_texts[name] = f"not measured: {speed}"
        else:
            largest_batch = max(rows_at_once(recipe, name, unit) for unit in units)
            speed_texts[name] = speed.text(largest_batch)
    return RunEstimate(rows, speed_texts)


def show_first_prompts(console: Console, plan: EvaluationPlan, units: Sequence[Unit]) -> None:
    """Print each unit's first prompt as rendered for each checkpoint; equal texts only once."""
    for unit in units:
        prompt = unit.prompts[0]
        previous_text = None
        for name, renderer in plan.renderers.items():
            text = message_text(prompt) if renderer is None else renderer.text(prompt)
            if text != previous_text:
                console.print(f"\nfirst prompt of {unit.name} for {name}:")
                console.print(printable(text), soft_wrap=True)
            previous_text = text


def _unit_as_sent(unit: Unit, plan: EvaluationPlan, console: Console) -> Unit:
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
    """Measure how fast each checkpoint samples a slice of the largest unit.

    Returns:
        The speed of each checkpoint, or the reason why it is not measured.

    Raises:
        ConfigError, DataError: a model cannot be sampled, as the real run would find out.
    """
    refusals = {
        name: why_not_measured(recipe.backend_of(name), recipe.path_of(name))
        for name in recipe.checkpoints
    }
    measured_checkpoints = sum(refusal is None for refusal in refusals.values())
    unit = max(units, key=lambda unit: unit.size)
    speeds: dict[str, SamplingSpeed | str] = {}
    for name, refusal in refusals.items():
        if refusal is not None:
            speeds[name] = refusal
            continue
        async with opened_sampler(
            recipe.backend_of(name), checkpoint=recipe.path_of(name), scripted=plan.scripted
        ) as sampler:
            speed = measure_speed(
                sampler,
                unit.prompts,
                parameters=recipe.sampling_of(unit.setting, name).parameters(),
                rows=rows_at_once(recipe, name, unit),
                limit=MEASURING_SECONDS / measured_checkpoints,
            )
        speeds[name] = speed or "the sampler is no model in this process"
    return speeds


def make_evaluation(run: Run, recipe: EvalConfig, plan: EvaluationPlan, console: Console) -> None:
    """Generate and grade the missing records, then write the figures and the manifest.

    Raises:
        ConfigError: the run was begun with another lock.
        DataError: a backend gave up too often.
    """
    out = run.path
    bind_lock(out, _lock_of(recipe, plan, run.config_digest), recipe=recipe)
    total = len(recipe.checkpoints) * sum(unit.size for unit in plan.units)
    mean_limit = most_tokens(recipe, plan.units)
    try:
        with ProgressBar(total=total, most_tokens=mean_limit, console=console) as progress:
            asyncio.run(make_records(recipe, plan, progress))
    except PosttrainError:
        if not (out / RECORDS).is_dir() and not (out / WORK).is_dir():
            # nothing depends on the lock yet: a corrected recipe may use the directory
            (out / LOCK).unlink()
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
    """Rewrite the tables of a finished run, since prices may have changed.

    The page shows these tables, so it is removed, to be written again.

    Raises:
        ConfigError: the run was made with another lock.
    """
    out = run.path
    bind_lock(out, _lock_of(recipe, plan, run.config_digest), recipe=recipe, finished=True)
    write_tables(out, *read_run(out), recipe.prices)
    (out / REPORT).unlink(missing_ok=True)
    _write_inspect_logs(out, recipe)


def _write_inspect_logs(out: Path, recipe: EvalConfig) -> None:
    """Write logs for inspect's viewer if the recipe asks for them and none exist."""
    if recipe.inspect_logs and not (out / INSPECT_LOGS).is_dir():
        from posttrain.evaluation.inspect_adapter.log import write_logs

        write_logs(out, out / INSPECT_LOGS)


def _lock_of(recipe: EvalConfig, plan: EvaluationPlan, config_digest: str) -> Lock:
    """Collect all that the run's figures depend on, except the weights.

    The weights are added by `bind_weights` when a checkpoint is opened.
    """
    rendering: dict[str, dict[str, str] | None] = {}
    for name, renderer in plan.renderers.items():
        rendering[name] = renderer and {
            "template": renderer.template.digest,
            "tokenizer": encoder_of(renderer.tokenizer).digest,
        }
    prompt_digests: dict[str, str] = {}
    for unit in plan.units:
        # a row holds gold and grader too; the order counts
        prompt_digests[unit.name] = digest_of([prompt_to_row(prompt) for prompt in unit.prompts])
    sampling: dict[str, Any] = {
        # the number of tools that run at a time changes no sample
        **recipe.sampling.model_dump(mode="json", exclude={"tools_at_once"}),
        "samples": {unit.name: unit.samples for unit in plan.units},
        "settings": {s.name: s.sampling for s in recipe.settings if s.sampling},
        "seed": recipe.seed,
    }
    checkpoint_choices = {name: recipe.choice_of(name).chosen() for name in recipe.checkpoints}
    if any(checkpoint_choices.values()):
        sampling["checkpoints"] = checkpoint_choices
    parent_digests = sorted({parent.digest for parent in plan.parents})
    return {
        "config": config_digest,
        "prompts": prompt_digests,
        "sampling": sampling,
        "judge": plan.judge,
        "rendering": rendering,
        "data": {"files": dict(plan.files), "artifacts": parent_digests},
        "versions": package_versions(PACKAGES),
        "weights": {},
    }


async def make_records(recipe: EvalConfig, plan: EvaluationPlan, progress: ProgressBar) -> None:
    """Generate and grade every unit without records, checkpoint by checkpoint."""
    out = Path(recipe.out)
    for name in recipe.checkpoints:
        missing_units = [u for u in plan.units if not record_path(out, name, u.name).is_file()]
        progress.add(restored=sum(unit.size for unit in plan.units if unit not in missing_units))
        if not missing_units:
            continue
        async with opened_sampler(
            recipe.backend_of(name), checkpoint=recipe.path_of(name), scripted=plan.scripted
        ) as sampler:
            bind_weights(out, name, sampler.identity)
            for unit in missing_units:
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
    """Run a task of inspect. A rerun takes the answers that are in the journals."""
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
    """Compute all figures of a run; every checkpoint is compared with the first.

    Args:
        seed: seed of the bootstrap draws.
        recovery: checkpoints of a distillation whose recovery is measured.
    """
    alerts: list[dict[str, Any]] = []
    sensitivities: list[dict[str, Any]] = []
    variants: list[dict[str, Any]] = []
    long_context: list[dict[str, Any]] = []
    cells: list[dict[str, Any]] = []
    pairs: list[dict[str, Any]] = []
    first = next(iter(records))
    for checkpoint, checkpoint_records in records.items():
        alerts += alert_rows(checkpoint_records)
        sensitivities += sensitivity_rows(checkpoint_records)
        variants += variant_rows(checkpoint_records)
        long_context += long_context_rows(checkpoint_records)
        cells += cell_rows(checkpoint_records, seed=seed)
        if checkpoint != first:
            pairs += paired_rows(records[first], checkpoint_records)
    metrics: dict[str, Any] = {}
    if alerts:
        metrics["alerts"] = alerts
    if (agentic := agentic_figures(records)) is not None:
        metrics["agentic"] = agentic
    if sensitivities:
        metrics["sensitivity"] = sensitivities
    if variants:
        metrics["variants"] = variants
    if long_context:
        metrics["long_context"] = long_context
    if recovery is not None:
        metrics["recovery"] = recovery_rows(records, recovery)
    return {**metrics, "cells": cells, "pairs": pairs}


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
    """Write `metrics.json`, `examples.jsonl` and the manifest of a run.

    The files of its records and its lock must exist.
    """
    out = stage.path
    lock = read_lock(out)
    atomic_write_json(out / METRICS, metrics_of(records, seed=seed, recovery=recovery))
    examples = select_examples(list(itertools.chain.from_iterable(records.values())))
    write_records(out / EXAMPLES, examples)
    files: dict[str, int | None] = {METRICS: None, LOCK: None, EXAMPLES: len(examples)}
    units: dict[str, None] = {}
    for name, checkpoint_records in records.items():
        for unit, unit_records in by_unit(checkpoint_records).items():
            units[unit] = None
            files[record_path(out, name, unit).relative_to(out).as_posix()] = len(unit_records)
    for path in sorted((out / JOURNALS).rglob("*.jsonl")):
        files[path.relative_to(out).as_posix()] = sort_lines(path)
    templates = {(rendering or {}).get("template") for rendering in lock["rendering"].values()}
    return stage.finish(
        counts=counts,
        files=files,
        parents=parents,
        # the manifest names a template only if all checkpoints share it
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
    """Write costs and exports of a finished run.

    The manifest does not list these files, since prices may change later.
    """
    write_costs(out, records, prices)
    write_exports(out / EXPORT, json.loads((out / METRICS).read_text("utf-8")), manifest)
