"""The chain on a real model: its rows, the rule of its families, its recipes as one chain."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from posttrain.chain import resolve_chain
from posttrain.config.load import load_recipe
from posttrain.config.recipe_files import read_mapping
from posttrain.config.stages import StagesConfig
from posttrain.evaluation.run import Record
from posttrain.rollouts import Finish
from tests.evaluation.scripted import record
from tests.real_chain import effects
from tests.real_chain import rows as real_rows

ROOT = Path(__file__).resolve().parents[2]


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_rule_takes_the_first_two_families_inside_and_fills_up_with_the_nearest():
    choose = effects.chosen_families
    assert choose({"a": 0.9, "b": 0.1, "c": 0.8, "d": 0.5}) == ["b", "c"]
    assert choose({"a": 0.04, "b": 0.0, "c": 0.3, "d": 0.85}) == ["c", "d"]
    assert choose({"a": 0.03, "b": 0.0, "c": 0.04}) == ["c", "a"]


def test_pass_rates_are_over_scored_rollouts(tmp_path: Path):
    rows = [
        {"source": "a", "passes": 1, "scored": 4},
        {"source": "b", "passes": 0, "scored": 0},
        {"source": "a", "passes": 2, "scored": 2},
    ]
    path = tmp_path / "pass_rates.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert effects.pass_rates(path) == {"a": 0.5}


def test_a_row_of_the_leaderboard_as_task_and_conversation():
    row = {
        "question": [[{"role": "user", "content": "Area of 10 by 5?"}]],
        "function": [{
            "name": "area", "description": "Area.",
            "parameters": {"type": "dict", "properties": {"w": {"type": "float"}}, "required": []},
        }],
        "ground_truth": [{"area": {"w": [10, 10.0], "h": [5], "unit": ["", "m"]}}],
    }  # fmt: skip
    task = real_rows.call_task(row)
    assert task is not None
    assert task["tools"][0]["function"]["parameters"]["type"] == "object"
    assert task["tools"][0]["function"]["parameters"]["properties"]["w"]["type"] == "number"
    (call,) = task["gold"]["calls"]
    assert call["arguments"] == {"w": 10, "h": 5}
    assert call["optional"] == ["unit"]
    assert call["accepts"]["unit"] == ["m"]
    spoken = real_rows.call_conversation(task)["messages"][1]["tool_calls"][0]["function"]
    assert json.loads(spoken["arguments"]) == {"w": 10, "h": 5}
    nested = row | {"ground_truth": [{"area": {"w": [{"x": [1, 2]}]}}]}
    assert real_rows.call_task(nested) is None
    assert real_rows.call_task(row | {"ground_truth": None}) is None


def test_word_problems_are_on_one_side_and_declare_tools(tmp_path: Path):
    rows = [
        {"question": f"{n} and {n}?", "answer": f"{n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n}"}
        for n in range(40)
    ]
    source = tmp_path / "gsm8k.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    real_rows.write_maths(source, tmp_path, tools=[[{"type": "function"}]])
    sides = [
        {json.loads(line)["question"] for line in (tmp_path / name).read_text().splitlines()}
        for name in ("questions.jsonl", "heldout.jsonl")
    ]
    assert not sides[0] & sides[1]
    assert len(sides[0]) + len(sides[1]) == 40
    conversations = read(tmp_path / "chat" / "maths.jsonl")
    assert len(conversations) == len(sides[0])
    for row in conversations:
        assert row["tools"] == [{"type": "function"}]
        assert "<<" not in row["messages"][1]["content"]
        assert "\\boxed{" in row["messages"][1]["content"]


def test_solved_puzzles_are_neither_rlvr_s_nor_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def create_dataset(family: str, *, size: int, seed: int, **settings: int) -> list[Any]:
        item = {"answer": f"{family} {seed}", "metadata": {"source_dataset": family}}
        return [item | {"question": f"{family} {n}?"} for n in range(size)]

    package = SimpleNamespace(create_dataset=create_dataset)
    monkeypatch.setitem(sys.modules, "reasoning_gym", package)
    real_rows.write_puzzles(tmp_path)
    solved = read(tmp_path / "chat" / "puzzles.jsonl")
    assert solved[0]["messages"][1]["content"] == "\\boxed{needle_haystack 0}"
    sides = [{row["messages"][0]["content"] for row in solved}]
    for suffix in ("", "_heldout"):
        rows = [
            row
            for family in real_rows.FAMILIES
            for row in read(tmp_path / "puzzles" / f"{family}{suffix}.jsonl")
        ]
        sides.append({row["question"] for row in rows})
    assert all(sides)
    assert len(set.union(*sides)) == sum(map(len, sides))
    assert len(set.union(*sides)) == 2 * real_rows.PUZZLES * len(real_rows.FAMILIES)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(real_rows.ConfigError, match=r"there is no .*gsm8k_train\.jsonl"):
        list(real_rows.read_rows(tmp_path / "gsm8k_train.jsonl"))


def test_the_recipes_make_one_chain():
    config = load_recipe(ROOT / "recipes" / "real" / "chain.yaml", StagesConfig)
    stages = resolve_chain(config, ROOT / "scripts")
    outs = [stage.out.name for stage in stages]
    assert sorted(outs) == sorted(
        ["sft_data", "sft", "samples", "dpo_data", "dpo", "eval", "profile", "rlvr", "eval_rlvr"]
    )


def test_the_chain_that_is_run_has_the_chosen_families(tmp_path: Path):
    effects.write_chain(tmp_path / "chain.yaml", ["word_sorting", "letter_counting"])
    stages = resolve_chain(load_recipe(tmp_path / "chain.yaml", StagesConfig), ROOT / "scripts")
    (rlvr,) = [stage for stage in stages if stage.step.stage == "rlvr"]
    assert {name: domain["ratio"] for name, domain in rlvr.recipe["domains"].items()} == {
        "word_sorting": 0.5,
        "letter_counting": 0.5,
    }
    assert len(stages) == 9


def test_profile_and_evaluation_ask_every_family_in_the_rule_s_order():
    for recipe in ("profile", "eval_rlvr"):
        prompts = read_mapping(ROOT / "recipes" / "real" / f"{recipe}.yaml")["prompts"]
        assert [prompt["name"] for prompt in prompts] == list(real_rows.FAMILIES)


def test_a_line_has_the_change_and_what_was_cut_off_beside_it():
    def graded(number: int, value: float, *, finish: Finish) -> Record:
        scored = record(number, value)
        return replace(scored, completion=replace(scored.completion, finish=finish))

    before = [graded(n, 0.0, finish="length" if n < 5 else "stop") for n in range(20)]
    after = [graded(n, float(n < 10), finish="stop") for n in range(20)]
    right, finished = effects.changes(before, after, "sft → rlvr")
    assert right.startswith("| sft → rlvr | maths | right | 0.0 → 50.0 | +50.0 (")
    assert right.endswith("| 25.0 → 0.0 | 20 |")
    # of the fifteen that both finished, five became right
    assert "| right, where both finished | 0.0 → 33.3 |" in finished
    assert finished.endswith("| 0.0 → 0.0 | 15 |")
    calling = [record(n, None, called=True) for n in range(20)]
    silent = [record(n, None) for n in range(20)]
    (calls,) = effects.changes(calling, silent, "sft → dpo")
    assert calls.startswith("| sft → dpo | maths | undeclared calls | 100.0 → 0.0 | −100.0 (")
