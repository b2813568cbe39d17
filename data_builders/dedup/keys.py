"""What makes two conversations the same, as 64 bits: layout, ids, order of JSON keys do not count.

conversation_key(example) → 0x5f0c…    of all turns, the declared tools and the system text
prompt_key(example)       → 0x91ab…    of the same without anything the assistant or a tool said

Not part of a key: source, license, metadata, dialect, ids of calls, names of tool results. Case and
punctuation are: two prompts that differ in one letter are two prompts.
"""

from __future__ import annotations

import json
import unicodedata

from data_builders.keyed import key64
from posttrain.jsontext import encode_json, load_json
from posttrain.records import Example, Message


def conversation_key(example: Example) -> int:
    """64 bits; equal for re-formatted copies of one conversation."""
    return _key("conversation", example, [_turn(m) for m in example.messages])


def prompt_key(example: Example) -> int:
    """64 bits; equal for conversations in which the system and the user said the same, in order.

    Whole conversations are compared: "Hi" followed by other questions is another prompt.
    """
    requests = [m for m in example.messages if m.role in ("system", "user")]
    return _key("prompt", example, [_turn(m) for m in requests])


def _key(purpose: str, example: Example, turns: list[list[object]]) -> int:
    text = json.dumps([turns, tools_text(example)], ensure_ascii=False)
    return key64(0, purpose, text)


def _turn(message: Message) -> list[object]:
    calls = [[call.name, canonical_text(call.arguments)] for call in message.tool_calls]
    trace = canonical_text(message.reasoning or "")
    return [message.role, canonical_text(message.content), trace, calls]


def tools_text(example: Example) -> str:
    """The declared tools, whatever their order and layout; "" when none is declared."""
    if example.tools is None:
        return ""
    try:
        tools = load_json(example.tools)
    except ValueError:
        return canonical_text(example.tools)
    if not isinstance(tools, list):
        return canonical_text(example.tools)
    return "\n".join(sorted(json.dumps(t, sort_keys=True, ensure_ascii=False) for t in tools))


def canonical_text(text: str) -> str:
    """The text in Unicode's composed form, each run of white space one space, JSON laid out anew.

    Canonical equivalence only (NFC): the compatibility forms would make `x²` and `x2` one.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    text = " ".join(text.split())
    if text[:1] in ("{", "[") and text[-1:] in ("}", "]"):
        return canonical_json(text) or text
    return text


def canonical_json(text: str) -> str | None:
    """JSON text with sorted keys and no space, `None` for text that is no strict JSON."""
    try:
        value = load_json(text)
        encode_json(value)
        return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return None
