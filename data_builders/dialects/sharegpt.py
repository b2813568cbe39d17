"""ShareGPT: `from` and `value`, tool calls and their results as turns of their own.

{"conversations": [{"from": "human", "value": "Weather in Oslo?"},
                   {"from": "function_call", "value": "{\\"name\\": \\"w\\", \\"arguments\\": {}}"},
                   {"from": "observation", "value": "rain"},
                   {"from": "gpt", "value": "It rains."}], "tools": "[…]", "system": "…"}
"""

from __future__ import annotations

from data_builders.dialects.messages_list import read_list
from data_builders.dialects.reading import Conversation, Reading, Row


def sharegpt(row: Row, how: Reading) -> Conversation:
    """Turns with `from` and `value`, under `conversations` or `messages`."""
    return read_list(row, how, dialect="sharegpt", key="from")
