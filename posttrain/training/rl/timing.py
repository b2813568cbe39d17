"""Where a step's seconds go: `timing.jsonl`, one row a batch of rollouts, on the main process.

    {"step": 1, "rollout": 4.1, "reward": 2.0, "train": 6.3}

Seconds differ from run to run, so they are neither in the log nor in the artifact.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from posttrain.records import json_text

TIMING = "timing.jsonl"


class StepClock:
    """Seconds of one batch of rollouts by part."""

    def __init__(self, out: Path) -> None:
        self.path = out / TIMING
        self.step = 0
        self.seconds: dict[str, float] = defaultdict(float)

    def start(self, step: int) -> None:
        """A new batch, whose first update is this step."""
        self.step, self.seconds = step, defaultdict(float)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block's seconds to this part."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - started

    def write(self, *, main: bool) -> None:
        """Append the batch's row."""
        if main:
            row = {"step": self.step, **{k: round(v, 3) for k, v in self.seconds.items()}}
            with self.path.open("a", encoding="utf-8") as handle:
                handle.write(json_text(row) + "\n")
