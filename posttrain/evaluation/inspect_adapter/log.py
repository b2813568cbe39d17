"""Logs of a finished run in inspect's own format, which `inspect view --log-dir RUN/inspect` opens.

There is a log for each unit and checkpoint; its samples have messages, token ids, scores and calls.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inspect_ai.event import ModelEvent
from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalLog,
    EvalMetric,
    EvalResults,
    EvalSample,
    EvalScore,
    EvalSpec,
    EvalStats,
    write_eval_log,
)
from inspect_ai.model import ChatMessage, GenerateConfig, ModelOutput, ModelUsage
from inspect_ai.scorer import Score

from posttrain.evaluation.inspect_adapter.provider import to_inspect, to_output
from posttrain.evaluation.run import METRICS, Record, by_unit, read_lock, read_run
from posttrain.hashing import digest_of

SCORER = "posttrain"


def write_logs(run: Path, folder: Path) -> None:
    """Write the logs of a finished run into a new folder, all of them or none."""
    manifest, records = read_run(run)
    lock = read_lock(run)
    cells = json.loads((run / METRICS).read_text("utf-8"))["cells"]
    created = datetime.now(UTC).isoformat(timespec="seconds")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for checkpoint, checkpoint_records in records.items():
        (partial / checkpoint).mkdir(parents=True)
        for unit, unit_records in by_unit(checkpoint_records).items():
            prompt = unit_records[0].prompt
            unit_cell = (checkpoint, prompt.source, prompt.setting)
            scores: list[EvalScore] = []
            for cell in cells:  # a cell a reasoning mode
                if (cell["checkpoint"], cell["task"], cell["setting"]) == unit_cell:
                    scores.append(_cell_score(cell))
            key = digest_of([manifest.digest, checkpoint, unit])[:22]
            log = _unit_log(
                unit_records,
                unit=unit,
                key=key,
                scores=scores,
                lock=lock,
                manifest_digest=manifest.digest,
                created=created,
            )
            # inspect reads a log's name as parts between "_", so no part may contain it
            name = f"{created.replace(':', '-')}_{unit.replace('_', '-')}_{key}.eval"
            write_eval_log(log, partial / checkpoint / name)
    partial.rename(folder)


def _unit_log(
    records: Sequence[Record],
    *,
    unit: str,
    key: str,
    scores: list[EvalScore],
    lock: Mapping[str, Any],
    manifest_digest: str,
    created: str,
) -> EvalLog:
    """Build inspect's log of one checkpoint's records of a unit.

    Args:
        key: identifier of the log, as inspect's evaluation and task.
        created: time of the log, in ISO 8601.
    """
    checkpoint = records[0].checkpoint
    source = records[0].prompt.source
    model = f"posttrain/{checkpoint}"
    sampling: Mapping[str, Any] = lock["sampling"]
    sampling_names = ("temperature", "top_p", "top_k", "max_tokens")
    samples = [_eval_sample(record, model) for record in records]
    usage = _total_usage([sample.model_usage[model] for sample in samples])
    ids = list(dict.fromkeys(record.prompt.id for record in records))
    return EvalLog(
        status="success",
        eval=EvalSpec(
            created=created,
            run_id=manifest_digest[:22],
            eval_id=key,
            task_id=key,
            task=unit,
            dataset=EvalDataset(name=source, samples=len(ids), sample_ids=ids),
            model=model,
            model_generate_config=GenerateConfig(
                **{name: sampling[name] for name in sampling_names}
            ),
            config=EvalConfig(epochs=sampling["samples"][unit]),
            packages=lock["versions"],
            metadata={"manifest": manifest_digest, "weights": lock["weights"][checkpoint]},
        ),
        stats=EvalStats(started_at=created, completed_at=created, model_usage={model: usage}),
        results=EvalResults(
            total_samples=len(records),
            completed_samples=sum(not record.failed for record in records),
            scores=scores,
        ),
        samples=samples,
    )


def _cell_score(cell: Mapping[str, Any]) -> EvalScore:
    """Convert the rates of a cell of the run's metrics to the score of a reasoning mode."""
    unscored = cell["failed"] + cell["unscored"]
    metrics: dict[str, EvalMetric] = {}
    for name, figure in cell["rates"].items():
        bounds = {"low": figure["low"], "high": figure["high"]}
        metrics[name] = EvalMetric(name=name, value=figure["value"], metadata=bounds)
    return EvalScore(
        name=f"reasoning {cell['thinking']}",
        scorer=SCORER,
        scored_samples=cell["samples"] - unscored,
        unscored_samples=unscored,
        metrics=metrics,
    )


def _eval_sample(record: Record, model: str) -> EvalSample:
    """Convert a record to a sample, with an event for each model call."""
    prompt = record.prompt
    completion = record.completion
    events = list(_model_events(record, model))
    prompt_messages = [to_inspect(message) for message in prompt.messages]
    completion_messages = [to_inspect(message) for message in completion.messages]
    output = events[-1].output if events else ModelOutput(model=model, error=completion.error)
    sample = EvalSample(
        id=prompt.id,
        epoch=completion.index + 1,
        input=prompt_messages,
        target=prompt.gold or "",
        messages=[*prompt_messages, *completion_messages],
        output=output,
        scores={SCORER: _inspect_score(record)},
        metadata={
            "task": prompt.task,
            "setting": prompt.setting,
            "thinking": prompt.thinking,
            "tools": prompt.tools,
            "finish": completion.finish,
            "error": completion.error,
        },
        events=[*events],
    )
    sample.model_usage = {model: _total_usage([event.output.usage for event in events])}
    return sample


def _model_events(record: Record, model: str) -> Iterator[ModelEvent]:
    """Yield the model calls of a completion, each with the messages and ids that it was given."""
    messages: list[ChatMessage] = [to_inspect(message) for message in record.prompt.messages]
    prompt_ids = record.completion.prompt_ids
    for step in record.completion.steps:
        output = to_output(step, model, prompt_ids=prompt_ids)
        yield ModelEvent(
            model=model,
            input=list(messages),
            tools=[],
            tool_choice="auto",
            config=GenerateConfig(),
            output=output,
        )
        messages += [output.message, *map(to_inspect, step.results)]
        if prompt_ids is not None and step.ids is not None:
            prompt_ids = (*prompt_ids, *step.ids, *step.results_ids)


def _inspect_score(record: Record) -> Score:
    """Convert the score of a record, and note the number of its calls."""
    score = record.score
    metadata = {"calls": len(record.verdict.calls)}
    if score.value is None:
        return Score.unscored(explanation=score.explanation, metadata=metadata)
    return Score(
        value=score.value, answer=score.answer, explanation=score.explanation, metadata=metadata
    )


def _total_usage(usages: Sequence[ModelUsage | None]) -> ModelUsage:
    """Add up tokens; a call without a count adds none."""
    return sum((usage for usage in usages if usage is not None), ModelUsage())
