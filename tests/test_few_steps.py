"""Every shipped recipe at a few steps is still a recipe of its stage, in directories of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.chain import resolve_chain
from posttrain.config.load import load_recipe, validate
from posttrain.config.stages import StagesConfig, StageStep
from posttrain.few_steps import STEPS, TOKENS, few_steps, write_few_steps
from tests.test_recipes import RECIPES, ROOT, schema_of


def numbers(value: Any, key: str) -> list[Any]:
    """Every value of a key, anywhere in a tree."""
    if isinstance(value, list):
        return [number for inner in value for number in numbers(inner, key)]
    if not isinstance(value, dict):
        return []
    below = [number for inner in value.values() for number in numbers(inner, key)]
    return [value[key], *below] if key in value else below


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_recipe_at_a_few_steps_fits_its_schema(path: Path, monkeypatch):
    monkeypatch.chdir(ROOT)
    schema = schema_of(path)
    if schema is StagesConfig:
        pytest.skip("a chain is no stage")
    whole = load_recipe(path, schema).model_dump(mode="json")
    few = few_steps(whole)
    again = validate(few, schema, where="few steps").model_dump(mode="json")
    assert all(tokens <= TOKENS for tokens in numbers(numbers(few, "sampling"), "max_tokens"))
    if "trainer" in whole:
        assert again["trainer"]["max_steps"] <= STEPS
    same = ("model", "tokenizer", "packing", "data", "sources", "mixture", "adapter", "checkpoints")
    assert [key for key in same if again.get(key) != whole.get(key)] == []


def test_outputs_and_what_reads_them_move_together(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(ROOT)
    recipes = ("sft", "eval_rlhf", "rlhf", "win_rate")
    steps = tuple(
        StageStep(stage=stage, recipe=f"tiny/{recipe}")
        for stage, recipe in zip(("sft", "eval", "rlhf", "win_rate"), recipes, strict=True)
    )
    stages = resolve_chain(StagesConfig(stages=steps), ROOT / "scripts")
    few = write_few_steps(stages, tmp_path)
    moved = resolve_chain(StagesConfig(stages=tuple(few)), ROOT / "scripts")
    recipe = {stage.step.title: stage.recipe for stage in moved}
    assert [stage.out for stage in moved] == [tmp_path / stage.step.title for stage in moved]
    assert recipe["sft"]["data"] == "runs/tiny/sft_data"  # which no stage here makes
    assert recipe["rlhf"]["model"]["path"] == f"{tmp_path}/sft"
    assert recipe["eval_rlhf"]["checkpoints"] == {
        "sft": f"{tmp_path}/sft",
        "rlhf": f"{tmp_path}/rlhf",
    }
    assert recipe["win_rate"]["after"] == f"{tmp_path}/eval_rlhf:rlhf"
    assert recipe["win_rate"]["prompts"] == 8
