"""Samplers that keep what they did: the time of every call, and answers that can be given again. A
journal is for loops that are not ours, such as inspect's and a judge's: started again, such a loop
finds every answer that it had, and graded again it needs no model.
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
    """Appends a line to `path` for every call of the sampler behind it; times are the clock's."""

    def __init__(self, sampler: Sampler, path: Path) -> None:
        self._sampler, self._path = sampler, path
        self.batched, self.identity = sampler.batched, sampler.identity
        self.unframed = unframing(sampler)
        path.parent.mkdir(parents=True, exist_ok=True)

    async def sample(
        self, requests: Sequence[Request], *, progress: Progress = None
    ) -> list[Generation]:
        """As `Sampler.sample`."""
        generations: dict[int, Generation] = {}
        await self.sample_each(requests, on_done=generations.__setitem__, progress=progress)
        return [generations[k] for k in range(len(requests))]

    async def sample_each(
        self, requests: Sequence[Request], *, on_done: OnGeneration, progress: Progress = None
    ) -> None:
        """As `IncrementalSampler.sample_each`; all at the end of a sampler that is none."""
        start = time.time()
        tokens = 0

        def ended(number: int, generation: Generation) -> None:
            nonlocal tokens
            if (step := generation.step) is not None:
                tokens += step.reasoning_tokens + step.answer_tokens
            on_done(number, generation)

        if isinstance(self._sampler, IncrementalSampler):
            await self._sampler.sample_each(requests, on_done=ended, progress=progress)
        else:
            for number, generation in enumerate(
                await self._sampler.sample(requests, progress=progress)
            ):
                ended(number, generation)
        row = {"start": start, "end": time.time(), "requests": len(requests), "tokens": tokens}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


class JournaledSampler:
    """Answers from the journal where it can, else from the sampler (None: then it fails), whose
    answer is kept. Requests are the same if all is that decides their answer; a failure is not
    kept."""

    def __init__(self, sampler: Sampler | None, path: Path) -> None:
        self._sampler, self._path = sampler, path
        self.batched = sampler is not None and sampler.batched
        self.identity: Mapping[str, Any] = {} if sampler is None else sampler.identity
        self._kept: dict[str, Generation] = {}
        rows, end = read_lines(path)
        if sampler is not None and path.is_file():
            with path.open("r+b") as file:
                file.truncate(end)
        for row in rows:
            ids = row["prompt_ids"]
            step = step_from_row(row["step"])
            self._kept[row["key"]] = Generation(step, None if ids is None else tuple(ids))

    async def sample(
        self, requests: Sequence[Request], *, progress: Progress = None
    ) -> list[Generation]:
        """As `Sampler.sample`."""
        keys = [_key(request) for request in requests]
        missing = {k: r for k, r in zip(keys, requests, strict=True) if k not in self._kept}
        failed: dict[str, Generation] = {}
        if missing and self._sampler is not None:
            answers = await self._sampler.sample([*missing.values()], progress=progress)
            for key, generation in zip(missing, answers, strict=True):
                if generation.step is None:
                    failed[key] = generation
                elif key not in self._kept:  # the same may have been under way twice
                    step, ids = step_to_row(generation.step), generation.prompt_ids
                    self._path.parent.mkdir(parents=True, exist_ok=True)
                    with self._path.open("a", encoding="utf-8") as file:
                        file.write(row_line({"key": key, "step": step, "prompt_ids": ids}))
                    self._kept[key] = generation
        nothing = Generation(None, error=NOT_KEPT)
        return [self._kept.get(key) or failed.get(key, nothing) for key in keys]


def _key(request: Request) -> str:
    before = request.continues
    return digest_of(
        {
            "messages": [message_to_row(message) for message in request.messages],
            "tools": request.tools,
            "thinking": request.thinking,
            "parameters": asdict(request.parameters),
            "seed": request.seed,
            "reasoning_budget": request.reasoning_budget,
            "continues": before and [before.prompt_ids, before.step and before.step.ids],
        }
    )


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The rows of an appended file, and the byte behind the last: a torn line does not count.
    Raises DataError for another line that is no JSON."""
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
    """Put a journal's lines into an order that no timing decides; returns their number."""
    lines = sorted(path.read_bytes().splitlines(keepends=True))
    path.write_bytes(b"".join(lines))
    return len(lines)
