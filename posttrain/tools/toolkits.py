"""Tools by the names that recipes give them.

    open_toolkit("calculator+python").schemas(prompt)  → '[{"type":"function",…},…]'

The tiny world's tools need its prompts; scripts/sample.py adds them under "tiny_world".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from posttrain.config.load import nearest
from posttrain.errors import ConfigError
from posttrain.tools.calculator import calculator
from posttrain.tools.python import python_tool
from posttrain.tools.tool import Tool
from posttrain.tools.toolbox import Toolbox

TOOLS: dict[str, Callable[[], Tool]] = {"calculator": calculator, "python": python_tool}


def open_toolkit(names: str | Sequence[str]) -> Toolbox:
    """The named tools, ready to run.

    Args:
        names: one name, several joined by "+", or a list.

    Raises:
        ConfigError: no such tool, with the nearest; or this machine cannot run it.
    """
    listed = names.split("+") if isinstance(names, str) else names
    tools: list[Tool] = []
    for name in (part.strip() for part in listed):
        if name not in TOOLS:
            raise ConfigError(f"no tool is called {name!r}{nearest(name, tuple(TOOLS))}")
        tools.append(TOOLS[name]())
    return Toolbox(tools)
