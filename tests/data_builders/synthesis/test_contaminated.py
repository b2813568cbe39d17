"""A seed that is a benchmark question is dropped before any model is asked, in every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_builders.synthesis.build import read_seeds
from data_builders.synthesis.kinds import open_kind
from tests.data_builders.synthesis.small_synthesis import recipe_of, server, write_rows
from tests.sampling.scripted import tool

ITEM = (
    "A farmer sells nine baskets of plums at the harbour market each morning before the ferry "
    "leaves for the island. How many baskets does the farmer sell in a week?"
)
CLEAN = "Tell me why the old bridge in this town has only one arch."


def chat(text: str) -> dict[str, Any]:
    """A chat whose second question is the text."""
    texts = ["Hello, who are you?", "I am an assistant.", text, "Sixty-three, I think."]
    roles = ["user", "assistant"] * 2
    return {"messages": [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]}


PLACE = {"name": "rows", "path": "rows.jsonl"}
PROMPTS = [{**PLACE, "format": "environment", "environment": "long_context"}]
CHATS = [{**PLACE, "license": "MIT"}]
KINDS: dict[str, tuple[dict[str, Any], list[str], Any]] = {
    "rejection": (
        {"prompts": PROMPTS, "settings": [{"name": "plain"}]},
        ["generator"],
        lambda text: {"question": f"{text} End with one line, Answer: and it alone.", "gold": "63"},
    ),
    "continue_chat": ({"sources": CHATS}, ["user", "generator"], chat),
    "translate": (
        {"sources": CHATS, "language": "de", "language_name": "German"},
        ["translator"],
        chat,
    ),
    "instructions": (
        {"personas": [PLACE]},
        ["user", "generator"],
        lambda text: {"persona": text},
    ),
    "twin": (
        {"sources": [PLACE]},
        ["rewriter", "solver"],
        lambda text: {"question": text, "answer": "#### 63"},
    ),
    "open_question": (
        {"sources": [{**PLACE, "options": ["options"]}]},
        ["rewriter", "solver"],
        lambda text: {"question": text, "options": ["63", "9"], "answer": 0},
    ),
    "safety": (
        {"requests": [PLACE]},
        ["generator", "judge"],
        lambda text: {"prompt": text, "harmful": False},
    ),
    "tool_conversation": (
        {"scenarios": [PLACE]},
        ["user", "agent", "tools"],
        lambda text: {"scenario": text, "tools": tool("count", of="string")},
    ),
}


@pytest.mark.parametrize("name", [*KINDS])
def test_a_benchmark_question_is_no_seed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    make, roles, row_of = KINDS[name]
    write_rows(tmp_path / "rows.jsonl", [row_of(ITEM), row_of(CLEAN)])
    write_rows(tmp_path / "benchmark.jsonl", [{"question": ITEM}])
    recipe = recipe_of(
        tmp_path / "out",
        {"kind": name, **make},
        {role: server(role) for role in roles},
        decontamination={"files": [{"path": "benchmark.jsonl"}]},
    )
    seeds = read_seeds(recipe, open_kind(recipe), work=tmp_path)
    assert seeds.dropped == {"contaminated": 1}
    [seed] = seeds.seeds
    assert CLEAN in seed.example.messages[-1].content or name in ("continue_chat", "translate")
