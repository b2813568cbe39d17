"""Finished runs as inspect's logs: what they hold, read with inspect's own reader."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

pytest.importorskip("inspect_ai")

from inspect_ai.log import list_eval_logs, read_eval_log

from posttrain.evaluation.run import read_run
from tests.evaluation.scripted import ScriptedSampler
from tests.evaluation.small_eval import answer, evaluate, write_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one task with logs, which were written after it was finished."""
    folder = tmp_path_factory.mktemp("logged")
    recipe = write_recipe(folder, max_failure_rate=0.5)

    def sometimes(request) -> str:
        return "FAIL" if request.seed % 7 == 0 else answer(request)

    samplers = [ScriptedSampler(sometimes), ScriptedSampler(answer)]
    evaluate(recipe, "--task", "sums", samplers=samplers)
    assert not (folder / "out/inspect").exists()
    evaluate(recipe, "--task", "sums", "inspect_logs=true", samplers=[])
    return folder / "out"


def test_a_log_a_unit_with_the_figures_of_the_run(run: Path):
    logs = [read_eval_log(info) for info in list_eval_logs(str(run / "inspect"))]
    assert {(log.eval.model, log.eval.task, log.status) for log in logs} == {
        (f"posttrain/{name}", f"sums.{setting}", "success")
        for name in ("sft", "dpo")
        for setting in ("no_tools", "with_tools")
    }
    assert len({log.eval.task_id for log in logs}) == 4
    cells = json.loads((run / "metrics.json").read_text())["cells"]
    (log,) = [log for log in logs if (log.eval.model, log.eval.task)
              == ("posttrain/sft", "sums.no_tools")]  # fmt: skip
    assert log.results is not None
    assert (log.results.total_samples, log.eval.config.epochs) == (48, 2)
    failed = [s.scores["posttrain"].value for s in log.samples if s.metadata["finish"] == "failed"]
    assert failed
    assert all(math.isnan(value) for value in failed)
    for score, cell in zip(log.results.scores, cells[:2], strict=True):
        assert score.name == f"reasoning {cell['thinking']}"
        figures = {name: metric.value for name, metric in score.metrics.items()}
        assert figures == {name: rate["value"] for name, rate in cell["rates"].items()}


def test_a_sample_holds_messages_token_ids_and_its_score(run: Path):
    (info,) = list_eval_logs(
        str(run / "inspect/dpo"), filter=lambda log: log.eval.task == "sums.with_tools"
    )
    samples = read_eval_log(info).samples or []
    _, records = read_run(run)
    record = next(r for r in records["dpo"] if r.prompt.setting == "with_tools")
    (sample,) = [sample for sample in samples if sample.id == record.prompt.id]
    assert sample.epoch == record.completion.index + 1
    assert [m.role for m in sample.messages] == ["user", "assistant", "tool", "assistant"]
    outputs = [event.output for event in sample.events if event.event == "model"]
    assert [output.metadata["ids"] for output in outputs] == [
        list(step.ids or ()) for step in record.completion.steps
    ]
    assert outputs[1].metadata["prompt_ids"] == [
        *(record.completion.prompt_ids or ()),
        *(record.completion.steps[0].ids or ()),
        *record.completion.steps[0].results_ids,
    ]
    score = (sample.scores or {})["posttrain"]
    assert (score.value, score.answer) == (record.score.value, record.score.answer)
    assert score.metadata == {"calls": 1}
