"""Scores of served teachers on disk, so that a killed run asks no server twice.

    scores-00003.jsonl
    {"key": "9f2c…", "logps": [-0.25, …]}

A file has what was scored between two checkpoints, a line a rollout. It is written as scores
arrive, so that a run that was killed at any moment repeats what was in flight alone. A score that
is no use is not kept: the resumed run asks for it again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from posttrain.jsontext import row_line
from posttrain.sampling.cancellation import gather_or_cancel
from posttrain.sampling.sampler import ScoreOutput, Scorer, ScoreRequest
from reward.distill import scoring_problem

# files that a run may need: it may resume from the checkpoint before the last, which may hold
# rollouts that were scored before it was written
_KEPT_FILES = 3


class ScoreStore:
    """Scores of one process, in a folder of its own.

    What this process adds is for a resumed run: only scores that were there when the folder was
    opened are looked up.
    """

    def __init__(self, folder: Path) -> None:
        """Open a folder, and index the scores in it.

        A line that a killed process left half-written is cut off.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        # key → file and position of its line
        self._lines: dict[str, tuple[Path, int]] = {}
        self._number = 1
        for path in self._paths():
            self._index(path)
            self._number = _number(path)
        self._output = self._open()

    def close(self) -> None:
        self._output.close()

    def get(self, key: str) -> ScoreOutput | None:
        """Look a score up; None if there is none."""
        if key not in self._lines:
            return None
        path, position = self._lines[key]
        with path.open("rb") as file:
            file.seek(position)
            return ScoreOutput(tuple(json.loads(file.readline())["logps"]))

    def add(self, key: str, output: ScoreOutput) -> None:
        """Write a score."""
        self._output.write(row_line({"key": key, "logps": output.logps}).encode())
        self._output.flush()

    def begin_file(self) -> None:
        """Begin another file, as a checkpoint is written, and delete those that none needs."""
        self._output.close()
        self._number += 1
        self._output = self._open()
        for path in self._paths()[:-_KEPT_FILES]:
            path.unlink()
            self._lines = {key: line for key, line in self._lines.items() if line[0] != path}

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("scores-*.jsonl"), key=_number)

    def _open(self) -> BinaryIO:
        return (self._folder / f"scores-{self._number:05}.jsonl").open("ab")

    def _index(self, path: Path) -> None:
        position = 0
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._lines[json.loads(line)["key"]] = path, position
                position += len(line)
        os.truncate(path, position)


class KeptScorer:
    """A served teacher whose scores are kept on disk, as a `Scorer`."""

    batched = False

    def __init__(self, scorer: Scorer, store: ScoreStore) -> None:
        self._scorer = scorer
        self._store = store

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._scorer.identity

    async def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreOutput]:
        """Score as the teacher does, or take what is on disk."""
        return await gather_or_cancel(self._score(request) for request in requests)

    async def _score(self, request: ScoreRequest) -> ScoreOutput:
        content = [self.identity["weights"], request.ids, [*map(int, request.mask)]]
        key = hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()
        kept = self._store.get(key)
        if kept is not None:
            return kept
        [output] = await self._scorer.score([request])
        if scoring_problem(output, request) is None:
            self._store.add(key, output)
        return output


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("scores-"))
