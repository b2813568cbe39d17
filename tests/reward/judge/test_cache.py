"""Votes on disk: nothing is asked twice after a kill, and a torn or damaged file costs little."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from posttrain.sampling.sampler import Generation, Request
from reward.judge.verdict import Verdict
from reward.judge.votes import Judgement, VerdictCache, Vote
from tests.reward.judge.judging import babble, fair, judge_of, numbered
from tests.sampling.scripted import Scripted

VOTE = Vote(Verdict(4, 2.5, 2), text="fünf\ud83d", calls=2, prompt_tokens=7, completion_tokens=3)
KEPT = Vote(Verdict(4, 2.5, 2), text="fünf\ud83d", cached=True)
LOST = Vote(None, reason="unreadable", text="hm", calls=4)


class Killed(BaseException):
    """What stands for kill -9: nothing catches it."""


class Dying(Scripted):
    """Dies in its third call."""

    async def sample(
        self, requests: Sequence[Request], *, progress: Callable[[int], None] | None = None
    ) -> list[Generation]:
        if len(self.calls) == 2:
            raise Killed
        return await super().sample(requests, progress=progress)


def test_a_vote_is_found_again_in_its_step_and_elsewhere_if_that_is_asked_for(tmp_path: Path):
    with VerdictCache(tmp_path) as cache:
        cache.add("a", VOTE, seed=1)
        cache.add("a", Vote(Verdict(1, 1, 1)), seed=1)  # the first word stands
        assert [cache.get("a", seed=s) for s in (1, 9)] == [VOTE, None]
        assert cache.get("b", seed=1) is None
    with VerdictCache(tmp_path, any_step=True) as cache:
        assert [cache.get("a", seed=s) for s in (1, 9)] == [VOTE, KEPT]


def test_a_failure_counts_under_its_seed_alone_once_its_step_went_on(tmp_path: Path):
    with VerdictCache(tmp_path) as cache:
        cache.add("a", LOST, seed=1)
        assert [cache.get("a", seed=s) for s in (1, 2)] == [LOST, None]
    with VerdictCache(tmp_path) as cache:  # its step did not go on
        assert cache.get("a", seed=1) is None
        cache.add("a", LOST, seed=1)
        cache.keep_failures()
    with VerdictCache(tmp_path, any_step=True) as cache:
        cache.add("a", VOTE, seed=2)
        # a resumed run meets step 1 again, and finds what it found then
        assert cache.get("a", seed=1) == replace(LOST, calls=4)
        assert cache.get("a", seed=3) == KEPT


@pytest.mark.parametrize("tail", [b'{"key": "c", "seed"', b'{"key": "c"}\n', b"\x00\xff\n", b"7\n"])
def test_a_torn_or_damaged_line_is_left_out(tmp_path: Path, tail: bytes):
    with VerdictCache(tmp_path) as cache:
        cache.add("a", VOTE, seed=1)
    path = tmp_path / "votes-000.jsonl"
    path.write_bytes(path.read_bytes() + tail)
    for _ in range(2):
        with VerdictCache(tmp_path) as cache:
            assert cache.get("a", seed=1) == VOTE
            assert cache.get("c", seed=1) is None
            cache.add("b", VOTE, seed=1)
            assert cache.get("b", seed=1) == VOTE


def test_two_at_work_write_apart_and_later_read_both(tmp_path: Path):
    with VerdictCache(tmp_path) as one, VerdictCache(tmp_path) as two:
        one.add("a", VOTE, seed=1)
        two.add("b", VOTE, seed=1)
        assert two.get("a", seed=1) is None
    assert len(list(tmp_path.iterdir())) == 2
    with VerdictCache(tmp_path) as cache:
        assert cache.get("a", seed=1) == cache.get("b", seed=1) == VOTE


def test_what_was_added_outlives_a_killed_process(tmp_path: Path):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with VerdictCache(tmp_path) as cache:
            for k in itertools.count():
                cache.add(str(k), Vote(Verdict(4, 2, 2), text="x" * k), seed=1)
                os.write(writer, b".")
    added = 0
    while added <= 300:
        added += len(os.read(reader, 100))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for end in (reader, writer):
        os.close(end)
    with VerdictCache(tmp_path) as cache:
        assert [path.name for path in tmp_path.iterdir()] == ["votes-000.jsonl"]
        for k in range(301):
            assert getattr(cache.get(str(k), seed=1), "text", None) == "x" * k


def judged(
    sampler: Scripted, folder: Path, *, seed: int = 1, any_step: bool = False, **fields: object
) -> list[Judgement]:
    with VerdictCache(folder, any_step=any_step) as cache:
        judge = judge_of(sampler, cache=cache, **fields)
        found = asyncio.run(judge.judge(numbered(12), seed=seed))
        judge.keep_failures()
        return found


@pytest.mark.parametrize("batched", [True, False])
def test_after_a_kill_only_what_is_missing_is_asked(
    tmp_path: Path, batched: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("reward.judge.judge.CHUNK", 5)
    undisturbed = judged(Scripted(fair, batched=batched), tmp_path / "whole")
    dying = Dying(fair, batched=batched)
    with pytest.raises(Killed):
        judged(dying, tmp_path / "killed")
    again = Scripted(fair, batched=batched)
    found = judged(again, tmp_path / "killed")
    # in process the stretches 5 + 5 were finished, of a server two questions
    requests = [len(call) for call in again.calls]
    assert requests == ([2] if batched else [1] * 10)
    # what it cost too: the counts of a step that is done again are the same
    assert found == undisturbed
    known = Scripted(babble, batched=batched)
    again_known = judged(known, tmp_path / "killed", seed=2, any_step=True)
    assert known.calls == []
    assert [j.votes[0].text for j in again_known] == [j.votes[0].text for j in undisturbed]
    assert sum(vote.calls for j in again_known for vote in j.votes) == 0
    asked_anew = Scripted(fair, batched=batched)
    judged(asked_anew, tmp_path / "killed", seed=2)
    assert sum(map(len, asked_anew.calls)) == 12
