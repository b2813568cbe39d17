"""The calculator: a tool that works out arithmetic, exactly and without running anything.

await calculator().call({"expression": "0.1 + 0.2"}) == "0.3"
await calculator().call({"expression": "9**9**9"}) == "error: the number is too large"
"""

from __future__ import annotations

from posttrain.tools.arithmetic import shown
from posttrain.tools.expression import evaluate
from posttrain.tools.tool import Tool

_DESCRIPTION = (
    "Work out an arithmetic expression: + - * / // % ** (or ^), parentheses, and functions such "
    "as sqrt, round, abs, min, max, gcd, factorial, log, sin; constants pi and e."
)


async def _calculate(expression: str) -> str:
    return shown(evaluate(expression))


def calculator() -> Tool:
    """The tool."""
    parameters = {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "for example 17*(3+4)"}},
        "required": ["expression"],
        "additionalProperties": False,
    }
    return Tool("calculate", _DESCRIPTION, parameters, _calculate)
