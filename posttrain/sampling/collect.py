"""Every task's completion in one file, in order, however often the work is killed on the way.

    tally = await collect(tasks, sampler, work=out / "work", to=out / "samples.jsonl", …)
    tally.stats()  → {"no_tools": {"samples": 9600, "finish": {"stop": 9571, "length": 29}, …}}

In process the tasks are cut into fixed stretches; one that was not finished is made again whole,
and comes out the same. A server's completions are kept one by one; only missing ones are asked for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.errors import DataError
from posttrain.rollouts import Completion
from posttrain.sampling.journal import Journal, Key, chunk_path, line_of, read_chunks, write_chunk
from posttrain.sampling.loop import OpenEnvironment, Task, roll_out, roll_out_each
from posttrain.sampling.protocol import Sampler
from posttrain.sampling.rollout import Limits
from posttrain.sampling.tally import Tally


@dataclass(frozen=True, slots=True)
class How:
    """How tasks become completions.

    `chunk` is the completions of a stretch; `at_once` bounds the rollouts in flight with a server;
    `max_failure_rate` is the largest share of completions that may fail.
    """

    open_environment: OpenEnvironment
    limits: Limits
    chunk: int = 512
    at_once: int = 64
    max_failure_rate: float = 0.0


class Watch:
    """Told how it goes; this one does not care."""

    def restored(self, completions: int) -> None:
        """So many were there already."""

    def tokens(self, new: int) -> None:
        """New tokens came."""

    def done(self, completion: Completion) -> None:
        """A completion came to its end."""


async def collect(
    tasks: Sequence[Task],
    sampler: Sampler,
    *,
    work: Path,
    to: Path,
    how: How,
    watch: Watch,
) -> Tally:
    """Make what is missing in `work`, then write all of it to `to`, one line a task, in order.

    Args:
        work: a folder that belongs to these tasks and this sampler; the caller sees to that.

    Raises:
        DataError: more than `how.max_failure_rate` of them failed. Called again, a server is asked
            again for those that did.
    """
    if sampler.batched:
        count = await _make_chunks(tasks, sampler, work, how, watch)
        tally = _join(tasks, read_chunks(work, count), to)
        _refuse_failures(tally, len(tasks), how, "They would fail again: leave out such prompts")
        return tally
    with Journal(work / "journal.jsonl") as journal:
        failed = await _fill(journal, tasks, sampler, how, watch)
        lines = journal.lines(map(_key, tasks), otherwise=failed.__getitem__)
        tally = _join(tasks, lines, to)
    _refuse_failures(tally, len(tasks), how, "The same command asks again for those alone")
    return tally


def _key(task: Task) -> Key:
    return task.prompt.id, task.index


async def _make_chunks(
    tasks: Sequence[Task], sampler: Sampler, work: Path, how: How, watch: Watch
) -> int:
    starts = range(0, len(tasks), how.chunk)
    for number, start in enumerate(starts):
        stretch = tasks[start : start + how.chunk]
        if chunk_path(work, number).is_file():
            watch.restored(len(stretch))
            continue
        completions = await roll_out(
            stretch,
            sampler,
            open_environment=how.open_environment,
            limits=how.limits,
            on_done=watch.done,
            progress=watch.tokens,
        )
        write_chunk(work, number, completions)
    return len(starts)


async def _fill(
    journal: Journal, tasks: Sequence[Task], sampler: Sampler, how: How, watch: Watch
) -> dict[Key, bytes]:
    """Ask for what the journal lacks; returns the lines of those that failed."""
    missing = [task for task in tasks if _key(task) not in journal]
    watch.restored(len(tasks) - len(missing))
    failed: dict[Key, bytes] = {}

    def keep(position: int, completion: Completion) -> None:
        if completion.finish == "failed":
            failed[_key(missing[position])] = line_of(completion).encode()
        else:
            journal.add(completion)
        watch.done(completion)

    await roll_out_each(
        missing,
        sampler,
        open_environment=how.open_environment,
        limits=how.limits,
        on_done=keep,
        progress=watch.tokens,
        at_once=how.at_once,
    )
    return failed


def _join(tasks: Sequence[Task], lines: Iterable[bytes], to: Path) -> Tally:
    """Write the lines as one file, if each is its task's."""
    tally = Tally()
    partial = to.with_name(f".{to.name}.partial")
    with partial.open("wb") as file:
        for task, line in zip(tasks, lines, strict=True):
            row = json.loads(line)
            if (row["prompt_id"], row["index"]) != _key(task):
                raise DataError(
                    f"{to.parent}: found sample {row['index']} of {row['prompt_id']!r} where "
                    f"sample {task.index} of {task.prompt.id!r} belongs; delete its work/ folder"
                )
            tally.add(task.prompt, row)
            file.write(line)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(to)
    return tally


def _refuse_failures(tally: Tally, count: int, how: How, advice: str) -> None:
    failed = sum(tally.errors.values())
    if failed > how.max_failure_rate * count:
        raise DataError(
            f"{failed:,} of {count:,} completions failed, max_failure_rate allows "
            f"{how.max_failure_rate:.2%}; "
            f"most often: {tally.errors.most_common(1)[0][0]}. {advice}, or raise max_failure_rate"
        )
