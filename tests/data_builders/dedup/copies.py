"""Conversations, copies of them in other layouts, copies with planted edits."""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from data_builders.dedup.columns import COLUMN_FILES, DedupColumns, column_batch, write_columns
from data_builders.dedup.duplicates import Duplicates, find_duplicates
from posttrain.config.overlap import DeduplicationConfig
from posttrain.records import Example, Message, ToolCall, make_example

_WORDS = """river stone market engine winter letter garden bridge copper silver window doctor planet
island forest camera ticket bottle hammer pencil signal harbour village measure collect explain
compare deliver remember discover arrange protect publish quiet narrow ancient gentle sudden certain
hollow bright heavy distant careful""".split()  # noqa: SIM905  a list of fifty strings reads worse
TOOLS = json.dumps(
    [{"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in "fg"]
)


def sentence(rng: random.Random, words: int) -> str:
    """Words drawn at random, with a full stop now and then."""
    drawn = [rng.choice(_WORDS) + ("." if rng.random() < 0.1 else "") for _ in range(words)]
    return " ".join(drawn)


def chat(question: str, answer: str, *, source: str = "a", reasoning: str | None = None) -> Example:
    """One question, one answer."""
    messages = (Message("user", question), Message("assistant", answer, reasoning=reasoning))
    return make_example(messages, source=source, dialect="openai")


def with_call(number: int, *, call_id: str, indent: int | None = None) -> Example:
    """A conversation with a call; the ids and the layout of its JSON are to choose."""
    arguments = json.dumps({"b": [number, 2], "a": "é"}, indent=indent)
    result = json.dumps({"price": number, "unit": "€"}, indent=indent)
    messages = (
        Message("user", f"What does item {number} cost?"),
        Message("assistant", tool_calls=(ToolCall("f", arguments, call_id),)),
        Message("tool", result, tool_call_id=call_id, name="f"),
        Message("assistant", f"It costs {number}."),
    )
    return make_example(messages, tools=TOOLS, source="a", dialect="openai")


def edited(text: str, share: float, rng: random.Random) -> str:
    """Every word replaced, deleted or followed by another one with probability `share`.

    Of a text without spaces, characters.
    """
    parts = re.split(r"(\s+)", text)
    if len(parts) < len(text) / 20:
        parts = list(text)
    for k, part in enumerate(parts):
        if part.strip() and rng.random() < share:
            new = rng.choice(_WORDS)
            parts[k] = rng.choice((new, "", f"{part} {new}"))
    return "".join(parts)


def edited_characters(text: str, share: float, rng: random.Random) -> str:
    """Every character replaced, deleted or followed by another one with probability `share`."""
    parts = list(text)
    for k, part in enumerate(parts):
        if rng.random() < share:
            new = rng.choice(string.ascii_letters + " ,.")
            parts[k] = rng.choice((new, "", part + new))
    return "".join(parts)


def with_edits(example: Example, edit: Callable[[str], str]) -> Example:
    """The conversation with the texts of user and assistant edited, until one of them is another."""
    while True:
        messages = tuple(
            m if m.role not in ("user", "assistant") else replace(
                m, content=edit(m.content), reasoning=m.reasoning and edit(m.reasoning)
            )
            for m in example.messages
        )  # fmt: skip
        if messages != example.messages:
            return make_example(messages, tools=example.tools, source="copies", dialect="openai")


def edited_copy(example: Example, share: float, rng: random.Random) -> Example:
    """The conversation with that share of the words of every text edited."""
    return with_edits(example, lambda text: edited(text, share, rng))


def columns_of(
    examples: Sequence[Example], folder: Path, *, near: bool = True, batch: int = 128
) -> DedupColumns:
    """The columns of some records, in two parts, in batches as a build writes them."""
    half = len(examples) // 2
    parts = {folder / "0": examples[:half], folder / "1": examples[half:]}
    for part, own in parts.items():
        part.mkdir(parents=True)
        with ExitStack() as stack:
            files = {name: stack.enter_context((part / name).open("wb")) for name in COLUMN_FILES}
            for k in range(0, len(own), batch):
                places = [("rows.jsonl", k + n + 1) for n in range(len(own[k : k + batch]))]
                write_columns(files, *column_batch(own[k : k + batch], places, near=near))
    return DedupColumns(list(parts))


def deduplicate(
    sources: dict[str, list[Example]], config: DeduplicationConfig, scratch: Path
) -> Duplicates:
    """What is dropped among the records of some sources."""
    every = [example for own in sources.values() for example in own]
    with TemporaryDirectory(dir=scratch) as folder:
        columns = columns_of(every, Path(folder), near=config.near is not None)
        return find_duplicates(columns, {name: len(own) for name, own in sources.items()}, config)
