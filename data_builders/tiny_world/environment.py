"""The tiny world's tools as an environment of rollouts.

    environment = TinyWorldToolkit().open(prompt)
    await environment.call("set_status", {"ticket": "t1", "status": "closed"}) == "ok"
    environment.snapshot()  → '{"state":{"tickets":{…}},"calls":["set_status"]}'

A prompt's metadata is its item's: `initial_state`, `fault` and `tools_declared` say what the tools
work on and which there are. The snapshot is what `grading.grade` needs besides the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data_builders.tiny_world.tools import TOOLS, ToolWorld, tool_schemas
from posttrain.environments.base import writable
from posttrain.errors import DataError
from posttrain.records import json_text
from posttrain.rollouts import Prompt, metadata_of


class TinyWorldToolkit:
    """The tools that each prompt's item declares."""

    def schemas(self, prompt: Prompt) -> str:
        """JSON text of the schemas of the declared tools; "[]" where none is.

        Raises:
            DataError: the prompt is no item of the tiny world.
        """
        return json_text(tool_schemas(_item(prompt)["tools_declared"]))

    def open(self, prompt: Prompt) -> TinyWorldEnvironment:
        """A world of its own for one completion, at the item's initial state.

        Raises:
            DataError: the prompt is no item of the tiny world.
        """
        item = _item(prompt)
        world = ToolWorld(
            item["initial_state"], fault=item["fault"], declared=item["tools_declared"]
        )
        return TinyWorldEnvironment(world)


@dataclass(frozen=True, slots=True)
class TinyWorldEnvironment:
    """One completion's world; calls change it in the order in which they are made."""

    world: ToolWorld

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run one call. Errors and undeclared names are results, and are logged as calls too."""
        return writable(self.world.call(name, arguments))

    def snapshot(self) -> str:
        """The state after the calls, and the names of all that were called, in order."""
        calls = [call.name for call in self.world.calls]
        # ASCII, since a model may have written half a surrogate pair into a name or the state
        return json.dumps({"state": self.world.state, "calls": calls}, separators=(",", ":"))

    async def close(self) -> None:
        """There is nothing to release."""


def _item(prompt: Prompt) -> dict[str, Any]:
    """The item's metadata, with what an environment reads of it."""
    item = metadata_of(prompt)
    for field in ("initial_state", "fault", "tools_declared"):
        if field not in item:
            raise DataError(
                f"prompt {prompt.id}: metadata has no {field!r}, as tiny-world items do"
            )
    for name in item["tools_declared"]:
        if name not in TOOLS:
            raise DataError(f"prompt {prompt.id}: the tiny world has no tool {name!r}")
    return item
