"""The tools of the tiny world: JSON schemas, and Python functions that really run on a small state.

world = ToolWorld({"price": {"lamp": 42}})
world.call("get_price", {"item": "lamp"}) == "42"
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from posttrain.errors import DataError
from posttrain.jsontext import writable
from posttrain.records import json_text
from posttrain.rollouts import Prompt, metadata_of

State = dict[str, Any]
Arguments = Mapping[str, Any]

STATUSES = ("open", "closed")


class WorldTool(NamedTuple):
    """A tool: its description, the names of its string parameters, and its function."""

    description: str
    parameters: tuple[str, ...]
    run: Callable[[State, Arguments], str]


def _find_row(state: State, table: str, key: object, label: str = "") -> Any:
    """Row of a table. Raises LookupError, which names `label` and the key."""
    rows = state.get(table, {})
    if key not in rows:
        raise LookupError(f"no {label}{key}")
    return rows[key]


def _find_ticket(state: State, arguments: Arguments) -> Any:
    return _find_row(state, "tickets", str(arguments["ticket"]), "ticket ")


def _make_lookup(table: str) -> Callable[[State, Arguments], str]:
    """Function of a tool that looks an item up in a table."""
    return lambda state, arguments: str(_find_row(state, table, arguments["item"]))


def _calculate(_: State, arguments: Arguments) -> str:
    match = re.fullmatch(r"\s*(\d{1,9})\s*([+*-])\s*(\d{1,9})\s*", str(arguments["expression"]))
    if match is None:
        raise LookupError("not a sum")
    left = int(match[1])
    right = int(match[3])
    return str({"+": left + right, "-": left - right, "*": left * right}[match[2]])


def _check_price(state: State, arguments: Arguments) -> str:
    price = _find_row(state, "price", arguments["item"])
    return "right" if str(price) == str(arguments["price"]).strip() else "wrong"


def _list_tickets(state: State, arguments: Arguments) -> str:
    tickets = state.get("tickets", {})
    owner = arguments["owner"]
    keys = sorted(key for key, ticket in tickets.items() if ticket["owner"] == owner)
    return " ".join(keys) if keys else "none"


def _set_status(state: State, arguments: Arguments) -> str:
    ticket = _find_ticket(state, arguments)
    status = arguments["status"]
    if status not in STATUSES:
        raise LookupError(f"no status {status}")
    needed_key = ticket.get("needs")
    if status == "closed" and needed_key and state["tickets"][needed_key]["status"] != "closed":
        raise LookupError(f"ticket {needed_key} is open")
    ticket["status"] = status
    return "ok"


def _set_owner(state: State, arguments: Arguments) -> str:
    _find_ticket(state, arguments)["owner"] = str(arguments["owner"])
    return "ok"


TOOLS: dict[str, WorldTool] = {
    "calculate": WorldTool("Work out a sum.", ("expression",), _calculate),
    "get_price": WorldTool("Price of an item.", ("item",), _make_lookup("price")),
    "get_stock": WorldTool("Stock of an item.", ("item",), _make_lookup("stock")),
    "get_owner": WorldTool("Owner of an item.", ("item",), _make_lookup("owner")),
    "get_city": WorldTool("City of an item.", ("item",), _make_lookup("city")),
    "cached_price": WorldTool(
        "Last known price of an item.", ("item",), _make_lookup("cached_price")
    ),
    "check_price": WorldTool("Check the price of an item.", ("item", "price"), _check_price),
    "list_tickets": WorldTool("Tickets of an owner.", ("owner",), _list_tickets),
    "set_status": WorldTool("Set the status of a ticket.", ("ticket", "status"), _set_status),
    "set_owner": WorldTool("Set the owner of a ticket.", ("ticket", "owner"), _set_owner),
}


def tool_schemas(names: Sequence[str]) -> list[dict[str, Any]]:
    """OpenAI function schemas of the named tools, in that order."""
    schemas: list[dict[str, Any]] = []
    for name in names:
        tool = TOOLS[name]
        parameters = {
            "type": "object",
            "properties": {parameter: {"type": "string"} for parameter in tool.parameters},
            "required": list(tool.parameters),
        }
        function = {"name": name, "description": tool.description, "parameters": parameters}
        schemas.append({"type": "function", "function": function})
    return schemas


class ToolWorld:
    """A state and the tools that read and write it; one instance an episode.

    Args:
        state: initial state, copied.
        fault: `{"tool": name, "kind": "busy", "times": n}`: the tool's first n calls fail.
        declared: the names that may be called; any other name is answered with an error.
    """

    def __init__(
        self,
        state: Mapping[str, Any] | None,
        *,
        fault: Mapping[str, Any] | None = None,
        declared: Sequence[str] | None = None,
    ) -> None:
        self.state: State = copy.deepcopy(dict(state or {}))
        self.calls: list[str] = []
        self._declared = frozenset(TOOLS if declared is None else declared)
        self._fault = dict(fault) if fault else None

    def call(self, name: str, arguments: Arguments) -> str:
        """Run one call and log it. Never raises on what a model wrote: errors are results."""
        self.calls.append(name)
        if name not in self._declared or name not in TOOLS:
            return f"error: no tool {name}"
        tool = TOOLS[name]
        has_scalars = all(isinstance(value, str | int) for value in arguments.values())
        if set(arguments) != set(tool.parameters) or not has_scalars:
            return f"error: {name} takes {', '.join(tool.parameters)}"
        if self._fault and self._fault["tool"] == name and self._fault["times"] > 0:
            self._fault["times"] -= 1
            return f"error: {self._fault['kind']}"
        try:
            return tool.run(self.state, arguments)
        except LookupError as error:
            return f"error: {error}"


class TinyWorldToolkit:
    """The tools that each prompt's item declares."""

    def schemas(self, prompt: Prompt) -> str:
        """JSON text of the declared tools' schemas.

        Raises:
            DataError: the prompt is no item of the tiny world.
        """
        return json_text(tool_schemas(_item_metadata(prompt)["tools_declared"]))

    def open(self, prompt: Prompt) -> TinyWorldEnvironment:
        """Open a world for one completion, in the item's initial state. Raises as `schemas`."""
        item = _item_metadata(prompt)
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
        """JSON text of the state after the calls and of the names of all calls, in order."""
        final = {"state": self.world.state, "calls": self.world.calls}
        # ASCII, since a model may have written half a surrogate pair into a name or the state
        return json.dumps(final, separators=(",", ":"))

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


def _item_metadata(prompt: Prompt) -> dict[str, Any]:
    """Metadata of a prompt's item, checked to have the fields that an environment reads.

    Raises:
        DataError: a field is missing, or a declared tool is unknown.
    """
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
