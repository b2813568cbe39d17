"""Run a stage that makes data: its plan, or its artifact with figures on the console and a page."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console

from posttrain.pages.write import show_finished, show_up_to_date
from posttrain.runs import Run, open_run


def run_data_stage(
    console: Console,
    out: Path | str,
    *,
    kind: str,
    config: Mapping[str, Any],
    recipe: BaseModel,
    dry_run: bool,
    make: Callable[[Run], object],
    plan: Callable[[], object] | None = None,
    check: Callable[[Run], object] | None = None,
    scratch: str | None = None,
) -> None:
    """Make an artifact in its output directory, or leave a complete one alone.

    Args:
        kind: kind of the artifact.
        config: what decides the artifact's content: the recipe, with its inputs by digest and
            without `out`.
        recipe: what `config` was made from.
        dry_run: only check that the directory may be used, and print the plan.
        make: writes the files and calls `finish`.
        plan: prints what the real run would do; raises what would stop it.
        check: called where the artifact is complete; refuses inputs that have changed since.
        scratch: a folder in `out` that is removed at the end.

    Raises:
        ConfigError: the directory belongs to another config, or another process is at work in it.
    """
    out = Path(out)
    if dry_run:
        Run.open(out, kind=kind, config=config, recipe=recipe, dry_run=True)
        if plan is not None:
            plan()
        return
    with open_run(out, kind=kind, config=config, recipe=recipe, scratch=scratch) as run:
        was_complete = run.complete
        if not was_complete:
            make(run)
        elif check is not None:
            check(run)
        if scratch is not None:
            shutil.rmtree(out / scratch, ignore_errors=True)
        if was_complete:
            show_up_to_date(console, out)
        else:
            show_finished(console, out)
