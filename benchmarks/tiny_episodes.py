"""Held-out items played to their end: generate, parse, run the tools, go on, grade.

    play([item], template, generate=generate, encode=encode, decode=decode, thinking=True)
    → [Episode(item, steps=(Step("…", reasoning_tokens=31, …),), grade=Grade(True, "correct"))]

Many episodes go forward together, one step a round, so that a round is one batch. Token ids that
the model wrote are kept: the next prompt is the last one, the completion, and what came since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from data_builders.rows.where import Conditions, unmet
from data_builders.tiny_world.grading import Grade, after_reply, grade
from data_builders.tiny_world.items import message_of
from data_builders.tiny_world.tools import ToolWorld
from posttrain.chat import ChatTemplate, ParsedCompletion, parse_completion, render
from posttrain.errors import DataError
from posttrain.records import Message, ToolCall, json_text
from posttrain.runs import Manifest, read_artifact

# family → the conditions of which its rows meet at least one; () takes every row
Taught = dict[str, tuple[Conditions, ...]]


def taught(checkpoint: Path, world: Manifest) -> Taught:
    """What the checkpoint's data was mixed from: each family, and which of its rows.

    A checkpoint without lineage: all families that have training rows, whole.
    """
    every: Taught = {name: () for name, rows in world.stats["train_rows"].items() if rows}
    try:
        manifest = read_artifact(checkpoint, kind="checkpoint", verify=False)
        data = [p for p in manifest.parents if p.kind == "sft_data"]
        found = read_artifact(checkpoint / data[0].path, kind="sft_data", verify=False)
    except (DataError, IndexError):
        return every
    wheres: dict[str, list[Conditions | None]] = {}
    for source in found.config["sources"]:
        if isinstance(source["path"], str):
            wheres.setdefault(Path(source["path"]).stem, []).append(source["where"])
    return {name: _any_of(own) for name, own in wheres.items() if name in every} or every


def _any_of(wheres: Sequence[Conditions | None]) -> tuple[Conditions, ...]:
    """The conditions of several sources on one file; of one that takes all rows, none."""
    given = tuple(where for where in wheres if where)
    return given if len(given) == len(wheres) else ()


def held_out_items(
    world: Path, families: Mapping[str, Sequence[Conditions]], prompts: int
) -> list[dict[str, Any]]:
    """The first prompts of each family that one of its conditions admits, or all where it has none.

    The families have as many prompts each as `prompts` divides.

    Raises:
        DataError: a family has no held-out prompts, or too few.
    """
    items: list[dict[str, Any]] = []
    for position, (family, wheres) in enumerate(families.items()):
        wanted = prompts // len(families) + (position < prompts % len(families))
        file = world / "heldout" / f"{family}.jsonl"
        if not file.is_file():
            raise DataError(f"{world} has no held-out prompts of family {family!r}")
        rows = [json.loads(row) for row in file.read_text("utf-8").splitlines()]
        rows = [row for row in rows if not wheres or any(unmet(w, row) is None for w in wheres)]
        if len(rows) < wanted:
            raise DataError(f"{file} has {len(rows)} such prompts, {wanted} are asked for")
        items += rows[:wanted]
    return items


THINK_TAGS = ("<think>", "</think>")
_BROKEN_CALL = frozenset({"half_call", "malformed_call"})


class Generated(Protocol):
    """What a generator returns for one prompt: ids with the stop token, and how it ended."""

    @property
    def ids(self) -> tuple[int, ...]: ...
    @property
    def finished(self) -> bool: ...
    @property
    def forced_at(self) -> int | None: ...


Generate = Callable[[Sequence[Sequence[int]]], Sequence[Generated]]
Encode = Callable[[str], Sequence[int]]
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Step:
    """One completion. `text` has its special tokens; tokens of tags and end are not counted.

    `forced`: its reasoning was closed for it, at a budget of `reasoning_tokens`.
    """

    text: str
    parsed: ParsedCompletion
    reasoning_tokens: int
    answer_tokens: int
    finished: bool
    forced: bool

    @property
    def has_think_tag(self) -> bool:
        """Whether the model wrote a think tag, which with reasoning off it never should."""
        return any(tag in self.text for tag in THINK_TAGS)


@dataclass(slots=True)
class Episode:
    """One item being played; done when it has a grade. `messages` grows with what is said."""

    item: Mapping[str, Any]
    messages: list[Message]
    world: ToolWorld
    metadata: Mapping[str, Any]
    tools: str | None
    steps: list[Step] = field(default_factory=list[Step])
    grade: Grade | None = None
    truncated: bool = False
    text: str = ""
    ids: tuple[int, ...] = ()


def begin(item: Mapping[str, Any], *, thinking: bool) -> Episode:
    """An episode at its start. `item` is a row of `heldout/*.jsonl`."""
    metadata = item["metadata"]
    world = ToolWorld(
        metadata["initial_state"],
        fault=metadata["fault"],
        declared=metadata["tools_declared"],
    )
    return Episode(
        item=item,
        messages=[message_of(row, thinking=thinking) for row in item["messages"]],
        world=world,
        metadata=metadata,
        tools=json_text(item["tools"]) if item["tools"] else None,
    )


def play(
    items: Sequence[Mapping[str, Any]],
    template: ChatTemplate,
    *,
    generate: Generate,
    encode: Encode,
    decode: Decode,
    close_id: int,
    thinking: bool,
    max_steps: int = 12,
) -> list[Episode]:
    """Play every item to its grade.

    Args:
        items: rows of `heldout/*.jsonl`.
        template: the chat template the model was trained with.
        generate: prompts of token ids → completions.
        encode, decode: text ↔ ids; `decode` keeps special tokens, `encode` adds none.
        close_id: the token `</think>`.
        thinking: whether prompts leave reasoning open.
        max_steps: completions an episode may have; one that needs more is `truncated` and wrong.
    """
    episodes = [begin(item, thinking=thinking) for item in items]
    for _ in range(max_steps):
        waiting = [episode for episode in episodes if episode.grade is None]
        if not waiting:
            break
        for episode in waiting:
            _extend_prompt(episode, template, encode, thinking)
        done = generate([episode.ids for episode in waiting])
        for episode, completion in zip(waiting, done, strict=True):
            text = decode(completion.ids)
            episode.text += text
            episode.ids = (*episode.ids, *completion.ids)
            _advance(episode, _step(completion, text, episode.tools, close_id, thinking))
    for episode in episodes:
        if episode.grade is None:
            episode.grade, episode.truncated = Grade(False, "wrong_answer"), True
    return episodes


def _extend_prompt(
    episode: Episode, template: ChatTemplate, encode: Encode, thinking: bool
) -> None:
    text = render(
        episode.messages,
        template,
        tools=episode.tools,
        add_generation_prompt=True,
        enable_thinking=thinking,
    )
    # a new user turn drops earlier reasoning: then nothing of the old ids can be kept
    kept = episode.text and text.startswith(episode.text)
    new = text[len(episode.text) :] if kept else text
    episode.ids = (*episode.ids, *encode(new)) if kept else tuple(encode(new))
    episode.text = text


def _step(
    completion: Generated, text: str, tools: str | None, close_id: int, thinking: bool
) -> Step:
    ids = completion.ids
    closed = ids.index(close_id) if close_id in ids else None
    reasoning = (len(ids) if closed is None else closed) if thinking else 0
    if completion.forced_at is not None:
        reasoning, closed = completion.forced_at, ids.index(close_id, completion.forced_at)
    written = len(ids) - completion.finished
    answer = written - closed - 1 if thinking and closed is not None else written - reasoning
    return Step(
        text=text,
        parsed=parse_completion(text, thinking=thinking, tools=tools),
        reasoning_tokens=reasoning,
        answer_tokens=max(0, answer),  # an end token inside reasoning counts as reasoning
        finished=completion.finished,
        forced=completion.forced_at is not None,
    )


def _advance(episode: Episode, step: Step) -> None:
    """Take a step's consequences: run its calls, answer its question, or grade it."""
    episode.steps.append(step)
    parsed, metadata = step.parsed, episode.metadata
    if not step.finished:
        episode.truncated, episode.grade = True, Grade(False, "wrong_answer")
        return
    if metadata["grading"] == "question":
        _answer_question(episode, parsed)
        return
    if parsed.tool_calls and not _BROKEN_CALL & set(parsed.problems):
        _run_calls(episode, parsed)
        return
    episode.messages.append(parsed.message())
    episode.grade = grade(
        metadata,
        parsed.answer,
        calls=[call.name for call in episode.world.calls],
        final_state=episode.world.state,
    )


def _answer_question(episode: Episode, parsed: ParsedCompletion) -> None:
    """The first step should ask, and call nothing; if it does, the user answers."""
    asked = grade(episode.metadata, parsed.answer, calls=[c.name for c in parsed.tool_calls])
    if not asked.correct or parsed.tool_calls:
        episode.grade = asked if not asked.correct else Grade(False, "no_question")
        return
    replies = [Message("user", text) for text in episode.metadata["replies"]]
    episode.messages += [parsed.message(), *replies]
    episode.metadata = after_reply(episode.metadata)


def _run_calls(episode: Episode, parsed: ParsedCompletion) -> None:
    number = len(episode.world.calls)
    calls = tuple(
        ToolCall(call.name, call.arguments, f"call_{number + k}")
        for k, call in enumerate(parsed.tool_calls)
    )
    message = parsed.message()
    episode.messages.append(
        Message("assistant", message.content, reasoning=message.reasoning, tool_calls=calls)
    )
    for call in calls:
        result = episode.world.call(call.name, json.loads(call.arguments))
        reply = Message("tool", result, tool_call_id=call.id, name=call.name)
        episode.messages.append(reply)
    if any(call.name not in episode.metadata["tools_declared"] for call in calls):
        # nothing said later can make this right
        episode.grade = Grade(False, "undeclared_call")
