"""Tokens and money of completions, and the times of calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from posttrain.config.eval import Price
from posttrain.errors import DataError
from posttrain.evaluation.cost import busy_seconds, cost_rows, money, tokens_of
from posttrain.evaluation.journal import NOT_KEPT, JournaledSampler, TimedSampler, read_lines
from posttrain.records import Message
from posttrain.rollouts import (
    Completion,
    Parameters,
    ParsedCompletion,
    Step,
    step_from_row,
    step_to_row,
)
from posttrain.sampling.sampler import Generation, Request
from tests.evaluation.scripted import ScriptedSampler, record, turn

PARSED = ParsedCompletion("because", "56", (), (), True)


def step(prompt_tokens: int, reasoning: int, answer: int, **more) -> Step:
    return Step("", PARSED, "stop", reasoning, answer, prompt_tokens, **more)


def test_every_token_is_counted_once():
    tokens = tokens_of(
        Completion("p", 0, (step(100, 30, 10), step(150, 0, 20, cached_tokens=100)), "stop")
    )
    assert tokens == {"input": 250, "cached": 100, "output": 60, "reasoning": 30}
    # 150 fresh and 100 cached tokens in; 60 out, of which 30 are reasoning
    price = Price(input=1, cached=0.1, output=10)
    assert money(tokens, price) == pytest.approx((150 + 10 + 600) / 1e6)
    # without a price of their own cached tokens cost what others do, no more
    assert money(tokens, Price(input=1, output=10)) == pytest.approx((250 + 600) / 1e6)


def test_nothing_is_cached_where_the_server_reports_nothing():
    tokens = tokens_of(Completion("p", 0, (step(100, 0, 1), step(150, 0, 1)), "stop"))
    assert tokens["cached"] == 0
    assert money(tokens, Price(input=1, cached=0.1, output=0)) == pytest.approx(250 / 1e6)


def test_cached_tokens_are_those_that_the_server_reported():
    first, second = step(100, 0, 1, cached_tokens=64), step(150, 0, 1, cached_tokens=0)
    assert tokens_of(Completion("p", 0, (first, second), "stop"))["cached"] == 64
    unit, _ = cost_rows({"sft": [record(0, 1.0, first, step(150, 0, 1))]}, {}, {})
    assert (unit["tokens"]["cached"], unit["calls"], unit["cached_reported"]) == (64, 2, 1)
    assert step_from_row(step_to_row(first)) == first


def test_what_the_model_did_not_write_is_not_billed():
    forced = step(10, 3, 1, ids=tuple(range(8)), forced=(3, 5))
    assert tokens_of(Completion("p", 0, (forced,), "stop"))["output"] == 6


def test_money_per_solved_task_holds_the_failing_runs_once():
    records = {"sft": [record(n, float(n == 0), step(0, 0, 1_000_000)) for n in range(4)]}
    unit, every = cost_rows(records, {"sft": Price(input=0, output=2)}, {})
    assert unit["money"] == every["money"] == 8
    assert (unit["solved"], unit["money_per_solved"]) == (1, 8)
    assert unit["latency"] is unit["tokens_per_second"] is None
    nothing, _ = cost_rows({"sft": [record(0, 0.0, step(1, 1, 1))]}, {}, {})
    assert nothing["money"] is nothing["money_per_solved"] is None


def test_throughput_is_over_the_time_in_which_calls_were_under_way():
    times = [{"start": 0, "end": 4}, {"start": 1, "end": 2}, {"start": 3, "end": 6}]
    assert busy_seconds([*times, {"start": 10, "end": 11}]) == 7


def request(number: int) -> Request:
    return Request((Message("user", f"{number}"),), None, True, Parameters(), seed=number)


def test_a_journal_gives_every_answer_again_and_invents_none(tmp_path):
    path, model = tmp_path / "journal.jsonl", ScriptedSampler(lambda r: turn(str(r.seed)))

    def ask(sampler, *numbers):
        return asyncio.run(sampler.sample([request(number) for number in numbers]))

    timed = TimedSampler(model, tmp_path / "times.jsonl")
    first = ask(JournaledSampler(timed, path), 1, 2, 1)
    assert [len(batch) for batch in model.calls] == [2]  # the same request is made once
    path.write_bytes(path.read_bytes() + b'{"key": "torn')
    again = ask(JournaledSampler(timed, path), 2, 3, 1)
    assert [len(batch) for batch in model.calls] == [2, 1]
    assert [g.step for g in again[::2]] == [first[1].step, first[0].step]
    replayed = ask(JournaledSampler(None, path), 3, 4)
    assert replayed[0].step == again[1].step
    assert (replayed[1].step, replayed[1].error) == (None, NOT_KEPT)
    times, _ = read_lines(tmp_path / "times.jsonl")
    assert [row["requests"] for row in times] == [2, 1]
    assert all(row["end"] >= row["start"] for row in times)
    path.write_text("no JSON\n" + path.read_text())
    with pytest.raises(DataError, match=r"journal\.jsonl:1"):
        read_lines(path)


def test_a_failure_is_requested_again(tmp_path):
    path = tmp_path / "journal.jsonl"
    failing = JournaledSampler(ScriptedSampler(lambda _: "FAIL"), path)
    (generation,) = asyncio.run(failing.sample([request(1)]))
    assert generation.step is None
    assert generation.error == "the server went away"
    assert not path.exists() or not path.read_text()
    kept = JournaledSampler(ScriptedSampler(lambda _: turn("56")), path)
    (generation,) = asyncio.run(kept.sample([request(1)]))
    assert generation.step is not None
    assert json.loads(path.read_text())["step"]["parsed"]["answer"] == "56"


def test_a_timed_sampler_hands_generations_over_as_the_one_behind_it_does(tmp_path):
    class Each:
        batched = True
        identity: Mapping[str, Any] = {}

        async def sample_each(self, requests, *, on_done, progress=None):
            for number in reversed(range(len(requests))):
                on_done(number, Generation(None, error=str(number)))
                seen.append(len(order))

        async def sample(self, requests, *, progress=None):
            raise AssertionError("all at the end")

    order: list[int] = []
    seen: list[int] = []
    timed = TimedSampler(Each(), tmp_path / "times.jsonl")
    requests: list[Any] = [None] * 3
    asyncio.run(timed.sample_each(requests, on_done=lambda number, _: order.append(number)))
    assert order == [2, 1, 0]
    assert seen == [1, 2, 3]
    [row] = map(json.loads, (tmp_path / "times.jsonl").read_text().splitlines())
    assert row["requests"] == 3
