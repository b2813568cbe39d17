"""OpenAI messages whose reasoning stands inside the assistant's text.

{"messages": [{"role": "user", "content": "2+2?"},
              {"role": "assistant", "content": "<think>\\n2 and 2\\n</think>\\n\\n4"}]}

Inline traces are split off in every dialect; this name says that a source's traces came that way.
"""

from __future__ import annotations

from data_builders.dialects.messages_list import read_list
from data_builders.dialects.reading import Conversation, Reading, Row


def inline_think(row: Row, how: Reading) -> Conversation:
    """Messages with `role` and `content`; an assistant's content may start with its trace."""
    return read_list(row, how, dialect="inline_think", key="role")
