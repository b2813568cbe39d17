"""How sampling goes: a bar on a terminal, now and then a line elsewhere, figures at the end.

with Meter(total=9600, console=console) as meter: …
1,204 of 9,600 completions · 81,300 tokens · 9,412 tokens/s · 14 min to go
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from posttrain.rollouts import Completion
from posttrain.sampling.collect import Watch

LINE_SECONDS = 15.0
REFRESH_SECONDS = 0.2


class Meter(Watch):
    """Counts tokens and completions of one run of the command.

    Args:
        total: completions there will be.
        clock: seconds, rising.
    """

    def __init__(
        self, *, total: int, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._console, self._clock = total, console, clock
        self._began = self._shown = clock()
        self._restored = self._made = self._tokens = 0
        self._every = REFRESH_SECONDS if console.is_terminal else LINE_SECONDS
        self._bar = Progress(
            BarColumn(), TextColumn("{task.description}"), console=console, auto_refresh=False
        )
        self._task: TaskID = self._bar.add_task("", total=total)

    def __enter__(self) -> Meter:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._show()
        if self._console.is_terminal:
            self._bar.stop()

    def restored(self, completions: int) -> None:
        """So many were there already."""
        self._restored += completions
        self._tick()

    def tokens(self, new: int) -> None:
        """New tokens came."""
        self._tokens += new
        self._tick()

    def done(self, completion: Completion) -> None:
        """A completion came to its end."""
        self._made += 1
        self._tick()

    def line(self) -> str:
        """How it goes, in one line."""
        parts = [f"{self._restored + self._made:,} of {self._total:,} completions"]
        if self._restored:
            parts[0] += f" ({self._restored:,} from before)"
        parts.append(f"{self._tokens:,} tokens")
        seconds = self._clock() - self._began
        if self._tokens and seconds > 0:
            parts.append(f"{self._tokens / seconds:,.0f} tokens/s")
        left = self._total - self._restored - self._made
        if left and self._made and seconds > 0:
            parts.append(f"{_duration(left * seconds / self._made)} to go")
        return " · ".join(parts)

    def row(self) -> dict[str, Any]:
        """This run's figures, for `speed.jsonl`."""
        seconds = self._clock() - self._began
        return {
            "seconds": round(seconds, 3),
            "completions": self._made,
            "restored": self._restored,
            "tokens": self._tokens,
            "tokens_per_second": round(self._tokens / seconds, 1) if seconds > 0 else None,
        }

    def _tick(self) -> None:
        if self._clock() - self._shown >= self._every:
            self._show()

    def _show(self) -> None:
        self._shown = self._clock()
        if self._console.is_terminal:
            done = self._restored + self._made
            self._bar.update(self._task, completed=done, description=self.line())
            self._bar.refresh()
        else:
            self._console.print(self.line(), highlight=False)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
