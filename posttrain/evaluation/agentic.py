"""Runs of agentic tasks: what failed, at which step, how often, and how surely models differ.

A run is agentic where its prompt's metadata name a `family` and its `fixture`; its final state then
has `calls` (the files that each call changed) and `missing` (results that the task names and that
are not there). The first of `PRECEDENCE` decides a run that is not solved; a solved run may have
flags too.
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
REPEATS = 3  # same call, no change in between
_BROKEN_CALLS = frozenset({"half_call", "malformed_call"})
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunFailure:
    """One failure mode of a run, and the step (from 0) at which it shows."""

    mode: str
    step: int


def family_of(prompt: Prompt) -> str | None:
    """The agentic family of a prompt, None for any other: the tiny world has families, too."""
    fields = metadata_of(prompt)
    return fields["family"] if "fixture" in fields else None


def failures(prompt: Prompt, completion: Completion, score: Score) -> list[RunFailure]:
    """Every failure mode that holds of a run, in the order of `PRECEDENCE`."""
    last = max(0, len(completion.steps) - 1)
    state: Row = json.loads(completion.state or "{}")
    found: dict[str, int] = {}
    if completion.finish == "failed" or score.value is None:
        found["infrastructure_error"] = last
    schemas = _validators(prompt.tools or "[]")
    seen: Counter[tuple[str, str, str]] = Counter()
    changed_at, changes = last, iter(state.get("calls", ()))
    for number, step in enumerate(completion.steps):
        broken = step.finish == "stop" and _BROKEN_CALLS & set(step.parsed.problems)
        if broken or not all(_sound(call, schemas) for call in step.parsed.tool_calls):
            found.setdefault("tool_call_hallucinated", number)
        for call, result in zip(step.parsed.tool_calls, step.results, strict=False):
            if (arguments := _object(call)) is None:
                continue  # the environment was never called
            if next(changes, {"changed": []})["changed"]:
                changed_at = number
                seen.clear()
            # what a call did counts, not what it printed: a clock is in many outputs
            failed = str(result.content.startswith("error:"))
            key = (call.name, json.dumps(arguments, sort_keys=True), failed)
            seen[key] += 1
            if seen[key] >= REPEATS:
                found.setdefault("tool_call_redundancy", number)
    # a score has an answer where the environment read one in the last message
    unfinished = completion.truncated or (state.get("missing") and score.answer is None)
    if completion.finish != "failed" and unfinished:
        found["gave_up_mid_plan"] = last
    elif score.value is not None and score.value < 1:
        found["wrong_answer"] = changed_at
    return [RunFailure(mode, found[mode]) for mode in PRECEDENCE if mode in found]


@functools.lru_cache(maxsize=64)
def _validators(tools: str) -> dict[str, Any]:
    from jsonschema import Draft202012Validator

    functions = [tool["function"] for tool in json.loads(tools)]
    return {f["name"]: Draft202012Validator(f.get("parameters", {})) for f in functions}


def _object(call: ToolCall) -> Row | None:
    try:
        arguments = load_json(call.arguments)
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


def _sound(call: ToolCall, validators: Mapping[str, Any]) -> bool:
    """Whether a call is of a declared tool, with arguments that keep its schema."""
    arguments, validator = _object(call), validators.get(call.name)
    return validator is not None and arguments is not None and validator.is_valid(arguments)


# -- figures ---------------------------------------------------------------------------------------


def agentic_rows(records: Mapping[str, Sequence[Record]]) -> Row | None:
    """All figures of the agentic runs of some checkpoints; None where there are none.

    Args:
        records: by checkpoint; other records are left out.

    Returns:
        `models`: a row a checkpoint, the one that solves most first; `pairs`: each of the others
        against that one.
    """
    own: dict[str, list[Record]] = {}
    for name, given in records.items():
        if runs := [record for record in given if family_of(record.prompt) is not None]:
            own[name] = runs
    if not own:
        return None
    models = [_model_row(name, runs) for name, runs in own.items()]
    models.sort(key=lambda row: -(row["families"][-1]["share"] or 0))
    best, *others = (row["checkpoint"] for row in models)
    values = {name: _values(runs) for name, runs in own.items()}
    pairs = [
        {"names": [name, best], **paired(values[name], values[best])}
        for name in others
        if {task for _, task in values[name]} & {task for _, task in values[best]}
    ]
    return {"models": models, "pairs": pairs}


def paired(a: Values, b: Values) -> Row:
    """b − a in the share of solved runs, over the tasks that both have; shares in [0, 1]."""
    return asdict(rate_difference(by_question(a), by_question(b)))


def _values(runs: Sequence[Record]) -> Values:
    """1 for a solved run, 0 for any other, each with its task; unscored ones have no value."""
    return [
        (float(solved), (r.prompt.source, r.prompt.task))
        for r in runs
        if (solved := correct(r)) is not None
    ]


def _model_row(name: str, runs: Sequence[Record]) -> Row:
    families: dict[str, list[Record]] = {}
    for record in runs:
        families.setdefault(str(family_of(record.prompt)), []).append(record)
    flags, decides = Counter[str](), Counter[str]()
    for record in runs:
        found = [one.mode for one in failures(record.prompt, record.completion, record.score)]
        flags.update(found)
        if correct(record) is not True:
            decides[found[0]] += 1
    return {
        "checkpoint": name,
        "families": [
            {
                "family": family,
                **share_row(_values(own)),
                "unscored": sum(record.score.value is None for record in own),
                "calls_per_run": sum(len(r.completion.tool_calls) for r in own) / len(own),
            }
            for family, own in [*families.items(), (ALL_FAMILIES, list(runs))]
        ],
        "failures": [
            {"mode": mode, "runs": flags[mode], "decides": decides[mode]} for mode in PRECEDENCE
        ],
    }


def share_row(values: Values) -> Row:
    """The mean over tasks of each one's share of solved runs, with the interval of every rate: the
    runs of one task are alike, and a share of 0 or 1 is not known to be exactly that."""
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
    """A recipe's predictions (family, or `all` → range of the share of solved runs) against the
    figures of `agentic_rows`: a row a checkpoint and family."""
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
                # whether the runs could tell: their interval and the range have no point in common
                "contradicted": row["high"] < low or row["low"] > high,
            }
