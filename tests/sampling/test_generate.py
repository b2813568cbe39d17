"""What is kept of unfinished samples: torn and damaged journals, failures, odd text."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from posttrain.errors import DataError
from posttrain.rollouts import Completion, Parameters, RolloutLimits, completion_from_row
from posttrain.sampling.engines.http import ServerDown
from posttrain.sampling.generate import Journal, generate, line_of, read_completions
from posttrain.sampling.progress import ProgressBar, SampleStats
from posttrain.sampling.rollout import Task
from posttrain.sampling.sampler import Request
from tests.sampling.scripted import END, FAIL, Adder, Scripted, call, question

LIMITS = RolloutLimits(Parameters(max_tokens=400), max_turns=4)
TASKS = [Task(question(n), index, seed=1) for n in range(7) for index in range(5)]


def script(request: Request, rng: random.Random) -> str:
    """Some call first; every text depends on the request's seed."""
    if request.continues is None and rng.random() < 0.4:
        return call("add", a=rng.randrange(9), b=1) + END
    return f"{rng.random()}{END}"


class KilledAfter(ProgressBar):
    """Ends the process, as it were, once so many completions were done."""

    def __init__(self, count: int) -> None:
        super().__init__(total=len(TASKS), most_tokens=100, console=Console(quiet=True))
        self.left = count

    def add(
        self,
        *,
        restored: int = 0,
        done: int = 0,
        tokens: int = 0,
        ended_tokens: int = 0,
        failed: int = 0,
    ) -> None:
        self.left -= done
        if self.left < 0:
            raise KeyboardInterrupt


def run(
    folder: Path, sampler: Scripted, *, kill_after: int = 99, failures: float = 0
) -> SampleStats:
    (folder / "work").mkdir(parents=True, exist_ok=True)
    made = generate(
        TASKS, sampler, work=folder / "work", to=folder / "samples.jsonl", limits=LIMITS, chunk=8,
        open_environment=lambda _: Adder(), at_once=4, max_failure_rate=failures,
        progress=KilledAfter(kill_after),
    )  # fmt: skip
    return asyncio.run(made)


def test_a_torn_last_line_is_sampled_again_and_a_damaged_one_named(tmp_path: Path):
    run(tmp_path / "whole", Scripted(script, batched=False))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "torn", Scripted(script, batched=False), kill_after=11)
    journal = tmp_path / "torn/work/journal.jsonl"
    first, *lines = journal.read_bytes()[:-20].splitlines(keepends=True)
    journal.write_bytes(b"".join([first, b"{}\n", *lines]))
    with pytest.raises(DataError, match=r"journal\.jsonl:2 is no sample"):
        run(tmp_path / "torn", Scripted(script, batched=False))
    journal.write_bytes(b"".join([first, *lines]))
    run(tmp_path / "torn", Scripted(script, batched=False))
    whole, torn = (tmp_path / name / "samples.jsonl" for name in ("whole", "torn"))
    assert torn.read_bytes() == whole.read_bytes()


def flaky(request: Request, rng: random.Random) -> str:
    return FAIL if request.messages[0].content == "2+2?" else script(request, rng)


@pytest.mark.parametrize("batched", [True, False])
def test_failures_are_counted_and_too_many_stop_the_run(tmp_path: Path, batched: bool):
    # a server's requests end with the failure that is one too many: 4 of 35 are above a tenth
    count = 5 if batched else 4
    refused = rf"{count} of 35 completions failed.*the server went away"
    with pytest.raises(DataError, match=refused):
        run(tmp_path, Scripted(flaky, batched=batched), failures=0.1)
    stats = run(tmp_path, Scripted(flaky, batched=batched), failures=0.2)
    completions = read_completions(tmp_path / "samples.jsonl")
    failed = [c for c in completions if c.finish == "failed"]
    assert [(c.prompt_id, c.error) for c in failed] == [
        (question(2).id, "the server went away")
    ] * 5
    counts = stats.by_setting()["with_tools"]
    assert (counts["finish"]["failed"], counts["finish"]["stop"]) == (5, 30)
    assert counts["samples_with_calls"] == sum(bool(c.tool_calls) for c in completions) > 0


def test_a_server_that_is_gone_ends_the_run_with_what_is_kept(tmp_path: Path):
    class Gone(Scripted):
        async def sample(self, requests: Any, *, progress: Any = None) -> Any:
            if len(self.calls) >= 20:
                raise ServerDown("http://here refused connections for 300 s")
            return await super().sample(requests, progress=progress)

    with pytest.raises(DataError, match=r"for 300 s: \d+ of 35 completions are missing"):
        run(tmp_path, Gone(script, batched=False))
    with Journal(tmp_path / "work/journal.jsonl") as journal:
        kept = sum((task.prompt.id, task.index) in journal for task in TASKS)
    assert 0 < kept < 35
    again = Scripted(script, batched=False)
    run(tmp_path, again)
    begun = [r for batch in again.calls for r in batch if r.continues is None]
    assert len(begun) == 35 - kept, "what is kept is not requested again"


def test_text_that_utf8_cannot_hold_survives(tmp_path: Path):
    done = Completion("a", 0, (), "failed", error="half \ud83d")
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.add(done)
    line = (tmp_path / "journal.jsonl").read_bytes()
    assert line == line_of(done).encode()
    assert completion_from_row(json.loads(line)) == done
