"""A row that cannot become a conversation, with the reason it is counted under.

raise RowProblem("malformed_arguments", "messages[3].tool_calls[0].arguments", "not JSON")
"""

from __future__ import annotations

from posttrain.errors import DataError


class RowProblem(DataError):
    """Why one row cannot be read. `reason` is a fixed name; `field` says where in the row."""

    def __init__(self, reason: str, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.reason = reason
        self.field = field
