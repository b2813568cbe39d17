"""Samplers that record their work: the time of each call, and answers that can be replayed.

A journal of answers is for loops that are not ours, such as inspect's and a judge's: started again,
such a loop finds all answers that it had, and graded again it needs no model.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from posttrain.errors import DataError
from posttrain.hashing import digest_of
from posttrain.jsontext import row_line
from posttrain.records import message_to_row
from posttrain.rollouts import step_from_row, step_to_row
from posttrain.sampling.sampler import (
    Generation,
    IncrementalSampler,
    OnGeneration,
    Progress,
    Request,
    Sampler,
    unframing,
)

NOT_KEPT = "the journal has no answer to this request, and there is no model to ask"


class TimedSampler:
    """Sampler that appends a line to `path` for each call of the sampler behind it.

    A line has the start and end of the call in seconds since the epoch, its number of requests and
    the tokens written.
    """

    def __init__(self, sampler: Sampler, path: Path) -> None:
        self._sampler = sampler
        self._path = path
        self.batched = sampler.batched
        self.identity = sampler.identity
        self.unframed = unframing(sampler)
        path.parent.mkdir(parents=True, exist_ok=True)

    async def sample(
        self, requests: Sequence[Request], *, progress: Progress = None
    ) -> list[Generation]:
        """Sample as `Sampler.sample` does."""
        generations: dict[int, Generation] = {}
        await self.sample_each(requests, on_done=generations.__setitem__, progress=progress)
        return [generations[number] for number in range(len(requests))]

    async def sample_each(
        self, requests: Sequence[Request], *, on_done: OnGeneration, progress: Progress = None
    ) -> None:
        """Sample as `IncrementalSampler.sample_each` does.

        Where the sampler behind is not incremental, all generations are reported at the end.
        """
        start = time.time()
        tokens = 0

        def count_and_report(number: int, generation: Generation) -> None:
            nonlocal tokens
            step = generation.step
            if step is not None:
                tokens += step.reasoning_tokens + step.answer_tokens
            on_done(number, generation)

        if isinstance(self._sampler, IncrementalSampler):
            await self._sampler.sample_each(requests, on_done=count_and_report, progress=progress)
        else:
            generations = await self._sampler.sample(requests, progress=progress)
            for number, generation in enumerate(generations):
                count_and_report(number, generation)
        row = {"start": start, "end": time.time(), "requests": len(requests), "tokens": tokens}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


class JournaledSampler:
    """Sampler that answers from its journal, and asks the sampler behind it for missing answers.

    New answers are kept in the journal; failures are not, so that they are tried again. Requests
    share an answer where they agree in all that decides it: messages, tools, parameters, reasoning
    and its budget, seed and what they continue. Without a sampler behind it (None), a request that
    the journal cannot answer fails.
    """

    def __init__(self, sampler: Sampler | None, path: Path) -> None:
        self._sampler = sampler
        self._path = path
        self.batched = sampler is not None and sampler.batched
        self.identity: Mapping[str, Any] = {} if sampler is None else sampler.identity
        self._kept: dict[str, Generation] = {}
        rows, end = read_lines(path)
        if sampler is not None and path.is_file():
            # a torn line would spoil the next one that is appended
            with path.open("r+b") as file:
                file.truncate(end)
        for row in rows:
            step = step_from_row(row["step"])
            row_ids = row["prompt_ids"]
            prompt_ids = None if row_ids is None else tuple(row_ids)
            self._kept[row["key"]] = Generation(step, prompt_ids)

    async def sample(
        self, requests: Sequence[Request], *, progress: Progress = None
    ) -> list[Generation]:
        """Sample as `Sampler.sample` does."""
        keys = [_request_key(request) for request in requests]
        missing: dict[str, Request] = {}
        for key, request in zip(keys, requests, strict=True):
            if key not in self._kept:
                missing[key] = request
        failed: dict[str, Generation] = {}
        if missing and self._sampler is not None:
            generations = await self._sampler.sample([*missing.values()], progress=progress)
            for key, generation in zip(missing, generations, strict=True):
                if generation.step is None:
                    failed[key] = generation
                elif key not in self._kept:  # two calls may have asked for it at the same time
                    self._append(key, generation)
                    self._kept[key] = generation
        not_kept = Generation(None, error=NOT_KEPT)
        return [self._kept.get(key) or failed.get(key, not_kept) for key in keys]

    def _append(self, key: str, generation: Generation) -> None:
        """Append an answer to the journal; its step is not None."""
        assert generation.step is not None
        row = {
            "key": key,
            "step": step_to_row(generation.step),
            "prompt_ids": generation.prompt_ids,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(row_line(row))


def _request_key(request: Request) -> str:
    """Digest of all that decides the answer to a request."""
    previous = request.continues
    return digest_of(
        {
            "messages": [message_to_row(message) for message in request.messages],
            "tools": request.tools,
            "thinking": request.thinking,
            "parameters": asdict(request.parameters),
            "seed": request.seed,
            "reasoning_budget": request.reasoning_budget,
            "continues": previous and [previous.prompt_ids, previous.step and previous.step.ids],
        }
    )


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Read the rows of a file that lines are appended to; a torn last line is ignored.

    Returns:
        The rows, none where there is no file; and the byte offset behind the last whole line.

    Raises:
        DataError: a whole line is not JSON.
    """
    rows: list[dict[str, Any]] = []
    end = 0
    if path.is_file():
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise DataError(f"{path}:{len(rows) + 1} cannot be read ({error})") from error
                end += len(line)
    return rows, end


def sort_lines(path: Path) -> int:
    """Sort the lines of a journal, whose order is a matter of timing. Returns their count."""
    lines = sorted(path.read_bytes().splitlines(keepends=True))
    path.write_bytes(b"".join(lines))
    return len(lines)
