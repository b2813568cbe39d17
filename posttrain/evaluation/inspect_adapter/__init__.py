"""Adapter for inspect-ai: a model provider and a sandbox for its tasks, and logs that it opens.

Inspect finds the provider and the sandbox through the entry points of group `inspect_ai`. Of the
evaluation itself only tasks written for inspect run on it.
"""

from __future__ import annotations

from importlib.util import find_spec

from posttrain.errors import ConfigError


def require_inspect(feature: str, *, extra: str) -> None:
    """Raise ConfigError where inspect-ai is not installed.

    Args:
        feature: what needs it, at the start of the message.
        extra: extra of this package that installs it.
    """
    if find_spec("inspect_ai") is None:
        raise ConfigError(f"{feature} needs inspect-ai: pip install 'posttrain[{extra}]'")
