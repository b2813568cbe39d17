"""Structural filters: pure functions `Example → Drop | None`, one reason each, one table of them.

structural_drop(example, StructuralFilters(tool_markup=False)) → Drop("empty_answer", …) or None

Filters of what a text says are in `screen.py`.

To add one: a function in a file here, a line in `STRUCTURAL` at its place in the order, its switch
in `posttrain.config.filters.StructuralFilters`, a line in `docs/dialects.md`.
"""

from __future__ import annotations

from collections.abc import Callable

from data_builders.filters.drop import Drop
from data_builders.filters.pairing import unpaired_tool_result
from data_builders.filters.thinking import foreign_think, nested_think, unclosed_think
from data_builders.filters.tools import (
    bad_arguments,
    tool_markup,
    undeclared_tools,
    unknown_tool,
    unusable_schema,
)
from data_builders.filters.turns import bad_unicode, empty_answer, empty_user_turn, role_order
from posttrain.config.filters import StructuralFilters
from posttrain.records import Example

__all__ = ["STRUCTURAL", "Drop", "structural_drop"]

# the first that objects names the reason, so what breaks the others' sense comes first
STRUCTURAL: dict[str, Callable[[Example], Drop | None]] = {
    "bad_unicode": bad_unicode,
    "role_order": role_order,
    "unclosed_think": unclosed_think,
    "nested_think": nested_think,
    "foreign_think": foreign_think,
    "empty_answer": empty_answer,
    "empty_user_turn": empty_user_turn,
    "undeclared_tools": undeclared_tools,
    "unknown_tool": unknown_tool,
    "unusable_schema": unusable_schema,
    "bad_arguments": bad_arguments,
    # calls as text leave their results unpaired: the cause before its effect
    "tool_markup": tool_markup,
    "unpaired_tool_result": unpaired_tool_result,
}


def structural_drop(example: Example, switches: StructuralFilters) -> Drop | None:
    """The first objection of the filters that are switched on."""
    for name, check in STRUCTURAL.items():
        if getattr(switches, name) and (drop := check(example)) is not None:
            return drop
    return None
