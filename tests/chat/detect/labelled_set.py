"""What a labelled set is made of: cases, the rows of real data, and the calls in them.

    Case("tau_bench_airline/3", "hermes_json", call=True, prompt=…, reasoning=None, answer=…)
    turns(shared)["sgd_openai_tools"][0] → Turn(id=…, prompt=…, names=[…], arguments=[{…}], tools=…)

Nothing of the data is kept here: it is read where it lies, each time.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """A text with its label; `hard` marks negatives that look like calls."""

    id: str
    form: str
    call: bool
    answer: str
    prompt: str = ""
    reasoning: str | None = None
    tools: str | None = None
    ours: bool = True  # whether the notation was rendered by FORMS
    hard: bool = False


@lru_cache(maxsize=32)
def rows(shared: Path, name: str) -> list[dict[str, Any]]:
    lines = (shared / "data" / f"{name}.jsonl").read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


@dataclass(frozen=True)
class Turn:
    """Calls of one real assistant turn and the user message before it."""

    id: str
    prompt: str
    names: list[str]
    arguments: list[dict[str, Any]]
    tools: str | None


def _openai_turns(source: str, record: int, messages: list[Any], tools: Any) -> Iterator[Turn]:
    prompt = ""
    for k, message in enumerate(messages):
        if message["role"] == "user":
            prompt = message["content"] or ""
        calls = message.get("tool_calls") or []
        if calls:
            functions = [call["function"] for call in calls]
            yield Turn(
                f"{source}/{record}/{k}",
                prompt,
                [f["name"] for f in functions],
                [json.loads(f["arguments"]) for f in functions],
                json.dumps(tools) if tools else None,
            )


@lru_cache(maxsize=2)
def turns(shared: Path) -> dict[str, list[Turn]]:
    """Real calls by source."""
    found: dict[str, list[Turn]] = {}
    for name in ("tau_bench_airline", "sgd_openai_tools"):
        found[name] = [
            turn
            for k, row in enumerate(rows(shared, name))
            for turn in _openai_turns(name, k, row["messages"], row.get("tools"))
        ]
    found["toolset_tools"] = [
        turn
        for k, row in enumerate(rows(shared, "toolset_tools"))
        for turn in _openai_turns("toolset_tools", k, row["conversations"], None)
    ]
    found["bfcl_nonlive"] = [t for row in rows(shared, "bfcl_nonlive") for t in _bfcl(row)]
    glaive = rows(shared, "lf_glaive_toolcall_en")
    found["lf_glaive"] = [t for k, row in enumerate(glaive) for t in _glaive(k, row)]
    found["nemo_gym"] = [t for row in rows(shared, "nemo_gym_example_tasks") for t in _gym(row)]
    return found


def _bfcl(row: dict[str, Any]) -> Iterator[Turn]:
    names: list[str] = []
    arguments: list[dict[str, Any]] = []
    for call in row.get("ground_truth") or []:
        for name, values in call.items():
            names.append(name)
            arguments.append({k: v[0] for k, v in values.items() if v and v[0] != ""})
    if names:
        prompt = row["question"][0][-1]["content"]
        yield Turn(row["id"], prompt, names, arguments, None)


def _glaive(k: int, row: dict[str, Any]) -> Iterator[Turn]:
    prompt = ""
    for j, turn in enumerate(row["conversations"]):
        if turn["from"] == "human":
            prompt = turn["value"]
        if turn["from"] == "function_call":
            call = json.loads(turn["value"])
            for one in call if isinstance(call, list) else [call]:
                yield Turn(f"glaive/{k}/{j}", prompt, [one["name"]], [one["arguments"]],
                           row["tools"] or None)  # fmt: skip


def _gym(row: dict[str, Any]) -> Iterator[Turn]:
    params = row["task"].get("responses_create_params") or {}
    items = params.get("input")
    expected = row["task"].get("expected_action") or {}
    calls = [i for i in items if isinstance(i, dict)] if isinstance(items, list) else []
    prompt = next(
        (c["content"] for c in calls if c.get("role") == "user" and isinstance(c["content"], str)),
        "",
    )
    for k, item in enumerate([*calls, expected, *expected.get("calls", [])]):
        if item.get("type") == "function_call":
            yield Turn(f"gym/{row['env']}/{k}", prompt, [item["name"]],
                       [json.loads(item["arguments"])], None)  # fmt: skip


def template_folder() -> Path:
    folder = package("trl")
    assert folder is not None
    return folder / "chat_templates"


def package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None
