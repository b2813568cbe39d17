"""Prompts built from rows written on the spot, with a grader and a toolkit of a few lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from data_builders.prompts.build import PromptPlan, PromptSet
from posttrain.config.base import Strict
from posttrain.config.load import validate
from posttrain.config.prompts import AnySource, Setting
from posttrain.environments.base import Environment
from posttrain.records import Score
from posttrain.rollouts import Prompt
from reward.graders.base import Attempt

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


class Recipe(Strict):
    """The two blocks alone."""

    prompts: tuple[AnySource, ...]
    settings: tuple[Setting, ...]


class Numbers:
    """Accepts gold answers that are whole numbers."""

    def refuse(self, prompts: Sequence[Prompt]) -> list[str | None]:
        return [None if (p.gold or "").isdigit() else "not a number: x" for p in prompts]

    def grade(self, attempts: Sequence[Attempt]) -> list[Score]:
        raise AssertionError("nothing is graded here")


class Adding:
    """A toolkit with one tool."""

    def schemas(self, prompt: Prompt) -> str:
        return json.dumps([TOOL])

    def open(self, prompt: Prompt) -> Environment:
        raise AssertionError("nothing is run here")


GRADERS = {"tiny_world": Numbers(), "numbers": Numbers()}
TOOLKITS = {"adding": Adding(), "tiny_world": Adding()}


def build(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    settings: Sequence[Mapping[str, Any]] = ({"name": "no_tools"},),
    *,
    seed: int = 0,
    **source: Any,
) -> PromptSet:
    """Prompts of one source."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    raw = {"prompts": [{"name": "s", "path": str(path), **source}], "settings": list(settings)}
    return build_recipe(raw, seed=seed)[1]


def build_recipe(raw: Any, *, seed: int = 0) -> tuple[Recipe, PromptSet]:
    """The prompts of two blocks as they stand in a recipe."""
    recipe = validate(raw, Recipe, where="recipe")
    known = {"all_graders": lambda: GRADERS, "toolkits_for": lambda *_: TOOLKITS}
    with patch.multiple("data_builders.prompts.build", **known):
        plan = PromptPlan(recipe.prompts, recipe.settings, seed=seed, out=Path("out"))
    return recipe, plan.build()


def questions(count: int) -> list[dict[str, Any]]:
    """Rows in the manner of GSM8K."""
    return [
        {"question": f"What is {n} + {n}?", "answer": f"{n} + {n} = {2 * n}.\n#### {2 * n}", "n": n}
        for n in range(count)
    ]


GSM: dict[str, Any] = {"format": "question", "gold_pattern": "#### (.+)", "grader": "numbers"}
