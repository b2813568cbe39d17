"""A task of inspect's run without traces in the home directory."""

from __future__ import annotations

import os
import tempfile
from typing import Any
from unittest.mock import patch

import inspect_ai
from inspect_ai.log import EvalLog
from inspect_ai.model import Model

# as long as the process: inspect closes its trace there when that ends
_SCRATCH = tempfile.TemporaryDirectory(prefix="posttrain-inspect-")


def run_task(task: inspect_ai.Task | str, model: Model | str, **config: Any) -> EvalLog:
    """The task's log; the first error is raised."""
    with patch.dict(os.environ, {"XDG_DATA_HOME": _SCRATCH.name}):
        (log,) = inspect_ai.eval(
            task,
            model=model,
            display="none",
            log_dir=f"{_SCRATCH.name}/logs",
            log_realtime=False,
            ctl_server=False,
            debug_errors=True,
            **config,
        )
    return log
