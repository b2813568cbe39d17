"""Units through inspect: batches, tools, records, failures, and what is left on disk."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("inspect_ai")

from posttrain.evaluation.inspect_run import run_units
from posttrain.evaluation.record import Record, record_from_row, record_to_row
from posttrain.evaluation.unit import units_of
from posttrain.sampling.rollout import Task, roll_out
from posttrain.sampling.sampler import seed_of
from tests.evaluation.scripted import CALL, ScriptedSampler, exact, how, prompt, turn, unit


def evaluate(units, sampler, how_, *, log_dir=None, **more) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}

    def keep(unit, records):
        found[unit.name] = records

    asyncio.run(run_units(units, sampler, how_, log_dir=log_dir, on_done=keep, **more))
    return found


def by_seed(request) -> str:
    """Right for even seeds, wrong for odd ones: samples of one prompt differ."""
    return turn("56" if request.seed % 2 == 0 else "55", thinking=request.thinking)


def calling(request) -> str:
    """Calls first, then gives what the tool said."""
    last = request.messages[-1]
    return turn(last.content if last.role == "tool" else CALL, thinking=request.thinking)


def test_records_are_in_the_order_of_prompts_and_samples():
    prompts = [prompt(k) for k in range(5)]
    found = evaluate([unit(prompts, samples=3)], ScriptedSampler(by_seed), how())
    records = found["maths.no_tools"]
    assert [(r.prompt.id, r.completion.index) for r in records] == [
        (p.id, k) for p in prompts for k in range(3)
    ]
    assert [r.score.value for r in records] == [
        float(seed_of(7, p.id, k, 0) % 2 == 0) for p in prompts for k in range(3)
    ]
    assert {r.score.value for r in records} == {0.0, 1.0}


def test_completions_are_those_of_our_own_rollouts():
    prompts = [prompt(k, tools=True, thinking=k % 2 == 0) for k in range(4)]
    found = evaluate([unit(prompts, samples=2)], ScriptedSampler(calling), how())
    tasks = [Task(p, k, 7) for p in prompts for k in range(2)]
    alone = asyncio.run(
        roll_out(
            tasks,
            ScriptedSampler(calling),
            open_environment=how().open_environment,
            limits=how().limits,
        )
    )
    assert [r.completion for r in found["maths.with_tools"]] == alone
    assert alone[0].steps[0].results[0].content == "56"
    assert alone[0].steps[0].results_ids == tuple(map(ord, "56"))


def test_all_that_wait_are_one_batch_in_order():
    prompts = [prompt(k, tools=True) for k in range(30)]

    def some_call(request) -> str:
        number = int(request.messages[0].content.split()[1].strip(":"))
        return calling(request) if number % 3 == 0 else turn("56")

    sampler = ScriptedSampler(some_call)
    evaluate([unit(prompts)], sampler, how())
    assert [len(batch) for batch in sampler.batches] == [30, 10]
    assert [r.messages[0].content for r in sampler.batches[0]] == [
        p.messages[0].content for p in prompts
    ]


def test_units_run_one_after_another():
    a, b = [prompt(k) for k in range(3)], [prompt(k, tools=True) for k in range(4)]
    sampler = ScriptedSampler(calling)
    found = evaluate([unit(a), unit(b)], sampler, how())
    assert [len(batch) for batch in sampler.batches] == [3, 4, 4]
    assert list(found) == ["maths.no_tools", "maths.with_tools"]


def test_a_server_is_asked_one_at_a_time_and_its_failures_are_records():
    prompts = [prompt(k) for k in range(6)]

    def broken(request) -> str:
        return "FAIL" if "question 2:" in request.messages[0].content else turn("56")

    sampler = ScriptedSampler(broken, batched=False)
    records = evaluate([unit(prompts)], sampler, how(), at_once=2)["maths.no_tools"]
    assert all(len(batch) == 1 for batch in sampler.batches)
    assert [r.failed for r in records] == [k == 2 for k in range(6)]
    assert records[2].score.value is None
    assert records[2].score.explanation == "failed: the server went away"


def test_a_failing_grader_ends_the_run_with_its_own_error():
    def broken(name, attempts):
        raise ZeroDivisionError("the grader is broken")

    with pytest.raises(ZeroDivisionError, match="the grader is broken"):
        evaluate([unit([prompt(0), prompt(1)])], ScriptedSampler(by_seed), how(broken))


def test_a_failing_sampler_ends_the_run_with_its_own_error():
    def broken(request):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        evaluate([unit([prompt(0), prompt(1)])], ScriptedSampler(broken), how())


def test_gradings_come_together_too():
    sizes: list[int] = []

    def counting(name, attempts):
        sizes.append(len(attempts))
        return exact(name, attempts)

    prompts = [prompt(k, grader=None if k == 0 else "exact") for k in range(5)]
    records = evaluate([unit(prompts)], ScriptedSampler(by_seed), how(counting))["maths.no_tools"]
    assert sizes == [4]
    assert records[0].score.value is None
    assert records[0].score.explanation == "no grader"


def test_rows_come_back_as_they_were():
    prompts = [prompt(k, tools=True) for k in range(2)]
    records = evaluate([unit(prompts)], ScriptedSampler(calling), how())["maths.with_tools"]
    again = [record_from_row(json.loads(json.dumps(record_to_row(r)))) for r in records]
    assert again == records
    assert records[0].verdict.calls[0].kind == "declared"


def test_the_log_holds_token_ids_and_scores(tmp_path: Path):
    prompts = [prompt(k, tools=True) for k in range(2)]
    evaluate([unit(prompts)], ScriptedSampler(calling), how(), log_dir=tmp_path / "inspect")
    (log,) = (tmp_path / "inspect").glob("*.eval")
    with zipfile.ZipFile(log) as archive:
        name = next(n for n in archive.namelist() if n.startswith("samples/"))
        sample = json.loads(archive.read(name))
    events = [e for e in sample["events"] if e["event"] == "model"]
    assert len(events) == 2
    assert events[0]["output"]["metadata"]["ids"] == list(map(ord, turn(CALL)))
    assert sample["scores"]["posttrain_grade"]["value"] == 1.0
    assert [m["role"] for m in sample["messages"]] == ["user", "assistant", "tool", "assistant"]


def test_no_log_means_none_and_the_home_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    evaluate([unit([prompt(0)])], ScriptedSampler(by_seed), how())
    assert "XDG_DATA_HOME" not in os.environ
    assert not list(tmp_path.rglob("*"))


def test_nothing_goes_out(monkeypatch):
    def refuse(self, address):
        raise AssertionError(f"connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("INSPECT_TELEMETRY", "no_such_package.send")
    evaluate([unit([prompt(0)])], ScriptedSampler(by_seed), how())


def test_units_of_prompts():
    prompts = [prompt(0), prompt(1, thinking=False), prompt(0, tools=True), prompt(0, source="b")]
    units = units_of("sft", prompts, {"no_tools": 2, "with_tools": 3}.__getitem__)
    assert [(u.name, u.samples, len(u.prompts)) for u in units] == [
        ("maths.no_tools", 2, 2),
        ("maths.with_tools", 3, 1),
        ("b.no_tools", 2, 1),
    ]
