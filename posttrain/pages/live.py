"""The page of a training run that has not finished: its curves so far, and its state.

The running stage rewrites the page as it trains, and a browser that shows it reloads it. The page
is no part of the artifact, and the report of the finished run replaces it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from posttrain.errors import ConfigError, DataError
from posttrain.jsontext import jsonl_rows
from posttrain.pages.artifact import recipe
from posttrain.pages.training import so_far
from posttrain.report.html import RunState, page_html
from posttrain.report.section import Fold, Section
from posttrain.runs import LOG, MANIFEST, REPORT, STAGE, atomic_write_text, locked, read_owner

REFRESH = 15  # seconds


def is_unfinished(artifact: Path) -> bool:
    """True if the directory holds a training run without a manifest."""
    has_begun = (artifact / LOG).is_file() and (artifact / STAGE).is_file()
    return has_begun and not (artifact / MANIFEST).is_file()


def is_running(artifact: Path) -> bool:
    """True if a process of this machine holds the directory's lock."""
    if not artifact.is_dir():
        return False
    try:
        with locked(artifact):
            return False
    except ConfigError:
        return True


def log_so_far(artifact: Path) -> list[dict[str, Any]]:
    """Read the rows of a run's log, which must exist and may be written to meanwhile.

    A last line without its end is left out.

    Raises:
        DataError: a line is no row of a log.
    """
    complete_lines, _, _ = (artifact / LOG).read_bytes().rpartition(b"\n")
    try:
        rows = jsonl_rows(complete_lines.decode())
    except ValueError as error:
        raise DataError(f"{artifact / LOG} is damaged: {error}") from error
    if any(not isinstance(row, dict) for row in rows):
        raise DataError(f"{artifact / LOG} is damaged: a line holds no object")
    return rows


def write_live(artifact: Path, activity: str, *, next_in: int | None = None) -> None:
    """Write the page of a run that goes on, which promises the next within `next_in` seconds.

    Args:
        activity: what the run is doing, in words.
        next_in: None: not known yet.
    """
    written = int(time.time())
    text = f"{activity}. Written {_moment(written)}"
    text += "." if next_in is None else f", the next time within {next_in:,} s."
    due = None if next_in is None else written + next_in
    _write(artifact, artifact / REPORT, RunState(text, refresh=REFRESH, due=due))


def write_unfinished(artifact: Path, *, running: bool, out: Path | None = None) -> Path:
    """Write the page of a run that has not finished, at work or stopped."""
    step = max((row["step"] for row in log_so_far(artifact) if "step" in row), default=0)
    progress = f"step {step:,}, last written {_moment((artifact / LOG).stat().st_mtime)}"
    text = f"Running: {progress}."
    if not running:
        text = f"Stopped: {progress}. Rerun the same command to resume."
    return _write(artifact, out or artifact / REPORT, RunState(text))


def write_interrupted(artifact: Path, *, step: int) -> Path:
    """Write the page of a run that a signal ends now."""
    now = _moment(time.time())
    text = f"Interrupted at step {step:,}, {now}. Rerun the same command to resume."
    return _write(artifact, artifact / REPORT, RunState(text))


def _write(artifact: Path, target: Path, state: RunState) -> Path:
    owner = read_owner(artifact)
    recipe_section = Section("Recipe", [Fold("as it was resolved", [recipe(owner["config"])])])
    page = page_html(
        [*so_far(log_so_far(artifact)), recipe_section],
        title=artifact.resolve().name,
        kicker=f"{owner['kind']}, not finished",
        state=state,
    )
    atomic_write_text(target, page)
    return target


def _moment(seconds: float) -> str:
    """Date and time in UTC, from seconds since the epoch."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
