"""How far a command is: what it does, how much is done, how fast, how long it still takes. On a
terminal one moving line; elsewhere, as in a log, a line now and then.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

_EVERY = 30.0  # seconds between the lines of a log


class Stages:
    """Shows one stage after the other. A stage without a total shows what is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn()
        self._progress = Progress(
            *columns,
            TextColumn("{task.fields[text]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._progress.add_task("", text="", total=None)
        self._name, self._unit = "", ""
        self._total: int | None = None
        self._done = self._skipped = 0
        self._started = self._printed = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, name: str, *, total: int | None = None, unit: str = "", done: int = 0) -> None:
        """Begin a stage; `done` of its `total`, if that is known, is from an earlier run."""
        self._name, self._unit, self._total = name, unit, total
        self._done = self._skipped = done
        self._started = self._printed = time.monotonic()
        self._progress.reset(self._task, total=total, completed=done, description=name, text="")

    def advance(self, count: int) -> None:
        """So much more is done."""
        self._done += count
        now = time.monotonic()
        self._progress.update(self._task, completed=self._done, text=self.describe(now))
        if not self._console.is_terminal and now - self._printed >= _EVERY:
            self._printed = now
            self._console.print(f"{self._name}: {self.describe(now)}", highlight=False)

    def describe(self, now: float) -> str:
        """E.g. "12,800 of ~18,000,000 rows, 2,130 rows/s, 2:20:43 left"."""
        seconds = now - self._started
        rate = (self._done - self._skipped) / seconds if seconds > 0 else 0.0
        of = "" if self._total is None else f" of ~{self._total:,}"
        text = f"{self._done:,}{of} {self._unit}, {rate:,.0f} {self._unit}/s"
        if self._total is not None and rate > 0:
            left = max(self._total - self._done, 0) / rate
            text += f", {timedelta(seconds=round(left))} left"
        return text
