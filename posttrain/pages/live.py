"""The page of a training run that has not finished: its curves so far, and whether it goes on.

The running stage writes it again as it trains, and a browser that shows it reads it again. It is
no part of the artifact, and the report of the finished one replaces it.
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
    """Whether a training run was begun here that has no manifest yet."""
    begun = (artifact / LOG).is_file() and (artifact / STAGE).is_file()
    return begun and not (artifact / MANIFEST).is_file()


def is_running(artifact: Path) -> bool:
    """Whether a process of this machine is at work in the directory."""
    try:
        with locked(artifact):
            return False
    except ConfigError:
        return True


def log_so_far(artifact: Path) -> list[dict[str, Any]]:
    """The rows of a log that may be written to now: a last line without its end waits. Raises
    DataError: a line is no row of a log."""
    whole = (artifact / LOG).read_bytes().rpartition(b"\n")[0]
    try:
        rows = jsonl_rows(whole.decode())
    except ValueError as error:
        raise DataError(f"{artifact / LOG} is damaged: {error}") from error
    if any(not isinstance(row, dict) for row in rows):
        raise DataError(f"{artifact / LOG} is damaged: a line holds no object")
    return rows


def write_live(artifact: Path, about: str, *, next_in: int | None = None) -> None:
    """Write the page of a run that goes on.

    Args:
        about: what the run is doing.
        next_in: seconds after which the page is written again at the latest; None: not known yet.
    """
    now = int(time.time())
    text = f"{about}. Written {_moment(now)}"
    text += "." if next_in is None else f", the next time within {next_in:,} s."
    due = None if next_in is None else now + next_in
    _write(artifact, artifact / REPORT, RunState(text, refresh=REFRESH, due=due))


def write_unfinished(artifact: Path, *, running: bool, out: Path | None = None) -> Path:
    """Write the page of a run as it stands, at work or stopped."""
    step = max((row["step"] for row in log_so_far(artifact) if "step" in row), default=0)
    about = f"step {step:,}, last written {_moment((artifact / LOG).stat().st_mtime)}"
    text = f"Running: {about}."
    if not running:
        text = f"Stopped: {about}. The same command goes on with it."
    return _write(artifact, out or artifact / REPORT, RunState(text))


def write_interrupted(artifact: Path, *, step: int) -> Path:
    """Write the page of a run that a signal ends now."""
    text = (
        f"Interrupted at step {step:,}, {_moment(time.time())}. The same command goes on with it."
    )
    return _write(artifact, artifact / REPORT, RunState(text))


def _write(artifact: Path, target: Path, state: RunState) -> Path:
    owner = read_owner(artifact)
    own = Section("Recipe", [Fold("as it was resolved", [recipe(owner["config"])])])
    sections = [*so_far(log_so_far(artifact)), own]
    name, kicker = artifact.resolve().name, f"{owner['kind']}, not finished"
    atomic_write_text(target, page_html(sections, title=name, kicker=kicker, state=state))
    return target


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
