"""A finished run as inspect's own logs, which `inspect view --log-dir RUN/inspect` opens: one a
unit and checkpoint, its samples with messages, token ids, scores and calls.
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
    for checkpoint, own in records.items():
        (partial / checkpoint).mkdir(parents=True)
        model = f"posttrain/{checkpoint}"
        for unit, rows in by_unit(own).items():
            prompt = rows[0].prompt
            place = (checkpoint, prompt.source, prompt.setting)
            scores = [
                _results(cell)
                for cell in cells
                if (cell["checkpoint"], cell["task"], cell["setting"]) == place
            ]
            samples = [_sample(record, model) for record in rows]
            ids = list(dict.fromkeys(record.prompt.id for record in rows))
            key = digest_of([manifest.digest, checkpoint, unit])[:22]
            sampling: Mapping[str, Any] = lock["sampling"]
            log = EvalLog(
                status="success",
                eval=EvalSpec(
                    created=created,
                    run_id=manifest.digest[:22],
                    eval_id=key,
                    task_id=key,
                    task=unit,
                    dataset=EvalDataset(name=prompt.source, samples=len(ids), sample_ids=ids),
                    model=model,
                    model_generate_config=GenerateConfig(
                        **{k: sampling[k] for k in ("temperature", "top_p", "top_k", "max_tokens")}
                    ),
                    config=EvalConfig(epochs=sampling["samples"][unit]),
                    packages=lock["versions"],
                    metadata={"manifest": manifest.digest, "weights": lock["weights"][checkpoint]},
                ),
                stats=EvalStats(
                    started_at=created,
                    completed_at=created,
                    model_usage={model: _sum([s.model_usage[model] for s in samples])},
                ),
                results=EvalResults(
                    total_samples=len(rows),
                    completed_samples=sum(not record.failed for record in rows),
                    scores=scores,
                ),
                samples=samples,
            )
            # as inspect names its own: the parts between "_" have none
            name = f"{created.replace(':', '-')}_{unit.replace('_', '-')}_{key}.eval"
            write_eval_log(log, partial / checkpoint / name)
    partial.rename(folder)


def _results(cell: Mapping[str, Any]) -> EvalScore:
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


def _sample(record: Record, model: str) -> EvalSample:
    prompt, completion = record.prompt, record.completion
    events = list(_events(record, model))
    prompt_messages = [to_inspect(message) for message in prompt.messages]
    answered = [to_inspect(message) for message in completion.messages]
    sample = EvalSample(
        id=prompt.id,
        epoch=completion.index + 1,
        input=prompt_messages,
        target=prompt.gold or "",
        messages=[*prompt_messages, *answered],
        output=events[-1].output if events else ModelOutput(model=model, error=completion.error),
        scores={SCORER: _score(record)},
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
    sample.model_usage = {model: _sum([event.output.usage for event in events])}
    return sample


def _events(record: Record, model: str) -> Iterator[ModelEvent]:
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


def _score(record: Record) -> Score:
    given, calls = record.score, {"calls": len(record.verdict.calls)}
    if given.value is None:
        return Score.unscored(explanation=given.explanation, metadata=calls)
    why = given.explanation
    return Score(value=given.value, answer=given.answer, explanation=why, metadata=calls)


def _sum(usages: Sequence[ModelUsage | None]) -> ModelUsage:
    return sum((usage for usage in usages if usage is not None), ModelUsage())
