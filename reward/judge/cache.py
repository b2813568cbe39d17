"""Votes on disk, keyed by the request: a killed run pays for none of them twice.

    cache = VerdictCache(out / "judgements")
    cache.add("9c1e…", vote, seed=7)
    cache.get("9c1e…", seed=7)     → the very vote: a step that is done again finds what it paid for
    cache.get("9c1e…", seed=8)     → None: another step asks anew
    VerdictCache(folder, any_step=True).get("9c1e…", seed=8)
                                   → Vote(Verdict(4, 2, 2), text="…", cached=True)

A line is one vote. What a step finds depends on nothing that other steps or processes did, unless
`any_step` is set. A vote that could not be read counts only under the seed of its request, and is
written once its step is known to go on (`keep_failures`). Calls that the backend gave
up are not kept. Every process writes a file of its own, held by the kernel's lock, and reads all.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from posttrain.jsontext import load_json
from posttrain.records import json_text
from reward.judge.verdict import Verdict
from reward.judge.votes import Vote

_FIELDS = ("score_1", "score_2", "ranking")
_COSTS = ("calls", "prompt_tokens", "completion_tokens")
_Place = tuple[int, int, int]  # file descriptor, offset, length


class VerdictCache:
    """Votes by key and seed; a folder, used by any number of processes.

    What other processes add while this one is at work is not seen before it is opened again.

    Args:
        any_step: a verdict counts under every seed: whoever asks the same gets it for nothing.
    """

    def __init__(self, folder: Path, *, any_step: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._any_step = any_step
        self._places: dict[tuple[str, int | None], _Place] = {}
        self._lost: dict[tuple[str, int], Vote] = {}
        self._own, own_path = _own_file(folder)
        self._others: list[BinaryIO] = []
        for path in sorted(folder.glob("votes-*.jsonl")):
            if path != own_path:
                self._others.append(path.open("rb"))
                self._read(self._others[-1])
        # a line that a killed process left half-written is written over
        self._end = self._read(self._own)
        self._own.truncate(self._end)

    def __enter__(self) -> VerdictCache:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the files back."""
        for file in (self._own, *self._others):
            file.close()

    def get(self, key: str, *, seed: int) -> Vote | None:
        """The vote kept for what `key` stands for.

        Under the seed of its request it is the vote as it was, costs and all, so that a
        step which was killed and is done again has the same counts.
        """
        if (lost := self._lost.get((key, seed))) is not None:
            return lost
        # a step's own vote first: a failure was there before any later success
        place = self._places.get((key, seed)) or self._places.get((key, None))
        if place is None:
            return None
        file, offset, length = place
        row: Mapping[str, Any] = load_json(os.pread(file, length, offset))
        verdict = Verdict(*(row[name] for name in _FIELDS)) if row["reason"] is None else None
        vote = Vote(verdict, reason=row["reason"], text=row["text"])
        if row["seed"] == seed:
            return replace(vote, **{name: row[name] for name in _COSTS})
        return replace(vote, cached=True)

    def add(self, key: str, vote: Vote, *, seed: int) -> None:
        """Keep a vote. One with a verdict outlives the process when this returns.

        One without is only remembered, until `keep_failures`: a judge that fails too often to go on
        is called again by the same command; its failures do not stand.
        """
        if vote.verdict is None:
            if (key, seed) not in self._places:
                self._lost.setdefault((key, seed), vote)
            return
        self._write(key, vote, seed=seed)

    def keep_failures(self) -> None:
        """The step goes on: what failed in it stays failed, however often it is done again."""
        lost, self._lost = self._lost, {}
        for (key, seed), vote in lost.items():
            self._write(key, vote, seed=seed)

    def _write(self, key: str, vote: Vote, *, seed: int) -> None:
        if (key, seed) in self._places:
            return
        scores = {n: None if vote.verdict is None else getattr(vote.verdict, n) for n in _FIELDS}
        row = {"key": key, "seed": seed, **scores, "reason": vote.reason}
        row |= {"text": vote.text, **{name: getattr(vote, name) for name in _COSTS}}
        # half of a surrogate pair is no UTF-8: it is written as an escape
        line = (json_text(row).encode("utf-8", "backslashreplace")) + b"\n"
        offset = self._end
        self._own.seek(offset)
        self._own.write(line)
        self._own.flush()
        self._end += len(line)
        self._note(row, (self._own.fileno(), offset, len(line)))

    def _note(self, row: Mapping[str, Any], place: _Place) -> None:
        key, seed, reason = row["key"], row["seed"], row["reason"]
        self._places.setdefault((key, seed), place)
        if self._any_step and reason is None:
            self._places.setdefault((key, None), place)

    def _read(self, file: BinaryIO) -> int:
        """Note what a file holds; returns where its last whole line ends."""
        end = 0
        file.seek(0)
        for line in file:
            if not line.endswith(b"\n"):
                break
            place = (file.fileno(), end, len(line))
            end += len(line)
            try:
                self._note(load_json(line), place)
            except (ValueError, KeyError, TypeError):
                continue  # damaged: requested again
        return end


def _own_file(folder: Path) -> tuple[BinaryIO, Path]:
    """The first file that no other process holds."""
    for number in itertools.count():
        path = folder / f"votes-{number:03}.jsonl"
        file = path.open("a+b")
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        except OSError:
            pass  # a network file system without locks: there the user takes care
        return file, path
    raise AssertionError("there is always a next number")
