"""The records that travel between stages: frozen, torch-free, equal when their contents are equal.

Tool schemas, tool arguments and metadata are JSON *text*: inside Arrow, nested values of varying
shape would be unified and come back with foreign `null` keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

from pydantic import TypeAdapter

_DUMP: Callable[[object], bytes] = TypeAdapter(object).dump_json
Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[Role, ...] = get_args(Role)
# what a judge's chat template may know besides; no conversation to train on has them
JudgedRole = Literal["principle", "response_1", "response_2"]
ReasoningMode = Literal["on", "off"]
# why a verifier gave no value: it ran into its limit or crashed, a judge or another server did not
# answer, programs could not be contained, or the row's own fields cannot be used
FailureKind = Literal["timeout", "verifier_error", "service", "sandbox", "malformed_row"]


# what the explanation begins with where a grader finds nothing to grade
NO_ANSWER = "no answer"
NOT_IN_FORMAT = "not in the format"


@dataclass(frozen=True, slots=True)
class Score:
    """A grader's verdict on one completion.

    `value` in [0, 1], or `None` when the completion could not be scored: a grader that fails never
    invents a number. `answer` is what was read out of the completion; `explanation` says why.
    `failure` names the kind of failure where the verifier, and not the completion, is at fault.
    `figures` are further shares in [0, 1], such as a looser reading of the same answer.
    """

    value: float | None
    answer: str | None
    explanation: str
    failure: FailureKind | None = None
    figures: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def unanswered(self) -> bool:
        """True if there is no answer, or none in the form that the prompt asks for."""
        words = self.explanation.removeprefix("wrong: ").removeprefix("unscored: ")
        return words.startswith((NO_ANSWER, NOT_IN_FORMAT))

    @property
    def scored(self) -> bool:
        return self.value is not None


def json_text(value: object) -> str:
    """Compact JSON text that keeps key order and non-ASCII characters."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call an assistant makes. `arguments` is the JSON text of an object."""

    name: str
    arguments: str = "{}"
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    `reasoning` is the trace before the answer, without its tags; `None` and "" both mean none.
    `tool_call_id` and `name` identify which call a `tool` message answers. `trained` is False where
    the row takes the assistant's message out of the loss; messages are equal whatever it says.
    """

    role: Role | JudgedRole
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    trained: bool = field(default=True, compare=False)

    @property
    def reasons(self) -> bool:
        """True if this message carries a reasoning trace that a template would render."""
        return bool(self.reasoning and self.reasoning.strip())


@dataclass(frozen=True, slots=True)
class Example:
    """One conversation and where it came from.

    `tools` is the JSON text of a list of tool schemas, `None` when none is declared; `metadata` is
    that of an object. `id` derives from messages and tools alone, not from where a row stands or
    what it is called; build examples with `make_example`, which computes it.
    """

    messages: tuple[Message, ...]
    tools: str | None
    id: str
    source: str
    license: str
    dialect: str
    metadata: str = "{}"

    @property
    def reasoning_mode(self) -> ReasoningMode:
        """`on` when any assistant message reasons, else `off`."""
        return "on" if any(m.role == "assistant" and m.reasons for m in self.messages) else "off"


def content_id(messages: Iterable[Message], tools: str | None) -> str:
    """32 hex digits derived from the conversation and its declared tools, nothing else."""
    payload = [
        [m.role, m.content, m.reasoning or "", [[c.name, c.arguments, c.id] for c in m.tool_calls],
         m.tool_call_id, m.name]
        for m in messages
    ]  # fmt: skip
    try:
        text = _DUMP([payload, tools])  # the bytes of `json_text`, many times as fast
    except ValueError:
        # a lone surrogate is bad data for a filter to name, not a reason to crash here
        text = json_text([payload, tools]).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def make_example(
    messages: Iterable[Message],
    *,
    tools: str | None = None,
    source: str,
    license: str = "unknown",
    dialect: str,
    metadata: str = "{}",
) -> Example:
    """Build an `Example` and derive its id from its content."""
    turns = tuple(messages)
    return Example(turns, tools, content_id(turns, tools), source, license, dialect, metadata)


def with_messages(example: Example, messages: Iterable[Message]) -> Example:
    """The example with other messages and the *same* id: an edit of a record, not a new record."""
    return replace(example, messages=tuple(messages))


def message_to_template(message: Message) -> dict[str, Any]:
    """The message as chat templates expect it: arguments decoded, absent fields left out."""
    calls = [
        {"type": "function"}
        | ({} if call.id is None else {"id": call.id})
        | {"function": {"name": call.name, "arguments": json.loads(call.arguments)}}
        for call in message.tool_calls
    ]
    row = {
        "role": message.role,
        "content": message.content,
        "reasoning_content": message.reasoning,
        "thinking": message.reasoning,  # the name gpt-oss templates read
        "tool_calls": calls or None,
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }
    return {key: value for key, value in row.items() if value is not None}


def tools_to_template(tools: str | None) -> list[dict[str, Any]] | None:
    """Declared tools as chat templates expect them, `None` when none is declared."""
    return None if tools is None else cast(list[dict[str, Any]], json.loads(tools))


def message_to_row(message: Message) -> dict[str, Any]:
    """The message as a JSON-able row; absent fields are left out."""
    row = {
        "role": message.role,
        "content": message.content,
        "reasoning": message.reasoning,
        "tool_calls": [[c.name, c.arguments, c.id] for c in message.tool_calls] or None,
        "tool_call_id": message.tool_call_id,
        "name": message.name,
        "trained": None if message.trained else False,
    }
    return {key: value for key, value in row.items() if value is not None}


def message_from_row(row: Mapping[str, Any]) -> Message:
    """Inverse of `message_to_row`."""
    return Message(
        role=row["role"],
        content=row["content"],
        reasoning=row.get("reasoning"),
        tool_calls=tuple(ToolCall(*c) for c in row.get("tool_calls", ())),
        tool_call_id=row.get("tool_call_id"),
        name=row.get("name"),
        trained=row.get("trained", True),
    )


# -- preference pairs, as they lie on disk between `build_dpo` and `dpo` --------------------------

Category = Literal["no_tools", "with_tools", "hallucination_penalty", "offline"]
CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True, slots=True)
class Side:
    """Chosen or rejected. `index` is the sample it was (-1: given as text, not sampled by us).

    `mask` is True for the tokens the model sampled: the only ones in any loss term. `score` is the
    grader's, None where unscored or given; `calls` the number of tool calls; lengths in tokens;
    `text` is for reading only.
    """

    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    text: str
    index: int = -1
    score: float | None = None
    calls: int = 0
    reasoning_tokens: int = 0
    answer_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """Two completions of one prompt. `category` "offline" is a pair that came as data."""

    id: str
    task: str
    category: Category
    thinking: bool
    prompt_ids: tuple[int, ...]
    chosen: Side
    rejected: Side
    source: str = ""


def pair_to_row(pair: Pair) -> dict[str, Any]:
    """The pair as one flat row: `chosen_ids`, `chosen_mask`, …, `rejected_text`."""
    names = ("id", "task", "category", "thinking", "prompt_ids", "source")
    row: dict[str, Any] = {name: getattr(pair, name) for name in names}
    for side in ("chosen", "rejected"):
        half: Side = getattr(pair, side)
        row |= {f"{side}_{name}": getattr(half, name) for name in Side.__slots__}
    return row
