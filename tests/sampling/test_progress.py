"""The progress bar: rates and what is left, of this run of the command alone."""

from __future__ import annotations

import io

from rich.console import Console

from posttrain.sampling.progress import LINE_SECONDS, ProgressBar


def test_rates_are_of_this_run_and_plain_lines_come_now_and_then():
    now, file = [100.0], io.StringIO()
    console = Console(file=file, width=120)
    with ProgressBar(
        total=100, most_tokens=1000, console=console, clock=lambda: now[0]
    ) as progress:
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
    progress = ProgressBar(
        total=4, most_tokens=10, console=Console(file=io.StringIO()), clock=lambda: 0.0
    )
    assert "failed" not in progress.line()
    progress.add(done=1, failed=1)
    assert progress.line().startswith("1 of 4 completions · 1 failed")


def test_the_time_left_is_by_tokens_before_any_completion_has_ended():
    now = [0.0]
    console = Console(file=io.StringIO(), width=120)
    progress = ProgressBar(total=80, most_tokens=100, console=console, clock=lambda: now[0])
    now[0] = 10.0
    progress.add(tokens=2000)
    # 80 × 100 at most, less the 2,000 that are there, at 200 a second
    assert progress.line().endswith("0 of 80 completions · 2,000 tokens · 200 tokens/s · "
                                    "at most 0:00:30 to go")  # fmt: skip
    progress.add(done=40, ended_tokens=1000)
    # 50 tokens for each that ended: 40 × 50, and no limit is nearer
    assert progress.line().endswith("· 0:00:10 to go")
    now[0] = 20.0
    progress.add(tokens=2000)
    # of the 3,000 under way 40 can get 1,000 more
    assert progress.line().endswith("· 0:00:05 to go")


def test_judgements_count_without_tokens():
    now = [0.0]
    console = Console(file=io.StringIO(), width=120)
    progress = ProgressBar(
        total=40, most_tokens=None, console=console, unit="judgements", clock=lambda: now[0]
    )
    assert progress.line() == "0 of 40 judgements"
    now[0] = 10.0
    progress.add(done=10)
    assert progress.line() == "10 of 40 judgements · 0:00:30 to go"
