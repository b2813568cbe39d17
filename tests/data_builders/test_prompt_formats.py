"""Rows of the tiny world and conversations of any dialect → prompts: what is cut, kept, refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from data_builders.registry import EnvironmentGrader, Environments, toolkit_of
from data_builders.tiny_world.items import Place, heldout_row, make_item, training_row
from posttrain.records import Message, ToolCall
from posttrain.rollouts import Prompt, metadata_of
from reward.environments import ENVIRONMENTS
from reward.graders.base import Attempt
from tests.data_builders.small_prompts import GRADERS, TOOL, TOOLKITS, Numbers, build
from tests.reward.graders.attempts import completion_of

# -- the tiny world


def world_row(family: str, index: int, *, heldout: bool = False) -> dict[str, Any]:
    """A row of the tiny world."""
    item = make_item(Place(5, "heldout" if heldout else "train", family, index))
    return heldout_row(item) if heldout else training_row(item)


BOTH = ({"name": "none", "thinking": 0.0}, {"name": "given", "tools": "given"})


class Anything(Numbers):
    """Accepts every gold."""

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        return [None] * len(prompts)


@pytest.fixture
def _accepting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GRADERS, "tiny_world", Anything())


@pytest.mark.usefixtures("_accepting")
@pytest.mark.parametrize("heldout", [True, False])
def test_tiny_world_rows_lose_their_reference(tmp_path: Path, heldout: bool):
    rows = [world_row("maths", n, heldout=heldout) for n in range(60)]
    made = build(tmp_path, rows, BOTH, format="tiny_world")
    bare = [p for p in made.prompts if p.setting == "none"]
    given = [p for p in made.prompts if p.setting == "given"]
    assert len(bare) == made.counts().kept > len(given) > 10
    assert all(p.messages[-1].role == "user" for p in made.prompts)
    assert any(len(p.messages) > 1 for p in bare), "no row of several turns"
    assert not any(m.reasoning for p in bare for m in p.messages)
    for prompt in bare:
        assert (prompt.tools, prompt.environment) == (None, None)
        assert metadata_of(prompt)["tools_declared"] == []
    for prompt in given:
        names = [tool["function"]["name"] for tool in json.loads(prompt.tools or "")]
        assert prompt.environment == "tiny_world"
        assert metadata_of(prompt)["tools_declared"] == names != []


@pytest.mark.usefixtures("_accepting")
def test_what_only_tools_know_is_not_asked_without(tmp_path: Path):
    rows = [world_row("lookups", n) for n in range(40)]
    made = build(tmp_path, rows, BOTH, format="tiny_world")
    with_tools = sum(bool(row["tools"]) for row in rows)
    assert made.skipped["none"]["needs_tools"] == with_tools > 0
    assert {p.gold for p in made.prompts if p.setting == "none"} == {"unknown"}


@pytest.mark.usefixtures("_accepting")
def test_rows_whose_user_answers_back_are_dropped(tmp_path: Path):
    rows = [world_row("clarify", n) for n in range(20)]
    asking = sum(row["metadata"]["grading"] == "question" for row in rows)
    made = build(tmp_path, rows, BOTH[1:], format="tiny_world")
    assert made.row_counts["s"].dropped["needs_replies"] == asking > 0


# -- conversations


def chat_row() -> dict[str, Any]:
    """Two questions, the second answered through a call."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    return {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello", "reasoning_content": "Greet."},
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
            {"role": "assistant", "content": "2"},
        ],
        "tools": [TOOL],
        "gold": 2,
    }


def test_a_conversation_is_asked_at_its_last_user_turn(tmp_path: Path):
    settings = ({"name": "none"}, {"name": "given", "tools": "given", "thinking": 0.0})
    made = build(tmp_path, [chat_row()], settings, format="chat", gold="gold", grader="numbers")
    bare, given = made.prompts
    assert bare.messages == (
        Message("user", "Hi"),
        Message("assistant", "Hello", reasoning="Greet."),
        Message("user", "1+1?"),
    )
    assert [m.reasoning for m in given.messages] == [None] * 3
    assert (bare.tools, bare.gold, given.environment) == (None, "2", None)
    assert "add" in (given.tools or "")


def test_a_question_without_words_is_not_asked(tmp_path: Path):
    answer = {"role": "assistant", "content": "a"}
    rows = [
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        {"messages": [{"role": "user", "content": []}]},
        {"messages": [{"role": "user", "content": ""}, answer, {"role": "user", "content": "b"}]},
        {"prompt": " ", "completion": "a"},
        {"instruction": "", "input": None, "output": "a"},
        {"messages": [{"role": "user", "content": [{"type": "text", "value": "c"}]}]},
    ]
    made = build(tmp_path, rows, format="chat")
    assert [p.messages[-1].content for p in made.prompts] == ["c"]
    assert made.row_counts["s"].dropped == {"malformed_message": 1, "empty_user_turn": 4}


def test_calls_in_the_history_need_declared_tools(tmp_path: Path):
    row = chat_row()
    row["messages"] += [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    settings = ({"name": "none"}, {"name": "given", "tools": "given"})
    made = build(
        tmp_path, [row, {"messages": [{"role": "user", "content": "u"}]}], settings, format="chat"
    )
    assert made.skipped["none"] == {"calls_in_history": 1}
    (given,) = [p for p in made.prompts if p.setting == "given"]
    assert given.messages[3].tool_calls == (ToolCall("add", "{}", "c1"),)


# -- rows of an RLVR environment


def test_rows_of_an_environment_bring_their_verifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its gold is replayed; rows of another environment, or that it cannot use, are dropped."""
    box = "Put it in \\boxed{}."
    rows = [
        *[{"environment": "math", "question": f"{n}+1? {box}", "gold": str(n + 1)} for n in (1, 2)],
        {"environment": "tool_call", "question": "x?"},
        {"environment": "math", "question": f"No gold. {box}"},
        {"environment": "math", "question": "3 + 1? No box is asked for.", "gold": "4"},
        {"question": f"Unreadable gold. {box}", "gold": "\\frac{1}{"},
        {"agent_ref": {"name": "math_with_judge_agent"}, "expected_answer": "7",
         "responses_create_params": {"input": [{"role": "user", "content": f"6+1? {box}"}]}},
        {"agent_ref": {"name": "gpqa_diamond"}, "responses_create_params": {"input": []}},
    ]  # fmt: skip
    monkeypatch.setitem(GRADERS, "environment", EnvironmentGrader())
    monkeypatch.setitem(TOOLKITS, "math", toolkit_of("math"))
    made = build(
        tmp_path, rows, [{"name": "rlvr", "thinking": "both"}],
        format="environment", environment="math",
    )  # fmt: skip
    assert {(p.grader, p.environment) for p in made.prompts} == {("environment", "math")}
    assert sorted(str(p.gold) for p in made.prompts[::2]) == ["2", "3", "7"]
    counts = made.row_counts["s"]
    assert (counts.rows_in, counts.kept) == (8, 3)
    assert counts.dropped["other_environment"] == counts.dropped["evaluation_only"] == 1
    assert counts.dropped["malformed_row"] == 2
    verifier = Environments().verifier(made.prompts[0])
    assert isinstance(verifier, ENVIRONMENTS["math"])


def test_each_attempt_is_graded_by_the_environment_of_its_prompt():
    choice = {"question": "Which? \\boxed{}", "gold": "B", "metadata": {"options": ["3", "4"]}}
    prompts = [
        ENVIRONMENTS["math"]().prompt({"question": "2+2? \\boxed{}", "gold": "4"}),
        ENVIRONMENTS["multiple_choice"]().prompt(choice),
    ]
    texts = ("\\boxed{4}", "\\boxed{B}", "4", "\\boxed{A}")
    attempts = [Attempt(p, completion_of(t)) for p, t in zip(prompts * 2, texts, strict=True)]
    assert [score.value for score in EnvironmentGrader().grade(attempts)] == [1.0, 1.0, 0.0, 0.0]
