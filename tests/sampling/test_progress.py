"""The progress bar: rates and what is left, of this run of the command alone."""

from __future__ import annotations

import io

from rich.console import Console

from posttrain.sampling.progress import LINE_SECONDS, ProgressBar


class Clock:
    """Seconds, set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rate_and_time_left_are_of_this_run():
    clock = Clock()
    progress = ProgressBar(total=100, console=Console(file=io.StringIO()), clock=clock)
    progress.add(restored=40)
    clock.now += 20
    progress.add(tokens=3000)
    for _ in range(10):
        progress.add(done=1)
    assert progress.line() == (
        "50 of 100 completions (40 from before) · 3,000 tokens · 150 tokens/s · 0:01:40 to go"
    )


def test_plain_lines_come_now_and_then():
    clock, file = Clock(), io.StringIO()
    with ProgressBar(total=4, console=Console(file=file), clock=clock) as progress:
        for _ in range(3):
            clock.now += LINE_SECONDS / 2
            progress.add(done=1)
    lines = [line.split(" ·")[0] for line in file.getvalue().splitlines()]
    assert lines == ["2 of 4 completions", "3 of 4 completions"]
