"""Generate and grade with a scripted model: order, graders, failures, rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from posttrain.evaluation.run import (
    grade_completions,
    read_run,
    record_from_row,
    record_to_row,
)
from posttrain.evaluation.stage import rescored_records
from posttrain.records import Score
from posttrain.rollouts import Completion
from posttrain.sampling.sampler import seed_of
from tests.evaluation.scripted import exact, prompt
from tests.evaluation.small_eval import evaluate, write_recipe


def test_records_are_in_the_order_of_prompts_and_samples(tmp_path: Path):
    evaluate(write_recipe(tmp_path), "--task", "sums", "--limit", "6")
    run = tmp_path / "out"
    _, records = read_run(run)
    own = [r for r in records["sft"] if r.prompt.setting == "no_tools"]
    keys = [(r.prompt.id, r.completion.index) for r in own]
    assert keys == [(name, k) for name in dict.fromkeys(r.prompt.id for r in own) for k in (0, 1)]
    # the seeds of sampling: a call where it is divisible by 5, else right where it is odd
    for record in own:
        seed = seed_of(0, record.prompt.id, record.completion.index, 0)
        assert record.verdict.any == (seed % 5 == 0)
        assert record.score.value == float(seed % 5 != 0 and seed % 2 == 1)
        # rows come back as they were
        assert record_from_row(json.loads(json.dumps(record_to_row(record)))) == record
    # rescoring takes scores anew
    manifest, _ = read_run(run)
    stale = {"sft": [replace(r, score=Score(None, None, "old")) for r in records["sft"]]}
    again = rescored_records(run, manifest, stale, exact)["sft"]
    assert [r.score.value for r in again] == [r.score.value for r in records["sft"]]


def test_each_is_graded_by_the_grader_that_it_names_and_failures_by_none():
    sizes: list[int] = []

    def counting(name, attempts):
        sizes.append(len(attempts))
        return exact(name, attempts)

    prompts = [prompt(k, grader=None if k == 0 else "exact") for k in range(5)]
    attempts = [(p, Completion(p.id, 0, (), "stop")) for p in prompts]
    attempts[3] = (prompts[3], Completion(prompts[3].id, 0, (), "failed", error="it went away"))
    records = grade_completions("sft", attempts, counting)
    assert sizes == [3]
    assert [r.score.value for r in records] == [None, 0.0, 0.0, None, 0.0]
    assert [r.failed for r in records] == [False, False, False, True, False]
    assert records[0].score.explanation == "no grader"
    assert records[3].score.explanation == "failed: it went away"
