"""Plan of an evaluation: prompts, environments and graders of tasks of every kind."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_builders.prompts.build import BASE, PromptPlan, missing_inputs
from data_builders.registry import all_graders
from data_builders.rows.inputs import Input, as_stats
from posttrain.config.eval import EvalConfig
from posttrain.errors import ConfigError, DataError
from posttrain.evaluation.inspect_adapter import require_inspect
from posttrain.rollouts import Prompt
from posttrain.runs import Counts, Parent
from reward.environments.agentic.policies import PolicySampler
from reward.environments.judged import PROMPT_DIGEST
from reward.graders.base import Attempt, Grader
from reward.graders.constraints import NLTK_DATA

if TYPE_CHECKING:
    from posttrain.evaluation.run import Grade
    from posttrain.evaluation.stage import EvaluationPlan


def open_tasks(recipe: EvalConfig) -> PromptPlan | None:
    """Open the tasks whose prompts are rows, None without any; ConfigError for all that is missing.

    Raises:
        ConfigError: all that any task lacks on this machine, and how to get it; also the errors of
            `PromptPlan`.
        DataError: see `PromptPlan`.
    """
    if recipe.inspect_logs:
        require_inspect("inspect_logs", extra="inspect")
    row_recipe = recipe.of_rows()
    missing: list[str] = []
    if row_recipe is not None:
        missing += missing_inputs(row_recipe.row_tasks, BASE, judge=recipe.judge is not None)
    if recipe.inspect_tasks:
        # a task in a file needs inspect alone, any other a package of tasks too
        in_files = all("@" in task.task for task in recipe.inspect_tasks)
        require_inspect("a task of inspect", extra="inspect" if in_files else "eval-suite")
        from posttrain.evaluation.inspect_adapter.tasks import missing_tasks

        missing += missing_tasks(recipe.inspect_tasks)
    if missing:
        problems = "".join(f"\n  {problem}" for problem in missing)
        raise ConfigError(f"nothing was run, since this is missing:{problems}")
    if row_recipe is None:
        return None
    return PromptPlan(
        row_recipe.row_tasks, row_recipe.settings, seed=recipe.seed, out=Path(recipe.out)
    )


def evaluation_plan(
    recipe: EvalConfig, rows: PromptPlan | None, *, limit: int | None
) -> EvaluationPlan:
    """Plan an evaluation; refuse a task without a usable row or without the data of its checkers.

    Args:
        rows: plan of the tasks whose prompts are rows, from `open_tasks`.
        limit: maximum number of prompts of each task in each setting; None: all.

    Raises:
        ConfigError: see `PromptPlan.build` and `task_prompts`.
        DataError: a task without a usable row.
    """
    from posttrain.evaluation.run import JOURNALS, LABELS, units_of
    from posttrain.evaluation.stage import EvaluationPlan
    from posttrain.sampling.open import checkpoint_parents
    from posttrain.tokens.renderer import renderer_of

    out = Path(recipe.out)
    parents: list[Parent] = []
    inputs: list[Input] = []
    prompts: list[Prompt] = []
    stats: dict[str, Any] = {"sources": {}}
    if rows is not None:
        prompt_set = rows.build()
        prompts = prompt_set.prompts
        parents = rows.parents
        inputs = rows.inputs
        stats = {"sources": prompt_set.stats()["sources"]}
        for name, counts in stats["sources"].items():
            refuse_missing_data(name, counts)
            if not counts["kept"]:
                reasons = [f"{reason} {n:,}" for reason, n in counts["dropped"].items()]
                reasons += counts["examples"].values()
                raise DataError(
                    f"task {name!r} has no usable row of {counts['rows_in']:,}: "
                    f"{'; '.join(reasons)}"
                )
    if recipe.inspect_tasks:
        inspect_prompts, stats["inspect"] = _inspect_tasks(recipe)
        prompts = [*prompts, *inspect_prompts]
    units = units_of(prompts, recipe.n_of)
    units = [replace(unit, prompts=unit.prompts[:limit]) for unit in units]
    kept = sum(len(unit.prompts) for unit in units)
    dropped = {"limit": len(prompts) - kept} if len(prompts) > kept else {}
    labels = None if recipe.judge is None else out / JOURNALS / LABELS
    renderers = {
        name: renderer_of(recipe.backend_of(name), recipe.path_of(name))
        for name in recipe.checkpoints
    }
    checkpoints = map(recipe.path_of, recipe.checkpoints)
    return EvaluationPlan(
        units=units,
        renderers=renderers,
        open_environment=(lambda _: None) if rows is None else rows.open_environment,
        grade=grade_by_name(all_graders(recipe.judge, labels)),
        files={file.path: file.sha256 for file in inputs},
        parents=[*parents, *checkpoint_parents(checkpoints, out=out)],
        counts=Counts(len(prompts), kept, dropped),
        stats={**stats, "inputs": as_stats(inputs)},
        judge=recipe.judge and {**recipe.judge.identity(), "prompt": PROMPT_DIGEST},
        scripted=lambda policy: PolicySampler(prompts, policy),
    )


def refuse_missing_data(task: str, counts: Mapping[str, Any]) -> None:
    """Raise ConfigError if rows were dropped since this machine lacks their checkers' data.

    The other rows would be another benchmark under the same name.
    """
    reason = NLTK_DATA.partition(":")[0]
    n_dropped = sum(count for name, count in counts["dropped"].items() if reason in name)
    if n_dropped:
        command = NLTK_DATA.partition(": ")[2]
        raise ConfigError(
            f"task {task!r}: {n_dropped:,} of {counts['rows_in']:,} rows need data of NLTK that is "
            f"not installed; nothing was run: {command}"
        )


def _inspect_tasks(recipe: EvalConfig) -> tuple[list[Prompt], dict[str, Any]]:
    """Prompts of the tasks of inspect, and the settings of each run, by unit."""
    from posttrain.evaluation.inspect_adapter.tasks import inspect_run, task_prompts

    prompts: list[Prompt] = []
    runs: dict[str, Any] = {}
    for setting, task in itertools.product(recipe.settings, recipe.inspect_tasks):
        if setting.sources is None or task.name in setting.sources:
            prompts += task_prompts(task, setting)
            runs[f"{task.name}.{setting.name}"] = inspect_run(recipe, task, setting.name)
    return prompts, runs


def grade_by_name(graders: Mapping[str, Grader]) -> Grade:
    """Function that grades attempts by the name of a grader, in the form that evaluation calls."""
    return lambda name, attempts: graders[name].grade([Attempt(*attempt) for attempt in attempts])


def grade_of(run: Path) -> Grade:
    """Function that grades as a finished run did; a judge's labels are read from the run."""
    from posttrain.evaluation.run import JOURNALS, LABELS

    labels = run / JOURNALS / LABELS
    return grade_by_name(all_graders(None, labels if labels.is_file() else None))
