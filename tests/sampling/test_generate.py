"""Killed and restarted, generating ends with exactly every sample, the same as undisturbed."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from posttrain.errors import DataError
from posttrain.rollouts import Completion, completion_from_row
from posttrain.sampling.generate import Journal, generate, line_of
from posttrain.sampling.progress import ProgressBar, SampleStats
from posttrain.sampling.rollout import RolloutLimits, Task
from posttrain.sampling.sampler import Generation, Parameters, Request
from tests.sampling.scripted import END, Adder, Scripted, call, question

LIMITS = RolloutLimits(Parameters(max_tokens=400), max_turns=4)
TASKS = [Task(question(n), index, seed=1) for n in range(7) for index in range(5)]


def script(request: Request, rng: random.Random) -> str:
    """Some call first; every text depends on the request's seed."""
    if request.continues is None and rng.random() < 0.4:
        return call("add", a=rng.randrange(9), b=1) + END
    return f"{rng.random()}{END}"


class Killed(Exception):
    """Stands for the end of the process."""


class KilledAfter(ProgressBar):
    """Ends the process once so many completions were done."""

    def __init__(self, count: int) -> None:
        super().__init__(total=len(TASKS), console=Console(quiet=True))
        self.left = count

    def add(self, *, restored: int = 0, done: int = 0, tokens: int = 0) -> None:
        self.left -= done
        if self.left < 0:
            raise Killed


def run(
    folder: Path,
    *,
    sampler: Scripted,
    progress: ProgressBar | None = None,
    max_failure_rate: float = 0.0,
    tasks: Sequence[Task] = TASKS,
) -> SampleStats:
    """Generate into `folder`."""
    (folder / "work").mkdir(parents=True, exist_ok=True)
    made = generate(
        tasks,
        sampler,
        work=folder / "work",
        to=folder / "samples.jsonl",
        open_environment=lambda _: Adder(),
        limits=LIMITS,
        chunk=8,
        at_once=4,
        max_failure_rate=max_failure_rate,
        progress=progress or KilledAfter(len(tasks)),
    )
    return asyncio.run(made)


def rows(folder: Path) -> list[Completion]:
    """What was written."""
    lines = (folder / "samples.jsonl").read_text("utf-8").splitlines()
    return [completion_from_row(json.loads(line)) for line in lines]


@pytest.mark.parametrize("batched", [True, False])
def test_killed_three_times_gives_the_same_bytes(tmp_path: Path, batched: bool):
    run(tmp_path / "whole", sampler=Scripted(script, batched=batched))
    asked = 0
    for count in (3, 9, 1):
        sampler = Scripted(script, batched=batched)
        with pytest.raises(Killed):
            run(tmp_path / "killed", sampler=sampler, progress=KilledAfter(count))
        assert not (tmp_path / "killed/samples.jsonl").exists()
        asked += sum(r.continues is None for batch in sampler.calls for r in batch)
    sampler = Scripted(script, batched=batched)
    run(tmp_path / "killed", sampler=sampler)
    last = sum(r.continues is None for batch in sampler.calls for r in batch)
    assert last < len(TASKS), "everything was sampled again"
    whole, killed = (tmp_path / name / "samples.jsonl" for name in ("whole", "killed"))
    assert killed.read_bytes() == whole.read_bytes()
    found = [(c.prompt_id, c.index) for c in rows(tmp_path / "killed")]
    assert found == [(task.prompt.id, task.index) for task in TASKS]


def test_a_torn_last_line_is_sampled_again(tmp_path: Path):
    run(tmp_path / "whole", sampler=Scripted(script, batched=False))
    sampler = Scripted(script, batched=False)
    with pytest.raises(Killed):
        run(tmp_path / "torn", sampler=sampler, progress=KilledAfter(11))
    journal = tmp_path / "torn/work/journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    run(tmp_path / "torn", sampler=Scripted(script, batched=False))
    whole, torn = (tmp_path / name / "samples.jsonl" for name in ("whole", "torn"))
    assert torn.read_bytes() == whole.read_bytes()


def test_a_damaged_journal_is_named(tmp_path: Path):
    with pytest.raises(Killed):
        run(tmp_path, sampler=Scripted(script, batched=False), progress=KilledAfter(5))
    journal = tmp_path / "work/journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"{}\n", *lines[1:]]))
    with pytest.raises(DataError, match=r"journal\.jsonl:2 is no sample"):
        run(tmp_path, sampler=Scripted(script, batched=False))


class Flaky(Scripted):
    """Refuses the prompts that it is told to refuse."""

    refused: tuple[str, ...] = ()

    async def sample(self, requests, *, progress=None):
        found = await super().sample(requests, progress=progress)
        return [
            Generation(None, error="HTTP 500") if r.messages[0].content in self.refused else g
            for r, g in zip(requests, found, strict=True)
        ]


def test_a_server_is_asked_again_for_what_failed_alone(tmp_path: Path):
    run(tmp_path / "whole", sampler=Scripted(script, batched=False))
    flaky = Flaky(script, batched=False)
    flaky.refused = ("2+2?",)
    with pytest.raises(DataError, match=r"5 of 35 completions failed.*HTTP 500"):
        run(tmp_path / "flaky", sampler=flaky, max_failure_rate=0.1)
    again = Scripted(script, batched=False)
    run(tmp_path / "flaky", sampler=again)
    assert {r.messages[0].content for batch in again.calls for r in batch} == {"2+2?"}
    whole, flaked = (tmp_path / name / "samples.jsonl" for name in ("whole", "flaky"))
    assert flaked.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("batched", [True, False])
def test_failures_within_the_limit_stay_and_are_counted(tmp_path: Path, batched: bool):
    flaky = Flaky(script, batched=batched)
    flaky.refused = ("2+2?",)
    stats = run(tmp_path, sampler=flaky, max_failure_rate=0.2)
    failed = [c for c in rows(tmp_path) if c.finish == "failed"]
    assert [(c.prompt_id, c.error) for c in failed] == [(question(2).id, "HTTP 500")] * 5
    counts = stats.by_setting()["with_tools"]
    assert (counts["finish"]["failed"], counts["finish"]["stop"]) == (5, 30)
    assert counts["samples_with_calls"] == sum(bool(c.tool_calls) for c in rows(tmp_path)) > 0


def test_text_that_utf8_cannot_hold_survives(tmp_path: Path):
    done = Completion("a", 0, (), "failed", error="half \ud83d")
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.add(done)
    line = (tmp_path / "journal.jsonl").read_bytes()
    assert line == line_of(done).encode()
    assert completion_from_row(json.loads(line)) == done
