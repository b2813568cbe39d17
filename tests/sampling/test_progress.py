"""The progress bar: rates and what is left, of this run of the command alone."""

from __future__ import annotations

import io

from rich.console import Console

from posttrain.sampling.progress import LINE_SECONDS, ProgressBar


def test_rates_are_of_this_run_and_plain_lines_come_now_and_then():
    now, file = [100.0], io.StringIO()
    console = Console(file=file, width=120)
    with ProgressBar(total=100, console=console, clock=lambda: now[0]) as progress:
        progress.add(restored=40)
        now[0] += LINE_SECONDS / 2
        progress.add(tokens=1500)
        now[0] += LINE_SECONDS / 2
        progress.add(done=10)
        progress.add(done=1)
    assert file.getvalue().splitlines() == [
        "50 of 100 completions (40 from before) · 1,500 tokens · 100 tokens/s · 0:01:15 to go",
        "51 of 100 completions (40 from before) · 1,500 tokens · 100 tokens/s · 0:01:07 to go",
    ]


def test_failures_are_shown_while_it_runs():
    progress = ProgressBar(total=4, console=Console(file=io.StringIO()), clock=lambda: 0.0)
    assert "failed" not in progress.line()
    progress.add(done=1, failed=1)
    assert progress.line().startswith("1 of 4 completions · 1 failed")
