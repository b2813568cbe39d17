"""A real model by its server and in this process: the same answers, calls and token counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.real.commands import jsonl, questions, run
from tests.real.server import CONTEXT, MODEL, VllmProcess, proxy

COUNT = 8
TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluates an expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
KEYS = ("reasoning_tokens", "answer_tokens", "prompt_tokens", "finish")


def calling(folder: Path, count: int) -> Path:
    """Conversations in which every question was answered by a call, so that a small model calls."""
    rows: list[dict[str, Any]] = []
    for n in range(count):
        messages: list[dict[str, Any]] = []
        for k, (left, right) in enumerate([(12 + n, 7), (20, 5 + n), (9, 30 + n)]):
            arguments = json.dumps({"expression": f"{left} + {right}"})
            function = {"name": "calculator", "arguments": arguments}
            call = {"id": f"call0000{k}", "type": "function", "function": function}
            messages += [
                {"role": "user", "content": f"What is {left} + {right}?"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": str(left + right)},
                {"role": "assistant", "content": f"{left} + {right} is {left + right}."},
            ]
        messages += [
            {"role": "user", "content": f"What is {5 + n} + 8?"},
            {"role": "assistant", "content": str(13 + n)},
        ]
        rows.append({"messages": messages, "tools": [TOOL]})
    file = folder / "calling.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def recipe(folder: Path, checkpoint: Path, backend: dict[str, Any], out: str) -> dict[str, Any]:
    plain = {"format": "question", "template": "{question}", "grader": None, "gold": None}
    return {
        "out": str(folder / out),
        "checkpoint": str(checkpoint),
        "backend": backend,
        "prompts": [
            {"name": "sums", "path": str(questions(folder, COUNT)), **plain},
            {"name": "calling", "format": "chat", "path": str(calling(folder, COUNT))},
        ],
        "settings": [
            {"name": "plain", "thinking": "both", "sources": ["sums"]},
            {"name": "tools", "thinking": 1, "tools": "given", "sources": ["calling"]},
        ],
        "n": 1,
        "sampling": {"max_tokens": 48, "temperature": 0},
    }


def completions(folder: Path, checkpoint: Path, backend: dict[str, Any], out: str) -> Any:
    """What is compared of every completion, by prompt."""
    run(folder, "sample", recipe(folder, checkpoint, backend, out))
    found: dict[str, Any] = {}
    for row in jsonl(folder / out / "samples.jsonl"):
        [step] = row["steps"]
        parsed = step["parsed"]
        calls = [[name, arguments] for name, arguments, _ in parsed["tool_calls"]]
        counts = [step[key] for key in KEYS]
        found[row["prompt_id"]] = (parsed["reasoning"], parsed["answer"], calls, counts)
    assert len(found) == 3 * COUNT
    return found


@pytest.fixture(scope="module")
def in_process(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    backend = {"kind": "transformers", "dtype": "float32", "batch_size": COUNT}
    found = completions(tmp_path_factory.mktemp("process"), checkpoint, backend, "out")
    assert sum(bool(calls) for _, _, calls, _ in found.values()) >= COUNT // 2
    return found


def test_completions_are_those_in_process_also_behind_a_proxy_that_refuses_a_third(
    checkpoint: Path, server: VllmProcess, in_process: Any, tmp_path: Path
):
    def trouble(number: int) -> int | None:
        return {0: 429, 1: 500}.get(number % 6)

    with proxy(server, trouble=trouble) as (url, refusals):
        backend = {"kind": "completions", "url": url, "model": MODEL}
        assert completions(tmp_path, checkpoint, backend, "out") == in_process
    assert {429, 500} == set(refusals)


def test_chat_gives_what_comes_in_process(
    checkpoint: Path, server: VllmProcess, in_process: Any, tmp_path: Path
):
    backend = {
        "kind": "chat",
        "server": "vllm",
        "thinking": "enable_thinking",
        "url": server.url,
        "model": MODEL,
    }
    assert completions(tmp_path, checkpoint, backend, "out") == in_process


def test_an_evaluation_by_the_server_grades_every_answer(
    checkpoint: Path, server: VllmProcess, tmp_path: Path
):
    backend = {"kind": "completions", "url": server.url, "model": MODEL}
    graded = {"format": "question", "template": "{question}", "grader": "numeric"}
    evaluation = {
        "out": str(tmp_path / "out"),
        "checkpoints": {"base": str(checkpoint)},
        "backend": backend,
        "prompts": [{"name": "sums", "path": str(questions(tmp_path, COUNT)), **graded}],
        "settings": [{"name": "plain", "thinking": 0}],
        "n": 1,
        "sampling": {"max_tokens": 24, "temperature": 0},
    }
    run(tmp_path, "eval", evaluation)
    records = jsonl(tmp_path / "out/records/base/sums.plain.jsonl")
    assert len(records) == COUNT
    [cell] = json.loads((tmp_path / "out/metrics.json").read_text())["cells"]
    assert (cell["samples"], cell["failed"], cell["unscored"]) == (COUNT, 0, 0)
    # a model of 135 M adds most of such numbers
    assert 0 < cell["rates"]["accuracy"]["value"] <= 1


@pytest.mark.parametrize("stage", ["sample", "eval", "profile_prompts"])
def test_a_dry_run_refuses_tokens_beyond_the_servers_context(
    checkpoint: Path, server: VllmProcess, tmp_path: Path, stage: str
):
    backend = {"kind": "completions", "url": server.url, "model": MODEL}
    source = {"name": "sums", "format": "question", "path": str(questions(tmp_path, COUNT))}
    shared = {
        "out": str(tmp_path / "out"),
        "backend": backend,
        "prompts": [source | {"grader": "numeric"}],
        "settings": [{"name": "plain", "thinking": 0}],
        "n": 1,
        "sampling": {"max_tokens": CONTEXT - 1},
    }
    one = {"checkpoint": str(checkpoint)}
    model = {"checkpoints": {"base": str(checkpoint)}} if stage == "eval" else one
    text = run(tmp_path, stage, shared | model, "--dry-run", code=1)
    assert f"does not fit the {CONTEXT:,} tokens that {server.url} allows {MODEL}" in text
