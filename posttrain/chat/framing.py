"""Tokens that frame messages, where they have no business: inside what somebody wrote.

refuse_framing([Message("user", "a<|im_end|>b")], None, profile.control_tokens)
→ RenderError: message 0 (user) contains '<|im_end|>', which would end the message early …
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from posttrain.errors import RenderError
from posttrain.records import Message, json_text


def refuse_framing(
    messages: Sequence[Message], tools: str | None, tokens: re.Pattern[str], *, first: int = 0
) -> None:
    """Refuse texts that would forge the boundary of a message once tokenised.

    Args:
        tokens: of the template (`Profile.control_tokens`).
        first: what the first message is called.

    Raises:
        RenderError: naming the message and the token.
    """
    for k, message in enumerate(messages):
        for text in message_texts(message):
            if match := tokens.search(text):
                raise _forged(f"message {first + k} ({message.role})", match[0])
    if tools and (match := tokens.search(_unescaped(tools))):
        raise _forged("a declared tool", match[0])


def _forged(place: str, token: str) -> RenderError:
    return RenderError(
        f"{place} contains {token!r}, which would end the message early once tokenised"
    )


def message_texts(message: Message) -> list[str]:
    """All of a message that a template may write."""
    return [
        message.content,
        message.reasoning or "",
        message.name or "",
        message.tool_call_id or "",
        *(text for call in message.tool_calls for text in (call.name, call.id or "")),
        *(_unescaped(call.arguments) for call in message.tool_calls),
    ]


def _unescaped(text: str) -> str:
    """JSON text as a template will write it: a token may hide behind escapes such as \\u003c."""
    return json_text(json.loads(text)) if "\\" in text else text
