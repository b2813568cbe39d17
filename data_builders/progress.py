"""Progress of a command: its stage, the amount done, the rate, and the time that remains.

On a terminal it is one moving line; elsewhere, as in a log, a line from time to time.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn

_LOG_INTERVAL = 30.0  # seconds between the lines of a log


class Stages:
    """Display of one stage after the other; a stage without a total shows the amount done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_line = 0.0  # monotonic time of the last line of a log
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, name: str, *, total: int | None = None, unit: str = "", done: int = 0) -> None:
        """Begin a stage.

        Args:
            total: amount to be done; None: not known.
            unit: plural noun of that amount.
            done: amount that an earlier run has done, which does not count for the rate.
        """
        for task in self._progress.tasks:
            self._progress.remove_task(task.id)
        self._progress.add_task(name, total=total, completed=done, before=done, unit=unit, text="")
        self._last_line = time.monotonic()

    def advance(self, count: int) -> None:
        """Add to the amount done, and show it."""
        (task,) = self._progress.tasks
        self._progress.advance(task.id, count)
        text = _progress_text(task)
        self._progress.update(task.id, text=text)
        time_now = time.monotonic()
        if not self._console.is_terminal and time_now - self._last_line >= _LOG_INTERVAL:
            self._last_line = time_now
            self._console.print(f"{task.description}: {text}", highlight=False)


def _progress_text(task: Task) -> str:
    """Text of a stage: "12,800 of ~18,000,000 rows, 2,130 rows/s, 2:20:43 left"."""
    unit = task.fields["unit"]
    seconds = task.elapsed
    rate = (task.completed - task.fields["before"]) / seconds if seconds else 0.0
    total = "" if task.total is None else f" of ~{task.total:,}"
    text = f"{task.completed:,}{total} {unit}, {rate:,.0f} {unit}/s"
    if task.total is not None and rate > 0:
        remaining_seconds = max(task.total - task.completed, 0) / rate
        text += f", {timedelta(seconds=round(remaining_seconds))} left"
    return text
