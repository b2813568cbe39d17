"""Rows → prompts: what is asked, cut and refused, in which settings, and where every row went."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from data_builders.dialects.reading import RowProblem
from data_builders.prompts.build import PromptPlan, PromptSet, prompt_inputs, toolkits_for
from data_builders.prompts.questions import read_tiny_world
from data_builders.registry import EnvironmentGrader, Environments, toolkit_of
from data_builders.tiny_world.items import Place, heldout_row, make_item, training_row
from posttrain.config.load import validate
from posttrain.config.prompts import EnvironmentPrompts, TinyWorldPrompts
from posttrain.errors import ConfigError, DataError
from posttrain.records import Message, ToolCall
from posttrain.rollouts import Prompt, metadata_of, prompt_from_row, prompt_to_row
from reward.environments import ENVIRONMENTS
from tests.data_builders.small_prompts import (
    GRADERS,
    GSM,
    TOOL,
    TOOLKITS,
    Numbers,
    Recipe,
    build,
    build_recipe,
    questions,
)


def test_a_question_and_its_gold(tmp_path: Path):
    (prompt,) = build(tmp_path, questions(1), **GSM, metadata=["n"]).prompts
    assert prompt.messages[0].role == "user"
    assert prompt.messages[0].content.startswith("What is 0 + 0?\n\nGive the final answer")
    assert "\\boxed{}" in prompt.messages[0].content
    assert (prompt.gold, prompt.grader, prompt.source) == ("0", "numbers", "s")
    assert (prompt.tools, prompt.environment, prompt.thinking) == (None, None, True)
    assert metadata_of(prompt) == {"n": 0}
    assert prompt.id == f"{prompt.task}/no_tools/on"
    assert prompt_from_row(prompt_to_row(prompt)) == prompt


def test_the_last_match_counts_and_none_is_a_reason(tmp_path: Path):
    rows = [
        {"question": "a", "answer": "#### 1\n#### 2"},
        {"question": "b", "answer": "three"},
        {"question": "c"},
        {"question": " ", "answer": "#### 2"},
        {"question": ["d"], "answer": "#### 2"},
    ]
    made = build(tmp_path, rows, **GSM)
    assert [p.gold for p in made.prompts] == ["2"]
    assert made.row_counts["s"].dropped == {
        "gold_unreadable": 1, "missing_field": 1, "empty_field": 1, "malformed_field": 1
    }  # fmt: skip
    shown = made.row_counts["s"].examples["missing_field"]
    assert shown.endswith("no such field, but question; name it by gold: of the source")


def test_a_template_fills_its_placeholders_once(tmp_path: Path):
    rows = [{"question": "Is {A} a {question}?", "A": "yes", "B": "no {B}", "answer": "B"}]
    how = {"format": "question", "options": ["A", "B"], "grader": None, "system": "Be brief."}
    made = build(tmp_path, rows, template="{question} {A}/{B} {C} \\boxed{} {x}", **how)
    texts = [message.content for message in made.prompts[0].messages]
    assert texts == ["Be brief.", "Is {A} a {question}? yes/no {B} {C} \\boxed{} {x}"]


@pytest.mark.parametrize(
    ("row", "options", "gold"),
    [
        ({"A": "x", "B": "y", "answer": "B"}, ["A", "B"], "B"),
        ({"choices": ["x", "y", "z"], "answer": 2}, ["choices"], "C"),
        ({"choices": ["x", "y", "z"], "answer": "y"}, ["choices"], "B"),
        ({"right": "x", "wrong 1": "y", "answer": "x"}, ["wrong 1", "right"], "B"),
    ],
)
def test_options_in_every_form(tmp_path: Path, row: dict[str, Any], options: list[str], gold: str):
    asked = {"question": "Which?", **row}
    (prompt,) = build(tmp_path, [asked], format="question", options=options, grader=None).prompts
    assert prompt.gold == gold
    shown = metadata_of(prompt)["options"]
    assert all(f"{letter}) {text}" in prompt.messages[0].content for letter, text in shown.items())


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"choices": ["1", "2", "3"], "answer": 2}, "gold_ambiguous"),
        ({"choices": ["B", "A"], "answer": "A"}, "gold_ambiguous"),
        ({"choices": ["x", "y"], "answer": 2}, "gold_unreadable"),
        ({"choices": ["x", "x"], "answer": 1}, "equal_options"),
        ({"choices": "x, y", "answer": 1}, "malformed_field"),
    ],
)
def test_options_that_cannot_be_asked(tmp_path: Path, row: dict[str, Any], reason: str):
    rows = [{"question": "Which?", **row}, {"question": "?", "choices": ["p", "q"], "answer": 0}]
    made = build(tmp_path, rows, format="question", options=["choices"], grader=None)
    assert made.row_counts["s"].dropped == {reason: 1}


def test_shuffled_options_follow_the_question_and_not_the_row(tmp_path: Path):
    texts = ["north", "south", "east", "west"]
    rows = [{"question": f"Where {n}?", "options": texts, "answer": "north"} for n in range(40)]
    turned = [{**row, "options": texts[::-1]} for row in rows]
    how = {"format": "question", "options": ["options"], "shuffle": True, "grader": None}
    made, again = build(tmp_path, rows, **how), build(tmp_path, turned, **how)
    assert [prompt_to_row(p) for p in made.prompts] == [prompt_to_row(p) for p in again.prompts]
    assert {p.gold for p in made.prompts} == {"A", "B", "C", "D"}
    for prompt in made.prompts:
        assert metadata_of(prompt)["options"][prompt.gold or ""] == "north"


def test_rows_are_chosen_by_content_and_seed(tmp_path: Path):
    rows = questions(60)
    made = build(tmp_path, rows, **GSM, count=20)
    again = build(tmp_path, rows[::-1], **GSM, count=20)
    other = build(tmp_path, rows, **GSM, count=20, seed=1)
    more = build(tmp_path, rows, **GSM, count=30)
    assert [p.id for p in made.prompts] == [p.id for p in again.prompts]
    assert {p.id for p in made.prompts} < {p.id for p in more.prompts}
    assert {p.id for p in made.prompts} != {p.id for p in other.prompts}
    counts = made.counts()
    assert (counts.rows_in, counts.kept, counts.dropped) == (60, 20, {"not_chosen": 40})


def test_every_row_is_accounted_for(tmp_path: Path):
    rows = [*questions(10), *questions(3), {"question": "x", "answer": "#### y", "n": 1}]
    made = build(tmp_path, rows, **GSM, where={"n": {"lt": 8}})
    counts = made.counts()
    assert (counts.rows_in, counts.kept) == (14, 8)
    assert counts.dropped == {"where": 2, "duplicate": 3, "gold_refused: not a number": 1}
    assert made.row_counts["s"].examples["gold_refused: not a number"].endswith("not a number: x")


def test_refused_gold_makes_room_for_the_next_and_too_few_rows_are_an_error(tmp_path: Path):
    rows = [{"question": f"q{n}", "answer": str(n) if n % 2 else f"x{n}"} for n in range(40)]
    made = build(tmp_path, rows, format="question", grader="numbers", count=15)
    assert len(made.prompts) == made.counts().kept == 15
    assert all((p.gold or "").isdigit() for p in made.prompts)
    with pytest.raises(DataError, match=r"5 of 8 rows .* 6.*\(where 3"):
        build(tmp_path, questions(8), **GSM, where={"n": {"lt": 5}}, count=6)


def test_settings_and_modes(tmp_path: Path):
    made = build(
        tmp_path,
        questions(200),
        [
            {"name": "plain", "thinking": 0.3},
            {"name": "tools", "tools": "adding", "thinking": "both", "reasoning_budget": 64},
            {"name": "few", "thinking": 0.0, "where": {"n": {"lt": 4}}},
        ],
        **GSM,
    )
    by = {name: [p for p in made.prompts if p.setting == name] for name in made.skipped}
    assert [len(by[name]) for name in ("plain", "tools", "few")] == [200, 400, 4]
    assert 0.2 < sum(p.thinking for p in by["plain"]) / 200 < 0.4
    assert {(p.thinking, p.reasoning_budget) for p in by["tools"]} == {(True, 64), (False, None)}
    assert all(p.environment == "adding" and "add" in (p.tools or "") for p in by["tools"])
    assert made.skipped["few"] == {"where": 196}
    assert len({p.id for p in made.prompts}) == len(made.prompts) == 604
    assert len({p.task for p in made.prompts}) == 200


def test_a_setting_may_name_its_sources_and_inputs_are_hashed(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in questions(4)))
    both = [
        {"name": name, "path": str(path), "where": where, **GSM}
        for name, where in (("low", {"n": {"lt": 2}}), ("high", {"n": {"ge": 2}}))
    ]
    settings = [{"name": "one", "sources": ["high"]}, {"name": "all"}]
    recipe, made = build_recipe({"prompts": both, "settings": settings})
    asked = [("one", "high"), ("all", "low"), ("all", "high")]
    assert [(p.setting, p.source) for p in made.prompts] == [one for one in asked for _ in "12"]
    inputs, parents = prompt_inputs(recipe.prompts, Path("."), out=tmp_path / "out")
    assert [i.source for i in inputs] == ["low", "high"]
    assert {(len(i.sha256 or ""), i.bytes) for i in inputs} == {(64, path.stat().st_size)}
    assert parents == []


@pytest.mark.parametrize(
    ("settings", "source", "message"),
    [
        ([{"name": "a", "tools": "given"}], {}, r"asks nothing: no_tools_given 3"),
        ([{"name": "a"}], {"where": {"nn": 1}}, r"none of 3 rows has \(did you mean 'n'\?\)"),
        ([{"name": "a"}], {"gold_pattern": "####"}, r"no group"),
        ([{"name": "a"}], {"gold_pattern": "(zzz)"}, r"nothing: gold_unreadable 3, such as .*:1"),
        ([{"name": "a"}], {"gold_pattern": "("}, r"gold_pattern"),
        ([{"name": "a"}], {"template": "{questoin}"}, r"no \{question\}"),
        ([{"name": "a", "thinking": 0.0, "reasoning_budget": 5}], {}, r"reasoning is off"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, settings: Any, source: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        build(tmp_path, questions(3), settings, **{**GSM, **source})


def test_a_row_of_the_tiny_world_may_lack_tools_and_names_what_it_may_not():
    source = TinyWorldPrompts(format="tiny_world", name="own", path="rows.jsonl")
    item = {"gold": "yes", "grading": "words", "turns": 1, "tools_declared": []}
    item |= {"initial_state": None, "fault": None}
    messages = [{"role": "user", "content": "May I?"}]
    assert read_tiny_world({"messages": messages, "metadata": item}, source).tools is None
    del item["fault"]
    with pytest.raises(RowProblem, match=r"a row of the tiny world has .*fault"):
        read_tiny_world({"messages": messages, "metadata": item}, source)


def test_a_setting_whose_own_source_gives_nothing_says_why(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in questions(3)))
    good = {"name": "good", "path": str(path), **GSM}
    bad = {"name": "bad", "path": str(path), **GSM, "gold_pattern": "(zzz)"}
    settings = [{"name": "one", "sources": ["good"]}, {"name": "other", "sources": ["bad"]}]
    with pytest.raises(ConfigError, match=r"'other' asks nothing: gold_unreadable 3, such as"):
        build_recipe({"prompts": [good, bad], "settings": settings})


@pytest.mark.parametrize(
    ("setting", "source", "message"),
    [({"tools": "calculater"}, {}, "setting 'a'.*'calculator'"),
     ({}, {"grader": "exct"}, "source 's'.*'exact'"),
     ({}, {"environment": "pithon"}, "source 's'.*'python'"),
     ({}, {"format": "environment", "environment": "meth"}, "source 's'.*'math'")],
)  # fmt: skip
def test_names_that_nothing_has(tmp_path: Path, setting: Any, source: Any, message: str):
    row = {"name": "s", "path": "x.jsonl", "format": "chat", **source}
    raw = {"prompts": [{"gold": "g", **row} if "grader" in source else row]}
    recipe = validate(raw | {"settings": [{"name": "a", **setting}]}, Recipe, where="recipe")
    with pytest.raises(ConfigError, match=message):
        PromptPlan(recipe.prompts, recipe.settings, seed=0, out=tmp_path)


def test_real_questions(shared: Path):
    data = shared / "data"
    raw = {
        "prompts": [
            {"name": "gsm8k", "path": str(data / "gsm8k_train.jsonl"), "count": 1000}
            | {**GSM, "grader": None},
            {"name": "mmlu", "path": str(data / "mmlu_dev_val.jsonl"), "format": "question"}
            | {"options": ["A", "B", "C", "D"], "grader": None, "metadata": ["subject"]},
            {"name": "airline", "path": str(data / "tau_bench_airline.jsonl"), "format": "chat"},
        ],
        "settings": [
            {"name": "no_tools", "sources": ["gsm8k", "mmlu"]},
            {"name": "given", "tools": "given", "sources": ["airline"]},
        ],
    }
    _, made = build_recipe(raw)
    assert made.row_counts["gsm8k"].dropped == {"not_chosen": 6473}
    assert made.row_counts["mmlu"].rows_in == 1065
    assert made.row_counts["mmlu"].kept > 1050, made.row_counts["mmlu"].dropped
    assert {p.gold for p in made.prompts if p.source == "mmlu"} == {"A", "B", "C", "D"}
    airline = [p for p in made.prompts if p.source == "airline"]
    assert all(p.messages[0].role == "system" and p.tools for p in airline)


def world_row(family: str, index: int, *, heldout: bool = False) -> dict[str, Any]:
    """A row of the tiny world."""
    item = make_item(Place(5, "heldout" if heldout else "train", family, index))
    return heldout_row(item) if heldout else training_row(item)


BOTH = ({"name": "none", "thinking": 0.0}, {"name": "given", "tools": "given"})


class Anything(Numbers):
    """Accepts every gold."""

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        return [None] * len(prompts)


def build_world(folder: Path, rows: list[dict[str, Any]], settings: Any = BOTH) -> PromptSet:
    """Prompts of rows of the tiny world, every gold accepted."""
    with patch.dict(GRADERS, tiny_world=Anything()):
        return build(folder, rows, settings, format="tiny_world")


@pytest.mark.parametrize("heldout", [True, False])
def test_tiny_world_rows_lose_their_reference(tmp_path: Path, heldout: bool):
    rows = [world_row("maths", n, heldout=heldout) for n in range(60)]
    made = build_world(tmp_path, rows)
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


def test_what_only_tools_know_is_not_asked_without(tmp_path: Path):
    rows = [world_row("lookups", n) for n in range(40)]
    made = build_world(tmp_path, rows)
    with_tools = sum(bool(row["tools"]) for row in rows)
    assert made.skipped["none"]["needs_tools"] == with_tools > 0
    assert {p.gold for p in made.prompts if p.setting == "none"} == {"unknown"}


def test_rows_whose_user_answers_back_are_dropped(tmp_path: Path):
    rows = [world_row("clarify", n) for n in range(20)]
    asking = sum(row["metadata"]["grading"] == "question" for row in rows)
    made = build_world(tmp_path, rows, BOTH[1:])
    assert made.row_counts["s"].dropped["needs_replies"] == asking > 0


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
        {"expected_answer": "8", "responses_create_params": {"input": f"6+2? {box}"}},
        {"agent_ref": {"name": "gpqa_diamond"}, "responses_create_params": {"input": []}},
    ]  # fmt: skip
    monkeypatch.setitem(GRADERS, "environment", EnvironmentGrader())
    monkeypatch.setitem(TOOLKITS, "math", toolkit_of("math"))
    made = build(
        tmp_path, rows, [{"name": "rlvr", "thinking": "both"}],
        format="environment", environment="math",
    )  # fmt: skip
    assert {(p.grader, p.environment) for p in made.prompts} == {("environment", "math")}
    assert sorted(str(p.gold) for p in made.prompts[::2]) == ["2", "3", "7", "8"]
    counts = made.row_counts["s"]
    assert (counts.rows_in, counts.kept) == (9, 4)
    assert counts.dropped["other_environment"] == counts.dropped["evaluation_only"] == 1
    assert counts.dropped["malformed_row"] == 2
    verifier = Environments().verifier(made.prompts[0])
    assert isinstance(verifier, ENVIRONMENTS["math"])
    for server, why in (("mcqa", "rows of mcqa are read by multiple_choice"), ("maths", "math")):
        source = EnvironmentPrompts(
            name="s", path="x", format="environment", environment="math", server=server
        )
        with pytest.raises(ConfigError, match=f"source 's': .*{why}"):
            toolkits_for([source], [])
