"""Units through inspect: one `eval()` a checkpoint, a task a unit, our rollouts as its solver.

    await run_units(units, sampler, how, log_dir=out / "inspect", on_done=write)

The solver is our own loop over tools, so that prompts, token ids, seeds and tools are those of
sampling and training; inspect holds the concurrency, the limits, the scores and the log. Units run
one after another, and in process all completions of one move in step, so that its batches depend on
nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import inspect_ai
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import Model, ModelOutput
from inspect_ai.scorer import Score as InspectScore
from inspect_ai.scorer import Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util._display import init_display_type

from posttrain.collecting import collected_rarely
from posttrain.evaluation.inspect_messages import to_inspect
from posttrain.evaluation.inspect_model import Ask, ask, inspect_model
from posttrain.evaluation.record import Record
from posttrain.evaluation.unit import How, Unit, UnitRun
from posttrain.records import Score
from posttrain.sampling.generate import Journal
from posttrain.sampling.rollout import Rollout
from posttrain.sampling.sampler import Generation, Request, Sampler

Progress = Callable[[int], None]


async def run_units(
    units: Sequence[Unit],
    sampler: Sampler,
    how: How,
    *,
    log_dir: Path | None,
    on_done: Callable[[Unit, list[Record]], None],
    progress: Progress | None = None,
    at_once: int | None = None,
    work: Path | None = None,
) -> None:
    """Make and grade every completion of the units of one checkpoint.

    Args:
        log_dir: where inspect's own logs go; None keeps none.
        units: whole, or parts of units.
        on_done: told a unit's records, in order, as soon as it has them all.
        progress: told new tokens as they come.
        at_once: completions under way with a sampler that is not batched; None: all.
        work: where a server's completions are kept one by one until their unit is done; those that
            are there are not made again.

    Raises:
        Exception: the first that a sampler, an environment or a grader raised, as it is.
    """
    if not units:
        return

    async def generate(requests: Sequence[Request]) -> Sequence[Generation]:
        return await sampler.sample(requests, progress=progress)

    widest = max(unit.size for unit in units)
    width = widest if sampler.batched else at_once or widest
    with quiet_inspect() as scratch, contextlib.ExitStack() as stack:
        runs = [
            UnitRun(
                unit,
                how,
                generate,
                batched=sampler.batched,
                on_done=on_done,
                journal=None
                if sampler.batched or work is None
                else stack.enter_context(Journal(work / unit.checkpoint / f"{unit.name}.jsonl")),
            )
            for unit in units
        ]
        model = inspect_model(sampler, units[0].checkpoint)
        init_display_type("none")
        logs = await inspect_ai.eval_async(
            [_task(run, model) for run in runs],
            model=model,
            log_dir=str(log_dir or scratch / "logs"),
            log_samples=log_dir is not None,
            max_samples=width,
            **_PLAIN,
        )
    broken = [log for log in logs if log.status != "success"]
    if broken:
        # an error would have been raised: what is left is that somebody stopped it
        raise KeyboardInterrupt
    assert all(run.complete for run in runs), "a unit without an end"


# nothing is drawn, served, tried again or sent anywhere; the first error is raised as it is
_PLAIN: dict[str, Any] = {
    "log_format": "eval",
    "log_realtime": False,
    "log_model_api": False,
    "log_buffer": 1000,
    "ctl_server": False,
    "max_tasks": 1,
    "fail_on_error": True,
    "debug_errors": True,
    "log_level": "error",
}


@contextlib.contextmanager
def quiet_inspect() -> Iterator[Path]:
    """Inspect without traces in the home directory, without telemetry, and at a tolerable speed.

    Yields a scratch directory, which lasts as long as the process: inspect closes its trace there
    when that ends.
    """
    scratch = Path(_SCRATCH.name)
    changed = {
        "XDG_DATA_HOME": str(scratch),
        "INSPECT_TRACE_LEVEL": "CRITICAL",
        "INSPECT_TELEMETRY": None,
        "INSPECT_API_KEY_OVERRIDE": None,
    }
    before = {name: os.environ.get(name) for name in changed}
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, _TRACES))
    _set(changed)
    try:
        # inspect keeps dozens of objects a sample alive: looking them all through again and again
        # costs as much as everything else it does
        with collected_rarely():
            yield scratch
    finally:
        logging.disable(disabled)
        _set(before)


_TRACES = 9  # levels below debugging: inspect writes two lines a call of the model there
_SCRATCH = tempfile.TemporaryDirectory(prefix="posttrain-inspect-")


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _task(run: UnitRun, model: Model) -> inspect_ai.Task:
    samples = [
        Sample(
            id=prompt.id,
            input=[to_inspect(message) for message in prompt.messages],
            target=prompt.gold or "",
            metadata={
                "task": prompt.task,
                "setting": prompt.setting,
                "thinking": prompt.thinking,
                "tools": prompt.tools,
                "first": number * run.unit.samples,
            },
        )
        for number, prompt in enumerate(run.unit.prompts)
    ]
    return inspect_ai.Task(
        name=f"{run.unit.name}.{run.unit.part}",
        dataset=MemoryDataset(samples, name=run.unit.name),
        solver=_rollout(run, model),
        scorer=_graded(run),
        epochs=run.unit.samples,
    )


def _position(state: TaskState) -> int:
    return state.metadata["first"] + state.epoch - 1


@solver(name="posttrain_rollout")
def _rollout(run: UnitRun, model: Model) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        told = 0

        async def through(rollout: Rollout, request: Request, answer: Ask) -> Generation:
            nonlocal told
            # the log is told what came between: the results of tools
            results = [m for step in rollout.steps for m in step.results]
            state.messages += [to_inspect(message) for message in results[told:]]
            told = len(results)
            return await ask(model, request, state.messages, answer)

        completion = await run.roll_out(_position(state), through)
        if state.messages and state.messages[-1].role == "assistant":
            state.output = ModelOutput.from_content(model.name, completion.answer)
        state.completed = True
        return state

    return solve


@scorer(metrics=[mean(), stderr(cluster="task")], name="posttrain_grade")
def _graded(run: UnitRun) -> Scorer:
    async def score(state: TaskState, target: Target) -> InspectScore:
        record = await run.grade(_position(state))
        return _inspect_score(record.score, calls=len(record.verdict.calls))

    return score


def _inspect_score(score: Score, *, calls: int) -> InspectScore:
    more: dict[str, Any] = {"calls": calls}
    if score.value is None:
        return InspectScore.unscored(explanation=score.explanation, metadata=more)
    return InspectScore(
        value=score.value, answer=score.answer, explanation=score.explanation, metadata=more
    )
