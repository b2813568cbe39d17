"""OpenAI messages, with tool calls, declared tools, and reasoning in a field or inline.

{"messages": [{"role": "user", "content": "2+2?"},
              {"role": "assistant", "reasoning_content": "…", "content": "4"}], "tools": […]}
"""

from __future__ import annotations

from data_builders.dialects.messages_list import read_list
from data_builders.dialects.reading import Conversation, Reading, Row


def openai(row: Row, how: Reading) -> Conversation:
    """Messages with `role` and `content`, under `messages` or `conversations`."""
    return read_list(row, how, dialect="openai", key="role")
