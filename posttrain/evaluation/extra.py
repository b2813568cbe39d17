"""The optional package that evaluation runs on, asked for in one place.

require_inspect()  →  ConfigError: evaluation needs inspect-ai: pip install 'posttrain[eval]'
"""

from __future__ import annotations

import importlib.util

from posttrain.errors import ConfigError


def require_inspect() -> None:
    """Raises ConfigError, naming the extra, where inspect-ai is not installed."""
    if importlib.util.find_spec("inspect_ai") is None:
        raise ConfigError("evaluation needs inspect-ai: pip install 'posttrain[eval]'")
