"""What users of inspect-ai know, on our checkpoints: a model provider, a sandbox, and logs.

    inspect eval TASK --model posttrain/runs/tiny/sft      # provider.py: our rendering and parsing
    Task(…, sandbox="posttrain")                           # sandbox.py
    inspect view --log-dir runs/tiny/eval/inspect          # log.py: `inspect_logs: true`

Provider and sandbox are found through the entry points of group `inspect_ai`. Of the evaluation
itself only tasks written for inspect run on it (tasks.py); it is the extra `inspect`.
"""

from __future__ import annotations

from importlib.util import find_spec

from posttrain.errors import ConfigError


def require_inspect(what: str, *, extra: str) -> None:
    """Raises ConfigError, naming the extra, where inspect-ai is not installed."""
    if find_spec("inspect_ai") is None:
        raise ConfigError(f"{what} needs inspect-ai: pip install 'posttrain[{extra}]'")
