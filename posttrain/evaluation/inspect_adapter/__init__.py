"""What users of inspect-ai know, on our checkpoints: a model provider, a sandbox (both found
through the entry points of group `inspect_ai`) and logs. Of the evaluation itself only tasks
written for inspect run on it.
"""

from __future__ import annotations

from importlib.util import find_spec

from posttrain.errors import ConfigError


def require_inspect(what: str, *, extra: str) -> None:
    """Raises ConfigError, naming the extra, where inspect-ai is not installed."""
    if find_spec("inspect_ai") is None:
        raise ConfigError(f"{what} needs inspect-ai: pip install 'posttrain[{extra}]'")
