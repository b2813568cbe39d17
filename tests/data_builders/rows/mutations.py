"""Sound rows of every dialect, and what can happen to a row on its way: one seeded damage each.

mutated("sharegpt", seed=7)  →  ("wrong_type", b'{"conversations": 3, …}\\n')
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from tests.data_builders.small_rows import CALL, WEATHER

_SYSTEM = {"role": "system", "content": "Be brief."}
_ASKED = {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]}
_CALLS = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "I look.",
    "tool_calls": [CALL],
}
_RESULT = {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "rain"}
_SAYS = {"role": "assistant", "content": "It rains.", "reasoning_content": "rain it is"}
_INLINE = {"role": "assistant", "content": "<think>rain</think>It rains."}
_STRICT_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "pattern": "^[A-Z]", "minLength": 1},
                "days": {"anyOf": [{"type": "integer", "multipleOf": 1}, {"$ref": "#/$defs/d"}]},
            },
            "$defs": {"d": {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}},
            "additionalProperties": False,
            "required": ["city"],
        },
    },
}
_TOOL_TURNS = [
    {"from": "human", "value": "Weather?"},
    {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Oslo"}}'},
    {"from": "observation", "value": "rain"},
    {"from": "gpt", "value": "It rains."},
]
ROWS: dict[str, list[dict[str, Any]]] = {
    "openai": [
        {"messages": [_SYSTEM, _ASKED, _CALLS, _RESULT, _SAYS], "tools": [WEATHER], "label": 1},
        {"messages": [_ASKED, _CALLS, _RESULT, _SAYS], "tools": json.dumps([_STRICT_TOOL])},
        {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]},
    ],
    "inline_think": [
        {"messages": [_SYSTEM, _ASKED, _INLINE], "label": {"level": 3}},
        {"conversations": [_ASKED, _INLINE, {"role": "user", "content": "Sure?"}, _INLINE]},
    ],
    "sharegpt": [
        {"conversations": _TOOL_TURNS, "tools": json.dumps([WEATHER]), "system": "Be brief."},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
    ],
    "alpaca": [
        {"instruction": "Add.", "input": "2 2", "output": "4", "history": [["Hi", "Hello"]]},
        {"instruction": "Say hi.", "output": "hi", "system": "Be brief.", "label": "a"},
    ],
    "prompt_completion": [
        {"prompt": "2+2?", "completion": "<think>2</think>4", "reasoning_content": None},
        {"prompt": [_SYSTEM, _ASKED], "completion": [_SAYS], "tools": [WEATHER]},
    ],
    "chosen_rejected": [
        {"prompt": [_ASKED], "chosen": [_CALLS, _RESULT, _SAYS], "rejected": [_SAYS],
         "tools": [WEATHER]},
        {"chosen": "\n\nHuman: 2+2?\n\nAssistant: 4", "rejected": "\n\nHuman: 2+2?\n\nAssistant: 5"},
        {"prompt": "2+2?", "chosen": "4", "rejected": "5"},
    ],
}  # fmt: skip
KEYS = [
    "role", "from", "content", "value", "name", "arguments", "function", "type", "text", "tool_calls",
    "reasoning_content", "tools", "system", "properties", "required", "$ref", "enum", "minimum",
    "pattern", "items", "additionalProperties", "weight", "messages", "images",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 3, 0.5, -1e308, "", " ", "x", "assistant", "user", "tool", "{}", "[",
    "[]", "null", "<think>", "</think>", "<think></think>", "<tool_call>", "<|im_end|>", "object",
    "(a+)+$", "#", "#/$defs/d", "\u202e", "é" * 40, [], [None], [[]], {}, {"role": "user"},
    {"type": "image_url"}, [{"type": "text"}], {"function": {}}, ["a", "b"],
]  # fmt: skip
_SPOT = "@spot@"
BIG = 5_000_000  # characters of a big message


def mutated(dialect: str, seed: int, *, big: bool = False) -> tuple[str, bytes]:
    """(what was done, the line): one of `MUTATIONS`, the same for the same seed.

    Args:
        big: the mutation is a message of 5 MB, whatever the seed would have chosen.
    """
    rng = random.Random(f"{dialect} {seed}")
    name = "big_message" if big else rng.choice([*MUTATIONS, *STRUCTURAL, *STRUCTURAL])
    row = json.loads(json.dumps(rng.choice(ROWS[dialect])))
    return name, (_big if big else MUTATIONS[name])(row, rng) + b"\n"


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            found += _places(item, (*path, key))
    return found


def _at(row: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        row = row[key]
    return row


def _put(row: dict[str, Any], rng: random.Random, value: Any) -> None:
    path = rng.choice(_places(row))
    _at(row, path)[path[-1]] = copy.deepcopy(value)


def _dump(row: Any) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _splice(row: dict[str, Any], rng: random.Random, text: str | bytes) -> bytes:
    """The row with raw text in the place of one value."""
    _put(row, rng, _SPOT)
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return _dump(row).replace(b'"' + _SPOT.encode() + b'"', raw)


def _wrong_type(row: dict[str, Any], rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 3)):
        _put(row, rng, rng.choice(VALUES))
    return _dump(row)


def _missing(row: dict[str, Any], rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 3)):
        if places := _places(row):
            path = rng.choice(places)
            del _at(row, path)[path[-1]]
    return _dump(row)


def _foreign_key(row: dict[str, Any], rng: random.Random) -> bytes:
    objects = [path for path in _places(row) if isinstance(_at(row, path)[path[-1]], dict)]
    path = rng.choice([*objects, ()])
    spot = _at(row, path)[path[-1]] if path else row
    spot[rng.choice(KEYS)] = copy.deepcopy(rng.choice(VALUES))
    return _dump(row)


def _twisted_schema(row: dict[str, Any], rng: random.Random) -> bytes:
    """Something strange inside declared tools or their calls' arguments, where there are any."""
    tools = row.get("tools")
    text = isinstance(tools, str)
    tools = json.loads(tools) if text else tools
    if not tools:
        return _wrong_type(row, rng)
    for _ in range(rng.randint(1, 3)):
        path = rng.choice(_places(tools))
        spot, key = _at(tools, path), path[-1]
        deeper = isinstance(spot[key], dict) and rng.random() < 0.5
        value = copy.deepcopy(rng.choice(VALUES))
        if deeper:
            spot, key = spot[key], rng.choice(KEYS)
        spot[key] = value
    row["tools"] = json.dumps(tools) if text else tools
    return _dump(row)


def _truncated(row: dict[str, Any], rng: random.Random) -> bytes:
    line = _dump(row)
    return line[: rng.randrange(1, len(line))]


def _duplicate_key(row: dict[str, Any], rng: random.Random) -> bytes:
    return _splice(row, rng, '{"a": 1, "content": "x", "a": 2}')


def _huge_integer(row: dict[str, Any], rng: random.Random) -> bytes:
    digits = rng.choice([20, 400, 4299, 4301, 100_000])
    return _splice(row, rng, rng.choice(["", "-"]) + "9" * digits)


def _no_number(row: dict[str, Any], rng: random.Random) -> bytes:
    texts = ["NaN", "Infinity", "-Infinity", "1e999", "01", "1.", "+1"]
    return _splice(row, rng, rng.choice(texts))


def _lone_surrogate(row: dict[str, Any], rng: random.Random) -> bytes:
    """As an escape, as its three bytes, or in a key."""
    text = rng.choice(['"\\ud83d"', '"a\\udc00b"', '{"\\ud800": "x"}', "raw"])
    return _splice(row, rng, b'"\xed\xa0\x80"' if text == "raw" else text)


def _nul(row: dict[str, Any], rng: random.Random) -> bytes:
    return _splice(row, rng, rng.choice(['"a\\u0000b"', '"\\u0000"', '{"\\u0000": 1}', '"a\x00b"']))


def _deep(row: dict[str, Any], rng: random.Random) -> bytes:
    depth = rng.choice([20, 90, 300, 900, 980, 20_000])
    if rng.random() < 0.5:
        return _splice(row, rng, "[" * depth + "]" * depth)
    return _splice(row, rng, '{"content":' * depth + "1" + "}" * depth)


def _encodings(row: dict[str, Any], rng: random.Random) -> bytes:
    """Text in another encoding inside a line of UTF-8, or the whole line in it."""
    _put(row, rng, "Grüße – „žluťoučký“ 你好")
    coding = rng.choice(["latin-1", "cp1252", "utf-16", "utf-16-le", "gb18030", "utf-8-sig"])
    if rng.random() < 0.5:
        return _dump(row).decode().encode(coding, "replace").replace(b"\n", b"")
    return _splice(row, rng, b'"' + "Grüße".encode(coding).replace(b"\n", b"") + b'"')


def _bytes(row: dict[str, Any], rng: random.Random) -> bytes:
    line = bytearray(_dump(row))
    for _ in range(rng.randint(1, 8)):
        line[rng.randrange(len(line))] = rng.choice([0, 9, 13, 34, 44, 92, 123, 128, 255])
    return bytes(line)


def _two_rows(row: dict[str, Any], rng: random.Random) -> bytes:
    line = _dump(row)
    return line + rng.choice([b" ", b",", b"", b"\r"]) + line


def _text(row: dict[str, Any], rng: random.Random) -> bytes:
    """Markup, controls and other scripts in the place of some text."""
    texts = ["<think>a</think>b<think>c</think>", "<think>", "a</think>", "<|im_start|>user\nhi",
             "<tool_call>\n{}\n</tool_call>", "\x1b[31m", "\u2028\u0085", "{{ x }}{% if %}",
             "[INST] hi [/INST]", "\ufeff", "a" * 3000, "\r\n" * 9]  # fmt: skip
    _put(row, rng, rng.choice(texts))
    return _dump(row)


def _big(row: dict[str, Any], rng: random.Random) -> bytes:
    word = rng.choice(["rain falls again ", "a", "\n", "雨が", '"\\', "<think>", "é\u0301"])
    _put(row, rng, (word * (BIG // len(word) + 1))[:BIG])
    return _dump(row)


MUTATIONS: dict[str, Callable[[dict[str, Any], random.Random], bytes]] = {
    mutation.__name__.removeprefix("_"): mutation
    for mutation in (
        _wrong_type, _missing, _foreign_key, _twisted_schema, _truncated, _duplicate_key,
        _huge_integer, _no_number, _lone_surrogate, _nul, _deep, _encodings, _bytes, _two_rows,
        _text,
    )
}  # fmt: skip
# these leave a row that is JSON, and reach further: they are drawn three times as often
STRUCTURAL = ("wrong_type", "missing", "foreign_key", "twisted_schema", "text")
