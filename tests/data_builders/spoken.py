"""What models and people say in the shared real sets, by set, row and part, with labels of loops.

    spoken(shared, "pandalm_human")  →  Spoken("pandalm_human", 176, "response2", "| Season | …"), …
    labels()[("pandalm_human", 43, "response1")]  →  "loop"

Rows count from 0. No text is kept in the project: labels name set, row and part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

LABELS = Path(__file__).with_name("repetition_labels.yaml")

Row = dict[str, Any]
Parts = Iterator[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Spoken:
    """One text. `part` is its name in the row, unique there."""

    set: str
    row: int
    part: str
    text: str


def _messages(key: str, role: str, text: str, speakers: set[str]) -> Callable[[Row], Parts]:
    def read(row: Row) -> Parts:
        for index, message in enumerate(row[key]):
            if message[role] in speakers:
                yield str(index), message[text]

    return read


def _reasoning(row: Row) -> Parts:
    for message in row["messages"]:
        if message["role"] == "assistant":
            trace, closed, answer = message["content"].rpartition("</think>")
            yield "reasoning", message.get("reasoning_content") or trace.removeprefix("<think>")
            yield "answer", answer if closed else message["content"]


def _fields(*names: str) -> Callable[[Row], Parts]:
    return lambda row: ((name, row[name]) for name in names)


def _all_text(row: Row) -> Parts:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{part}", text) for part, text in _all_text(value))
        elif isinstance(value, str):
            yield name, value


# in each of these sets the texts that a model or a person wrote as an answer
SETS: dict[str, Callable[[Row], Parts]] = {
    "reasoning_ma_content": _reasoning,
    "reasoning_ma_inline": _reasoning,
    "deepseek_math_v2_proofs": _all_text,
    "gsm8k_train": _fields("answer"),
    "open_instruct_human_eval_pairs": lambda row: (
        (str(k), c["completion"]) for k, c in enumerate(row["completions"])
    ),
    "pandalm_human": _fields("response1", "response2"),
    "reasoning_gym_graded": lambda row: (
        (str(k), c["full_model_response"]) for k, c in enumerate(row["completions"])
    ),
    "lf_kto_en": _messages("messages", "role", "content", {"assistant"}),
    "lf_dpo_en": lambda row: ((side, row[side]["value"]) for side in ("chosen", "rejected")),
    "lf_glaive_toolcall_en": _messages("conversations", "from", "value", {"gpt"}),
    "lf_alpaca_en": _fields("output"),
    "lf_alpaca_zh": _fields("output"),
    "sgd_openai_tools": _messages("messages", "role", "content", {"assistant"}),
    "tau_bench_airline": _messages("messages", "role", "content", {"assistant"}),
    "toolset_tools": _messages("conversations", "role", "content", {"assistant"}),
    "toolset_preference": _fields("chosen", "rejected"),
    "workbench_tasks": _fields("answer"),
    "humaneval": _fields("canonical_solution", "test"),
}


def spoken(shared: Path, name: str) -> Iterator[Spoken]:
    """The texts of one set; empty ones are left out."""
    with (shared / "data" / f"{name}.jsonl").open(encoding="utf-8") as lines:
        for row, line in enumerate(lines):
            for part, text in SETS[name](json.loads(line)):
                if isinstance(text, str) and text:
                    yield Spoken(name, row, part, text)


def labels() -> dict[tuple[str, int, str], str]:
    """Of texts that were read: "loop", "short", "doubtful" or "honest"; how, the file says."""
    read = yaml.safe_load(LABELS.read_text("utf-8"))
    found = dict[tuple[str, int, str], str]()
    for label, sets in read.items():
        for name, places in sets.items():
            for place in places.split():
                row, _, part = place.partition(":")
                assert (name, int(row), part) not in found, (name, place)
                found[name, int(row), part] = label
    return found
