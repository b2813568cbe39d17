"""How far a command is: what it does, how much is done, how fast, how long it still takes. On a
terminal one moving line; elsewhere, as in a log, a line now and then.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn

_EVERY = 30.0  # seconds between the lines of a log


class Stages:
    """Shows one stage after the other. A stage without a total shows what is done."""

    def __init__(self, console: Console) -> None:
        self._console, self._printed = console, 0.0
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn()
        self._progress = Progress(
            *columns,
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
        """Begin a stage; `done` of its `total`, if that is known, is from an earlier run."""
        for task in self._progress.tasks:
            self._progress.remove_task(task.id)
        self._progress.add_task(name, total=total, completed=done, before=done, unit=unit, text="")
        self._printed = time.monotonic()

    def advance(self, count: int) -> None:
        """So much more is done."""
        (task,) = self._progress.tasks
        self._progress.advance(task.id, count)
        text, now = _text(task), time.monotonic()
        self._progress.update(task.id, text=text)
        if not self._console.is_terminal and now - self._printed >= _EVERY:
            self._printed = now
            self._console.print(f"{task.description}: {text}", highlight=False)


def _text(task: Task) -> str:
    """E.g. "12,800 of ~18,000,000 rows, 2,130 rows/s, 2:20:43 left"."""
    unit, seconds = task.fields["unit"], task.elapsed
    rate = (task.completed - task.fields["before"]) / seconds if seconds else 0.0
    of = "" if task.total is None else f" of ~{task.total:,}"
    text = f"{task.completed:,}{of} {unit}, {rate:,.0f} {unit}/s"
    if task.total is not None and rate > 0:
        left = max(task.total - task.completed, 0) / rate
        text += f", {timedelta(seconds=round(left))} left"
    return text
