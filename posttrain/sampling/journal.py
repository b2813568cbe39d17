"""Finished completions on disk while more are made, so that a killed run repeats and loses none.

    work/chunk-00012.jsonl   in process: a fixed stretch of the tasks, whole or not there
    work/journal.jsonl       servers: a line as each completion ends, in any order

A line is the completion's row of `samples.jsonl`, byte for byte.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from posttrain.artifacts import atomic_write_text
from posttrain.errors import DataError
from posttrain.records import json_text
from posttrain.rollouts import Completion, completion_to_row

Key = tuple[str, int]  # prompt id, index
_SYNC_SECONDS = 1.0  # forcing every line out alone would hold up a fast server


def line_of(completion: Completion) -> str:
    """The completion as one line."""
    return row_line(completion_to_row(completion))


def row_line(row: object) -> str:
    """A row as one line of JSON that UTF-8 can hold."""
    # a broken byte sequence may have been decoded to a lone surrogate: such are written as escapes
    return json_text(row).encode("utf-8", "backslashreplace").decode() + "\n"


def chunk_path(work: Path, number: int) -> Path:
    """Where the rows of one stretch of tasks are kept."""
    return work / f"chunk-{number:05}.jsonl"


def write_chunk(work: Path, number: int, completions: Sequence[Completion]) -> None:
    """Keep a finished stretch: all of it appears at once."""
    atomic_write_text(chunk_path(work, number), "".join(line_of(c) for c in completions))


def read_chunks(work: Path, count: int) -> Iterator[bytes]:
    """The lines of all stretches, in order."""
    for number in range(count):
        with chunk_path(work, number).open("rb") as file:
            yield from file


class Journal:
    """Completions appended as they end, found again by prompt and index.

    with Journal(work / "journal.jsonl") as journal:
        journal.add(completion)
        (completion.prompt_id, completion.index) in journal
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[Key, tuple[int, int]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        end = self._recover()
        self._file: BinaryIO = path.open("r+b")
        self._file.truncate(end)
        self._file.seek(end)
        self._synced = time.monotonic()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sync()
        self._file.close()

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def add(self, completion: Completion) -> None:
        """Append a completion.

        When this returns it outlives the process; within a second it is forced to the disk.
        """
        key = (completion.prompt_id, completion.index)
        assert key not in self._places, f"{key} was sampled twice"
        line = line_of(completion).encode()
        start = self._file.tell()
        self._file.write(line)
        self._file.flush()
        self._places[key] = (start, len(line))
        if time.monotonic() - self._synced > _SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Force what was added to the disk."""
        os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def lines(self, keys: Iterable[Key], otherwise: Callable[[Key], bytes]) -> Iterator[bytes]:
        """The line of each key, in this order; `otherwise` gives those that are not here."""
        with self._path.open("rb") as file:
            for key in keys:
                if key not in self._places:
                    yield otherwise(key)
                    continue
                start, length = self._places[key]
                file.seek(start)
                yield file.read(length)

    def _recover(self) -> int:
        """Find what is there; returns where it ends. A last line that was torn does not count."""
        end = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                try:
                    row = json.loads(line)
                    key = (row["prompt_id"], row["index"])
                except (ValueError, KeyError, TypeError) as error:
                    raise DataError(
                        f"{self._path}:{number} is no sample ({error!r}); the file was damaged. "
                        "Delete that line to have it sampled again"
                    ) from error
                self._places[key] = (end, len(line))
                end += len(line)
        return end
