"""`--help` lists every key of a recipe, and says of each what it is."""

from __future__ import annotations

import ast
import dataclasses
import importlib
from pathlib import Path

from pydantic import BaseModel, Field

from posttrain.config.base import Strict, source
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.describe import describe, description
from posttrain.config.sample import SampleConfig
from posttrain.config.sft import DEFAULTS, SftConfig

FOLDER = Path(__file__).parents[2] / "posttrain" / "config"


def schemas() -> list[type[BaseModel]]:
    modules = [importlib.import_module(f"posttrain.config.{p.stem}") for p in FOLDER.glob("*.py")]
    return [
        one
        for module in modules
        for one in vars(module).values()
        if isinstance(one, type)
        and issubclass(one, BaseModel)
        and one.__module__ == module.__name__
    ]


def test_every_key_has_a_description():
    keys = [(schema, *field) for schema in schemas() for field in schema.model_fields.items()]
    assert len(keys) > 300
    assert [(s.__name__, name) for s, name, f in keys if not description(s, name, f)] == []


class Block(Strict):
    """A block.

    share: of something,
        in two lines.
    """

    share: float = Field(default=0.1, ge=0, le=1, json_schema_extra=source("paper, 9.9"))


class Whole(Strict):
    """A recipe.

    count: how many.
    blocks: some.
    other: one more.
    """

    count: int = Field(default=2, ge=1)
    blocks: tuple[Block, ...] = ()
    other: Block = Block(share=0.5)


def test_type_bounds_default_and_source_of_a_number():
    lines = [line.strip() for line in describe(Whole).splitlines()]
    assert lines == [
        "count    whole number, at least 1 = 2 [ours]",
        "how many.",
        "blocks    list of block = []",
        "some.",
        "blocks.N.share    number in [0, 1] = 0.1 [paper, 9.9]",
        "of something, in two lines.",
        "other    block",
        "one more.",
        "other.share    number in [0, 1] = 0.5 [paper, 9.9]",
        "of something, in two lines.",
    ]


def test_keys_inside_lists_and_of_each_kind_of_a_block_are_listed():
    data, samples = describe(BuildSftConfig), describe(SampleConfig)
    assert "\n  sources.N.filters.repetition.min_words    " in data
    assert "\n  reasoning.budgets (kind: choices).choices    " in data
    assert "\n  backend (kind: vllm).tensor_parallel    " in samples


def test_fields_of_the_trainer_have_type_and_default():
    """As the installed trl's config has them, once it is loaded."""
    from trl import SFTConfig as Arguments

    defaults = {field.name: field.default for field in dataclasses.fields(Arguments)}
    lines = dict(
        line.strip().split("    ", 1)
        for line in describe(SftConfig).splitlines()
        if "    " in line.strip()
    )
    assert lines["trainer.learning_rate"] == f"float = {defaults['learning_rate']}"
    assert lines["trainer.max_steps"] == f"int = {defaults['max_steps']}"
    assert lines["trainer.bf16"] == "bool | None = by the machine"
    assert lines["trainer.save_total_limit"] == "int | None = 1"
    stated = 0
    for name in SftConfig.free_fields():
        _, _, text = lines[f"trainer.{name}"].partition(" = ")
        if name in DEFAULTS or text in ("", "by the machine"):
            continue
        if defaults[name] is dataclasses.MISSING:
            assert text == "[]"
            continue
        assert ast.literal_eval(text) == defaults[name], name
        stated += 1
    assert stated > 50
