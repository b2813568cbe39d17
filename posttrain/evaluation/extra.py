"""The optional package that evaluation runs on, asked for in one place.

require_inspect()  →  ConfigError: evaluation needs inspect-ai: pip install 'posttrain[eval]'
"""

from __future__ import annotations

from importlib.util import find_spec

from posttrain.errors import ConfigError


def require_inspect() -> None:
    """Raises ConfigError, naming the extra, where inspect-ai is not installed."""
    if find_spec("inspect_ai") is None:
        raise ConfigError("evaluation needs inspect-ai: pip install 'posttrain[eval]'")
