"""Seconds of what was not run: scaled up from slices that were, and written for people."""

from __future__ import annotations

from collections.abc import Sequence


def duration(seconds: float) -> str:
    """Seconds below two minutes, then minutes, then hours."""
    if seconds < 120:
        return f"{seconds:,.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:,.0f} minutes"
    return f"{seconds / 3600:,.1f} hours"


def scale_up(timed: Sequence[tuple[int, float]], whole: int) -> float:
    """Seconds of `whole` positions, from (positions, seconds) of ever longer slices.

    A pass costs something whatever its length, such as writing all gradients: what it costs a
    position is read off the last two slices. A disturbed measurement may not make that less than
    half of the last slice's mean, or more than it.
    """
    positions, seconds = timed[-1]
    mean = seconds / positions
    each = mean
    if len(timed) > 1 and positions > timed[-2][0]:
        slope = (seconds - timed[-2][1]) / (positions - timed[-2][0])
        each = min(max(slope, mean / 2), mean)
    return seconds + (whole - positions) * each
