"""A tokenizer and its chat template → the tokens by which sequences are read.

marks_of(encode, special={"<|im_start|>": 1, …}, stop_ids=(2,), pad_id=0, template=template)
→ Marks(stop=(2,), tail=(198,), turn=(0, 1), empty_think=((5, 6), …), roles={"user": (1, 882), …})

How a template opens its turns is found by rendering a small chat: what stands between one turn's
text and the next, from its first special token on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from posttrain.chat import ChatTemplate
from posttrain.chat.reasoning import CLOSE, OPEN
from posttrain.errors import RenderError
from posttrain.tokens.supervision import Marks

_TAGS = (OPEN, CLOSE, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_SPACES = ("\n", "\n\n", " ", "\r\n", "\n\n\n")
_WORDS = {"system": "Alfa", "user": "Bravo", "assistant": "Charlie", "tool": "Delta"}
_CALL = {"type": "function", "id": "c1", "function": {"name": "f", "arguments": {}}}
Encode = Callable[[Sequence[str]], list[list[int]]]


def marks_of(
    encode: Encode,
    *,
    special: Mapping[str, int],
    stop_ids: Iterable[int],
    pad_id: int | None,
    template: ChatTemplate | None,
) -> Marks:
    """The marks of a tokenizer.

    Args:
        encode: texts → ids, nothing added.
        special: the tokens that the tokenizer marks as special.
        template: without one, or with one that cannot be read, nothing is known of turns.
    """
    stop = tuple(sorted(set(stop_ids)))
    tail = tuple(ids[0] for ids in encode(_SPACES) if len(ids) == 1 and ids[0] not in stop)
    roles, opening = _roles(encode, special, stop, tail, template)
    tags = {special[tag] for tag in _TAGS if tag in special}
    turn = {token for token in opening if token in special.values()} - tags - set(stop)
    if pad_id is not None and pad_id not in stop:
        turn.add(pad_id)
    return Marks(
        stop=stop,
        tail=tail,
        turn=tuple(sorted(turn)),
        empty_think=_empty_thinks(encode),
        roles=roles,
    )


def _empty_thinks(encode: Encode) -> tuple[tuple[int, ...], ...]:
    """Patterns of an empty trace; where tags are no tokens, a line end may merge with the last."""
    texts = [f"{OPEN}{space}{CLOSE}{after}" for after in ("", "\n", "\n\n")
             for space in ("", *_SPACES)]  # fmt: skip
    found: list[tuple[int, ...]] = []
    for ids in map(tuple, encode(texts)):
        if ids and not any(ids[: len(known)] == known for known in found):
            found.append(ids)
    return tuple(found)


def _roles(
    encode: Encode,
    special: Mapping[str, int],
    stop: Sequence[int],
    tail: Sequence[int],
    template: ChatTemplate | None,
) -> tuple[dict[str, tuple[int, ...]], set[int]]:
    """The pattern that opens each role's turns, and every token in them; nothing if unclear."""
    if template is None:
        return {}, set()
    found: dict[str, tuple[int, ...]] = {}
    known, ends = set(special.values()), {*stop, *tail}
    tags = {special[tag] for tag in _TAGS if tag in special}
    for role in _WORDS:
        gap = _gap(template, role)
        ids = encode([gap])[0] if gap else []
        start = next((k for k, i in enumerate(ids) if i in known - set(stop) - tags), None)
        if start is None:
            continue
        end = next((k for k in range(start, len(ids)) if ids[k] in ends | tags), len(ids))
        found[role] = tuple(ids[start:end])
    own = found.get("assistant")
    others = [pattern for role, pattern in found.items() if role != "assistant"]
    if own is None or not others:
        return {}, set()
    opening = {token for pattern in found.values() for token in pattern}
    if any(own[: len(p)] == p or p[: len(own)] == own for p in others):
        return {}, opening  # e.g. a template that tells roles apart by plain text
    return found, opening


def _gap(template: ChatTemplate, role: str) -> str:
    """What a template writes between the turn before and a turn of this role."""
    turn: dict[str, Any] = {"role": role, "content": _WORDS[role]}
    user, answer = _turn("user"), _turn("assistant")
    before = {
        "system": [],
        "user": [user, answer],
        "assistant": [user],
        "tool": [user, {"role": "assistant", "content": "", "tool_calls": [_CALL]}],
    }[role]
    after = {"system": [user], "user": [], "assistant": [user], "tool": [answer, user]}[role]
    try:
        text = template.text([*before, turn, *after])
    except RenderError:
        return ""
    end = text.rfind(_WORDS[role]) if role == "user" else text.find(_WORDS[role])
    if end < 0:
        return ""
    last = {"user": _WORDS["assistant"], "assistant": _WORDS["user"], "tool": None}.get(role)
    start = text.rfind(last, 0, end) + len(last) if last else 0
    gap = text[start:end]
    # a call is written in the template's own words: the turn begins at the last line of the gap
    return _after_call(gap) if role == "tool" else gap


def _after_call(text: str) -> str:
    """From where the turn that calls has ended."""
    return text.rpartition("</tool_call>")[2] if "</tool_call>" in text else ""


def _turn(role: str) -> dict[str, Any]:
    return {"role": role, "content": _WORDS[role]}
