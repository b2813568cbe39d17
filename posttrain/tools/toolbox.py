"""Several tools as a toolkit: the same for every prompt, without a state between calls.

toolbox = Toolbox([calculator()])
environment = toolbox.open(prompt)
await environment.call("calculate", {"expression": "7*8"}) == "56"
await environment.call("search", {}) == "error: no tool search; there is calculate"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.errors import ConfigError
from posttrain.records import json_text
from posttrain.rollouts import Prompt
from posttrain.tools.tool import Tool, clip, writable

RESULT_CHARACTERS = 8192


class Toolbox:
    """A toolkit of independent tools.

    Args:
        tools: in the order in which they are declared.
        result_characters: a longer result loses its middle, and says so.

    Raises:
        ConfigError: two tools have the same name, or there is none.
    """

    def __init__(self, tools: Sequence[Tool], *, result_characters: int = RESULT_CHARACTERS):
        self._tools = {tool.name: tool for tool in tools}
        self._characters = result_characters
        if not tools:
            raise ConfigError("a toolbox without tools: declare none instead")
        if len(self._tools) < len(tools):
            names = [tool.name for tool in tools]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"two tools are called {twice}")

    def schemas(self, prompt: Prompt) -> str:
        """JSON text of the tools' schemas; the same for every prompt."""
        return json_text([tool.schema() for tool in self._tools.values()])

    def open(self, prompt: Prompt) -> ToolboxEnvironment:
        """An environment for one completion."""
        return ToolboxEnvironment(self._tools, self._characters)


@dataclass(frozen=True, slots=True)
class ToolboxEnvironment:
    """What runs the calls of one completion."""

    tools: Mapping[str, Tool]
    characters: int

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run one call."""
        if (tool := self.tools.get(name)) is None:
            return writable(f"error: no tool {clip(name, 80)}; there is {', '.join(self.tools)}")
        return writable(clip(await tool.call(arguments), self.characters))

    def snapshot(self) -> str:
        """There is no state to see."""
        return "{}"

    async def close(self) -> None:
        """There is nothing to release."""
