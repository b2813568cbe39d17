"""A tool is a JSON schema and a callable; an environment runs the calls of one completion.

    environment = make_environment(prompt)
    await environment.call("calculate", {"expression": "7*8"}) == "56"

What a model writes never raises: an unknown tool, wrong arguments and a tool's own failure are
results, as text that begins with "error:", and the model reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from posttrain.rollouts import Prompt


class Environment(Protocol):
    """The tools of one completion and the state they change; one instance a completion."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run one call. Never raises on what a model wrote."""
        ...

    def snapshot(self) -> str:
        """JSON text of an object: the final state, for graders. "{}" where there is none."""
        ...

    async def close(self) -> None:
        """Release what the completion held (a scratch directory, a process)."""
        ...


MakeEnvironment = Callable[[Prompt], Environment]


class Toolkit(Protocol):
    """A named set of tools a recipe can declare (`environment: calculator`)."""

    def schemas(self, prompt: Prompt) -> str:
        """JSON text of the tools this prompt declares."""
        ...

    def open(self, prompt: Prompt) -> Environment:
        """An environment for one completion."""
        ...
