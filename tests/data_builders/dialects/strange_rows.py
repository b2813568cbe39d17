"""Rows in the forms of many projects, with what must become of the words in them.

Each line of `strange_rows*.jsonl` is a case: `id`, `row`, and words of the row:

    a   words of an answer: trained, and no part of a trace
    r   words of a trace: trained as reasoning
    c   words that the model is shown, and that are not trained
    n   words that may not be trained
    y   words that may not even be shown
    l   columns, or keys of messages, that are read or listed as unread
    x   true: the row may not be kept
    k   `pair`: a preference, `prompt`: a prompt with a gold answer `g`; else a row to train on

A case ends as right, refused (with a reason), listed (what is lost stands in the table of what is
not read, before anything is built), or wrong: lost, or read as what it is not, in silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data_builders.dialects import Conversation, RowProblem, read_side, reading_of
from data_builders.pairs.offline import pair_rows
from data_builders.prompts.questions import read_chat, read_question
from data_builders.rows.raw import Drop, RawRow
from data_builders.rows.read import PlacedExample, RowCounts, examples_of
from data_builders.sft.prepare import Preparer, prepare
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.prompts import ChatPrompts, QuestionPrompts
from posttrain.config.source import SourceConfig
from posttrain.records import Example, Message
from posttrain.tokens.renderer import load_data_renderer
from tests.data_builders.small_build import write_tokenizer

Case = Mapping[str, Any]
MESSAGE_LISTS = ("messages", "conversations", "conversation")
AUTHORS = ("role", "from", "speaker", "author", "type")
CONTENTS = ("content", "value", "text", "message", "parts")


class Outcome(NamedTuple):
    """What became of a case (right, refused, listed, wrong), and why."""

    verdict: str
    why: str = ""


def cases(path: Path) -> list[Case]:
    """All cases of a file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def preparer_for(folder: Path) -> Preparer:
    """What renders and masks rows as a build does, with every trace left as it is."""
    recipe = BuildSftConfig.model_validate(
        {
            "out": str(folder / "out"),
            "tokenizer": {
                "path": str(write_tokenizer(folder / "tokenizer")),
                "chat_template": "nemotron_3_nano",
            },
            "packing": {"max_length": 8192},
            "reasoning": {"strip": 0.0, "truncate": 0.0},
            "sources": ({"name": "none", "path": "none.jsonl"},),
        }
    )
    return Preparer(recipe, recipe.sources[0], load_data_renderer(recipe.tokenizer))


def outcomes(case: Case, preparer: Preparer) -> Iterator[tuple[str, Outcome]]:
    """Each way that the case's row is read in, and what comes of it."""
    kind = case.get("k")
    yield "sft", trained(case, preparer, fields={})
    if kind != "prompt" and isinstance(case["row"], dict):
        lists = {} if kind == "pair" else list_mapping(case["row"])
        for name, fields in (("columns", user_mapping(case)), ("list", lists)):
            if fields:
                yield f"sft, mapped {name}", trained(case, preparer, fields=fields)
    if kind == "pair":
        yield "pair", compared(case)
    if kind == "prompt":
        yield "chat prompt", asked(case, as_chat=True)
        yield "question", asked(case, as_chat=False)


# -- training ---------------------------------------------------------------------------------------


def trained(case: Case, preparer: Preparer, *, fields: Mapping[str, str]) -> Outcome:
    """What `build_sft` makes of the row."""
    config = SourceConfig.model_validate({"name": "s", "path": "s.jsonl", "fields": fields})
    counts = RowCounts()
    rows = iter([RawRow(json.loads(json.dumps(case["row"])), "s.jsonl", 1)])
    try:
        (item,) = examples_of(rows, config, counts=counts)
    except AttributeError:
        return Outcome("refused", "malformed_row")  # a line that is no object is no row
    if not isinstance(item, PlacedExample):
        return Outcome("refused", f"{item.reason}: {item.detail}")
    (prepared,) = prepare([item.example], preparer)
    if prepared.drop is not None:
        return Outcome("refused", f"{prepared.drop.reason}: {prepared.drop.detail}")
    segments = [s for sequence in prepared.sequences for s in sequence.sample.segments]
    trained_text = "\n".join(s.text for s in segments if s.trained)
    shown_text = "\n".join(s.text for s in segments if not s.trained)
    lost = _lost(case, item.example, trained_text, shown_text)
    barred = () if case.get("k") == "prompt" else case.get("n", ())  # a solved prompt may train
    misread = [f"{word!r} is trained" for word in barred if word in trained_text]
    misread += [f"{word!r} is shown" for word in case.get("y", ()) if word in shown_text]
    return _verdict(case, lost, misread, counts.unread)


def _lost(case: Case, example: Example, trained_text: str, shown_text: str) -> dict[str, str]:
    """Word → what is wrong, of the words that are not read as what they are."""
    answers = "\n".join(_spoken(m) for m in example.messages if m.role == "assistant")
    traces = "\n".join(m.reasoning or "" for m in example.messages)
    lost: dict[str, str] = {}
    for word in case.get("a", ()):
        if word not in answers or word not in trained_text:
            lost[word] = "an answer that is not trained"
    for word in case.get("r", ()):
        if word in answers:
            lost[word] = "a trace trained as an answer"
        elif word not in traces or word not in trained_text:
            lost[word] = "a trace that is not trained"
    for word in case.get("c", ()):
        if word not in shown_text and not any(word in m.content for m in example.messages):
            lost[word] = "a part of the prompt that is not there"
    return lost


def _spoken(message: Message) -> str:
    calls = (f"{call.name}({call.arguments})" for call in message.tool_calls)
    return "\n".join((message.content, *calls))


def _verdict(
    case: Case, lost: Mapping[str, str], misread: Sequence[str], unread: Mapping[str, Any]
) -> Outcome:
    """What comes of a row that is kept."""
    if misread:
        return Outcome("wrong", "; ".join(misread))
    listed: list[str] = []
    for word, why in lost.items():
        places = places_of(word, case["row"])
        if why.endswith("as an answer") or not any(place in unread for place in places):
            return Outcome("wrong", f"{word!r}: {why}")
        listed.append(word)
    for column in case.get("l", ()):
        values = [*texts_under(column, case["row"])]
        if any(key == column or key.endswith(f"[].{column}") for key in unread):
            listed.append(column)
        elif values and not _is_read(values, case):
            return Outcome("wrong", f"{column}: neither read nor listed")
    if case.get("x") and case.get("k") != "pair":  # one side of a poor pair may be trained
        return Outcome("wrong", "kept")
    return Outcome("listed", ", ".join(listed)) if listed else Outcome("right")


def _is_read(values: Sequence[str], case: Case) -> bool:
    """Whether a column's texts are words that the case looks for anyway."""
    words = [*case.get("a", ()), *case.get("c", ()), *case.get("r", ())]
    return any(word in value for word in words for value in values)


# -- preferences and prompts ------------------------------------------------------------------------


def compared(case: Case) -> Outcome:
    """What `build_dpo` makes of the row as an offline pair."""
    config = SourceConfig(name="s", path="s.jsonl")
    rows = iter([RawRow(dict(case["row"]), "s.jsonl", 1)])
    ((raw, _),) = pair_rows(rows, config, seed=0)
    if isinstance(raw, Drop):
        return Outcome("refused", f"{raw.reason}: {raw.detail}")
    try:
        chosen, rejected = (
            read_side(raw.row, side, reading_of(config)) for side in ("chosen", "rejected")
        )
    except RowProblem as problem:
        return Outcome("refused", f"{problem.reason}: {problem}")
    if chosen.messages == rejected.messages:
        return Outcome("refused", "identical")
    if case.get("x"):
        return Outcome("wrong", "kept")
    for word in case.get("a", ()):
        if word not in _answer(chosen) or word in _answer(rejected):
            return Outcome("wrong", f"{word!r} is not what is chosen")
    for word in case.get("n", ()):
        if word in _answer(chosen):
            return Outcome("wrong", f"{word!r} is chosen")
    for word in case.get("c", ()):
        places = places_of(word, case["row"])
        shown = any(word in m.content for m in chosen.messages)
        if not shown and places.isdisjoint(chosen.unread):
            return Outcome("wrong", f"{word!r}: a part of the prompt that is not there")
    return Outcome("right")


def _answer(side: Conversation) -> str:
    return "\n".join(_spoken(m) for m in side.messages if m.role == "assistant")


def asked(case: Case, *, as_chat: bool) -> Outcome:
    """What `profile_prompts` and its like make of the row, its columns named by a user."""
    row = case["row"]
    gold = _path_of(case["g"][0], row) if case.get("g") else "answer"
    if not isinstance(row, dict):
        return Outcome("refused", "malformed_row")
    where = {"name": "s", "path": "s.jsonl", "gold": gold}
    try:
        if as_chat:
            question = read_chat(row, ChatPrompts.model_validate({**where, "format": "chat"}))
        else:
            path = _path_of(case["c"][0], row) if case.get("c") else "question"
            if path is None or gold is None:
                return Outcome("refused", "no dotted path leads there")
            more = {"format": "question", "grader": None, "question": path}
            question = read_question(row, QuestionPrompts.model_validate({**where, **more}))
    except RowProblem as problem:
        return Outcome("refused", f"{problem.reason}: {problem}")
    if case.get("x"):
        return Outcome("wrong", "kept")
    text = "\n".join(m.content for m in question.messages)
    for word in case.get("c", ()):
        # who maps one column as the question has chosen to leave the others out
        if word not in text and as_chat:
            return Outcome("wrong", f"{word!r} is not asked")
    for word in case.get("n", ()):
        if word in text:
            return Outcome("wrong", f"{word!r} is shown")
    for word in case.get("g", ()):
        if word not in (question.gold or ""):
            return Outcome("wrong", f"gold {question.gold!r}")
    return Outcome("right")


# -- where a word stands ----------------------------------------------------------------------------


def user_mapping(case: Case) -> dict[str, str]:
    """The `fields` that somebody writes who looks at such a row, where it holds texts in columns."""
    row = case["row"]
    if any(isinstance(row.get(key), list) for key in MESSAGE_LISTS):
        return {}
    names = {"prompt": "c", "completion": "a", "reasoning": "r"}
    fields: dict[str, str] = {}
    for name, words in names.items():
        path = _path_of(case[words][0], row) if case.get(words) else None
        if path is not None and path not in fields.values():
            fields[name] = path
    return fields if {"prompt", "completion"} <= fields.keys() else {}


def list_mapping(row: Mapping[str, Any]) -> dict[str, str]:
    """The `fields` that somebody writes who sees a list of messages in a column of another name."""
    if any(isinstance(row.get(key), list) for key in MESSAGE_LISTS):
        return {}
    lists = (
        (path, value[0])
        for path, value in columns_of(row)
        if isinstance(value, list) and value and isinstance(value[0], dict)
    )
    for path, message in lists:
        role = next((key for key in AUTHORS if key in message), None)
        content = next((key for key in CONTENTS if key in message), None)
        if role and content:
            return {"messages": path, "role": role, "content": content}
    return {}


def columns_of(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Columns with their dotted paths, also those one object deep."""
    for key, value in row.items():
        yield key, value
        for inner, nested in value.items() if isinstance(value, dict) else ():
            yield f"{key}.{inner}", nested


def _path_of(word: str, value: Any, path: str = "") -> str | None:
    """The dotted path to the first text that holds a word."""
    if isinstance(value, dict):
        found = (_path_of(word, v, f"{path}.{k}" if path else k) for k, v in value.items())
        return next((p for p in found if p is not None), None)
    if isinstance(value, str | int | float) and word in str(value):
        return path
    return None


def places_of(word: str, row: Any) -> set[str]:
    """Columns and keys of messages (`messages[].key`) under which a word stands."""
    places: set[str] = set()
    for column, value in row.items() if isinstance(row, dict) else ():
        if word in json.dumps(value, ensure_ascii=False):
            places.add(column)
        for message in value if isinstance(value, list) else ():
            for key, inner in message.items() if isinstance(message, dict) else ():
                if word in json.dumps(inner, ensure_ascii=False):
                    places.add(f"{column}[].{key}")
    return places


def texts_under(name: str, value: Any) -> Iterator[str]:
    """The JSON of whatever stands under a column or a key of that name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == name:
                yield json.dumps(inner, ensure_ascii=False)
            yield from texts_under(name, inner)
    elif isinstance(value, list):
        for item in value:
            yield from texts_under(name, item)
