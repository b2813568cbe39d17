"""Failure modes of agentic runs, and how models differ in the share of runs that they solve.

A run is agentic where its prompt's metadata name a `family` and its `fixture`; its final state then
has `calls` (the files that each call changed) and `missing` (results that the task names and that
are not there). A run that is not solved counts under its first failure mode in the order of
`PRECEDENCE`; a solved run may show failure modes too.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from posttrain.evaluation.compare import rate_difference
from posttrain.evaluation.intervals import Values, by_question, rate
from posttrain.evaluation.metrics import correct
from posttrain.evaluation.run import Record
from posttrain.jsontext import load_json
from posttrain.records import Score, ToolCall
from posttrain.rollouts import Completion, Prompt, metadata_of

PRECEDENCE = (
    "infrastructure_error",
    "tool_call_hallucinated",
    "tool_call_redundancy",
    "gave_up_mid_plan",
    "wrong_answer",
)
ALL_FAMILIES = "all"
REPEATS = 3  # equal calls, with no change of a file between them, that count as redundant
_BROKEN_CALLS = frozenset({"half_call", "malformed_call"})
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunFailure:
    """One failure mode of a run, and the step (from 0) at which it shows."""

    mode: str
    step: int


def family_of(prompt: Prompt) -> str | None:
    """Agentic family of a prompt; None for a prompt of another kind."""
    fields = metadata_of(prompt)
    # prompts of the tiny world have a family too, but no fixture
    return fields["family"] if "fixture" in fields else None


def failures(prompt: Prompt, completion: Completion, score: Score) -> list[RunFailure]:
    """Failure modes of an agentic run, each with its step, in the order of `PRECEDENCE`."""
    last_step = max(0, len(completion.steps) - 1)
    state: Row = json.loads(completion.state or "{}")
    step_of_mode: dict[str, int] = {}
    if completion.finish == "failed" or score.value is None:
        step_of_mode["infrastructure_error"] = last_step
    validators = _argument_validators(prompt.tools or "[]")
    repeats: Counter[tuple[str, str, str]] = Counter()
    # a wrong answer shows at the last change of a file, or at the last step if there is none
    last_change = last_step
    changes = iter(state.get("calls", ()))
    for number, step in enumerate(completion.steps):
        calls = step.parsed.tool_calls
        broken = step.finish == "stop" and _BROKEN_CALLS & set(step.parsed.problems)
        if broken or not all(_fits_declaration(call, validators) for call in calls):
            step_of_mode.setdefault("tool_call_hallucinated", number)
        for call, result in zip(calls, step.results, strict=False):
            arguments = _object_arguments(call)
            if arguments is None:
                continue  # the environment was never called, so `changes` has no entry
            if next(changes, {"changed": []})["changed"]:
                last_change = number
                repeats.clear()
            # what a call did counts, not what it printed: a clock is in many outputs
            failed = str(result.content.startswith("error:"))
            key = (call.name, json.dumps(arguments, sort_keys=True), failed)
            repeats[key] += 1
            if repeats[key] >= REPEATS:
                step_of_mode.setdefault("tool_call_redundancy", number)
    # a score has an answer where the environment read one in the last message
    unfinished = completion.truncated or (state.get("missing") and score.answer is None)
    if completion.finish != "failed" and unfinished:
        step_of_mode["gave_up_mid_plan"] = last_step
    elif score.value is not None and score.value < 1:
        step_of_mode["wrong_answer"] = last_change
    return [RunFailure(mode, step_of_mode[mode]) for mode in PRECEDENCE if mode in step_of_mode]


@functools.lru_cache(maxsize=64)  # the runs of a family share their tools
def _argument_validators(tools: str) -> dict[str, Any]:
    """Validators of arguments by tool name; `tools` is JSON text in OpenAI's shape."""
    from jsonschema import Draft202012Validator

    validators: dict[str, Any] = {}
    for tool in json.loads(tools):
        function = tool["function"]
        validators[function["name"]] = Draft202012Validator(function.get("parameters", {}))
    return validators


def _object_arguments(call: ToolCall) -> Row | None:
    """Arguments of a call; None where they are not a JSON object."""
    try:
        arguments = load_json(call.arguments)
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


def _fits_declaration(call: ToolCall, validators: Mapping[str, Any]) -> bool:
    """True if a call names a declared tool and its schema allows the arguments."""
    arguments = _object_arguments(call)
    validator = validators.get(call.name)
    return validator is not None and arguments is not None and validator.is_valid(arguments)


# -- figures ---------------------------------------------------------------------------------------


def agentic_figures(records: Mapping[str, Sequence[Record]]) -> Row | None:
    """Figures of the agentic runs of checkpoints; None where there are no such runs.

    Args:
        records: by checkpoint; those that are not agentic are ignored.

    Returns:
        `models`: a row a checkpoint, the one that solves most first; `pairs`: paired differences
        of the best checkpoint from each further one.
    """
    runs_by_name: dict[str, list[Record]] = {}
    for name, checkpoint_records in records.items():
        runs = [record for record in checkpoint_records if family_of(record.prompt) is not None]
        if runs:
            runs_by_name[name] = runs
    if not runs_by_name:
        return None
    models = [_model_row(name, runs) for name, runs in runs_by_name.items()]
    # the last row of a model's families is over all of them
    models.sort(key=lambda row: -(row["families"][-1]["share"] or 0))
    names = [row["checkpoint"] for row in models]
    best = names[0]
    best_values = _solved_values(runs_by_name[best])
    best_tasks = {task for _, task in best_values}
    pairs: list[Row] = []
    for name in names[1:]:
        values = _solved_values(runs_by_name[name])
        if not best_tasks.isdisjoint(task for _, task in values):
            pairs.append({"names": [name, best], **paired_difference(values, best_values)})
    return {"models": models, "pairs": pairs}


def paired_difference(a: Values, b: Values) -> Row:
    """Paired difference b − a in the share of solved runs, over the tasks that both have.

    Args:
        a, b: 1 for a solved run and 0 for any other, each with its task.
    """
    return asdict(rate_difference(by_question(a), by_question(b)))


def _solved_values(runs: Sequence[Record]) -> Values:
    """1 for a solved run and 0 for any other, each with its task; unscored runs are left out."""
    values: list[tuple[float, tuple[str, str]]] = []
    for run in runs:
        solved = correct(run)
        if solved is not None:
            values.append((float(solved), (run.prompt.source, run.prompt.task)))
    return values


def _model_row(name: str, runs: Sequence[Record]) -> Row:
    """Solved shares of each family and of all runs of a checkpoint, and its failure modes."""
    runs_by_family: dict[str, list[Record]] = {}
    mode_counts = Counter[str]()
    deciding_counts = Counter[str]()  # a run counts here once, under its first failure mode
    for run in runs:
        runs_by_family.setdefault(str(family_of(run.prompt)), []).append(run)
        modes = [failure.mode for failure in failures(run.prompt, run.completion, run.score)]
        mode_counts.update(modes)
        if correct(run) is not True:
            deciding_counts[modes[0]] += 1
    families: list[Row] = []
    for family, family_runs in [*runs_by_family.items(), (ALL_FAMILIES, list(runs))]:
        calls = sum(len(run.completion.tool_calls) for run in family_runs)
        row: Row = {
            "family": family,
            **solved_share(_solved_values(family_runs)),
            "unscored": sum(run.score.value is None for run in family_runs),
            "calls_per_run": calls / len(family_runs),
        }
        families.append(row)
    failure_rows = [
        {"mode": mode, "runs": mode_counts[mode], "decides": deciding_counts[mode]}
        for mode in PRECEDENCE
    ]
    return {"checkpoint": name, "families": families, "failures": failure_rows}


def solved_share(values: Values) -> Row:
    """Mean over tasks of the share of solved runs, with its 95 % interval and counts.

    The interval clusters tasks, since runs of one task are alike; and it has a width at shares of
    0 and 1 too, which a finite number of runs cannot establish.
    """
    estimate = rate(values)
    if estimate is None:
        return {"runs": 0, "tasks": 0, "solved": 0, **dict.fromkeys(("share", "low", "high"))}
    return {
        "runs": estimate.samples,
        "tasks": estimate.questions,
        "solved": int(sum(value for value, _ in values)),
        "share": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
    }


def scored_expectations(
    figures: Mapping[str, Any], expect: Mapping[str, tuple[float, float]]
) -> Iterator[Row]:
    """Compare a recipe's predicted ranges with the measured shares: a row a checkpoint and family.

    Families without a prediction or without scored runs have no row.

    Args:
        figures: the result of `agentic_figures`.
        expect: family, or `all` → predicted range of the share of solved runs.
    """
    for model in figures["models"]:
        for row in model["families"]:
            expected = expect.get(row["family"])
            if expected is None or row["share"] is None:
                continue
            low, high = expected
            yield {
                "checkpoint": model["checkpoint"],
                "family": row["family"],
                "expected": [low, high],
                "solved": row["solved"],
                "runs": row["runs"],
                "met": low <= row["share"] <= high,
                # the runs speak against the range only where their interval lies outside it
                "contradicted": row["high"] < low or row["low"] > high,
            }
