"""Recipes: strict, and helpful about mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field

from posttrain.config.base import Strict
from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.eval import EvalConfig
from posttrain.config.load import load_recipe
from posttrain.config.rlhf import RlhfConfig
from posttrain.config.sample import ProfileConfig, SampleConfig
from posttrain.config.sft import SftConfig
from posttrain.errors import ConfigError

PROFILE = Path(__file__).parents[2] / "recipes" / "tiny" / "profile.yaml"


class Source(Strict):
    name: str
    share: float | None = None


class Recipe(Strict):
    learning_rate: float
    steps: int = 10
    sources: tuple[Source, ...] = Field(default=(), min_length=1)
    out: Path | None = None
    either: dict[str, int | Source] = Field(default_factory=dict[str, int | Source])


def write(tmp_path: Path, text: str, name: str = "r.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def load(tmp_path: Path, text: str, *overrides: str) -> Recipe:
    return load_recipe(write(tmp_path, text), Recipe, overrides)


def test_scientific_notation_is_a_number_and_lists_fill_tuples(tmp_path):
    recipe = load(tmp_path, "learning_rate: 5e-5\nsources: [{name: a}]\nout: x/y\n")
    assert recipe.learning_rate == 5e-5
    assert recipe.sources == (Source(name="a"),)
    assert recipe.out == Path("x/y")


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("learning_rat: 1.0\nlearning_rate: 1.0", (), "unknown key 'learning_rat' .did you mean 'learning_rate'"),
        ("learning_rate: 1.0\nsources: [{name: a, shar: 1.0}]", (), "'sources.0.shar' .did you mean 'share'..$"),
        ("learning_rate: '1.0'", (), "'learning_rate': Input should be a valid number, found '1.0'"),
        ("learning_rate: 1.0\nlearning_rate: 2.0", (), "line 2: duplicate key 'learning_rate'"),
        ("a:\n\tb: 1", (), r"line 2, column 1: [^\n]*$"),
        ("{sources: [], mixture: {}, packing: {}}", (), "r.yaml: mixture, packing are no keys"),
        ("steps: 3", (), "'learning_rate' is required"),
        ("learning_rate: .nan", (), "finite number"),
        ("learning_rate: 1.0", ("steps=3", "steps=4"), "given twice"),
        ("learning_rate: 1.0", ("steps",), "not of the form"),
        ("learning_rate: 1.0", ("sources.0.name=b",), "nothing|position|valid"),
        ("- a", (), "a recipe is a mapping"),
        ("a: [", (), "not readable as YAML"),
        ("1: 2", (), "must be text"),
        ("a: !!int x", (), "not readable as YAML"),
        ("a: !!set {b}", (), "not readable as YAML"),
        ("a: " + "[" * 5000, (), "not readable as YAML"),
        ("learning_rate: 1.0", ("steps=&a [*a]",), "cannot read the value"),
        ("learning_rate: 1.0", ("steps=" + "[" * 5000,), "cannot read the value"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, text, overrides, message):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text, *overrides)


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("prompts.0.enviroment=x", "environment"),
        ("prompts=[{name: a, format: question, path: x, grader: math, tempate: x}]", "template"),
        ("backend.batchsize=3", "batch_size"),
    ],
)
def test_a_key_of_the_kind_that_a_union_is_of_is_found(override: str, nearest: str):
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        load_recipe(PROFILE, ProfileConfig, [override])


@pytest.mark.parametrize(
    ("schema", "old", "new"),
    [
        (BuildSftConfig, "packing.capacity", "max_length"),
        (BuildSftConfig, "spool", "parts_dir"),
        (SftConfig, "isolation", "document_masking"),
        (SampleConfig, "parameters.temperature", "sampling"),
        (SampleConfig, "limits.max_turns", "sampling"),
        (EvalConfig, "samples", "n"),
        (BuildDpoConfig, "given", "offline"),
        (BuildDpoConfig, "categories.given", "offline"),
        (RlhfConfig, "loss.updates", "num_iterations"),
        (RlhfConfig, "judge.parameters.temperature", "sampling"),
    ],
)
def test_an_old_key_names_the_new_one(tmp_path, schema, old, new):
    path = write(tmp_path, "{}")
    unknown = rf"unknown key '[\w.]+' \(renamed: '{new}'\)"
    with pytest.raises(ConfigError, match=unknown):
        load_recipe(path, schema, [f"{old}=1"])


def test_null_takes_a_key_back_where_its_field_takes_none(tmp_path):
    text = "learning_rate: 1.0\nsteps: 3\nsources: [{name: a, share: 0.5}]"
    recipe = load(tmp_path, text, "steps=null", "sources.0.share=null", "sources.0.name=b")
    assert (recipe.steps, recipe.sources) == (10, (Source(name="b"),))
    assert load(tmp_path, f"{text}\neither: {{a: 1, b: 2}}", "either.a=null").either == {"b": 2}
    with pytest.raises(ConfigError, match="'learning_rate' is required"):
        load(tmp_path, text, "learning_rate=null")
    with pytest.raises(ConfigError, match="found None"):  # forgotten in a file, not cleared
        load(tmp_path, "learning_rate: 1.0\nsteps:\n")


def test_words_and_nulls_of_the_trainer():
    recipe = load_recipe(
        "tiny/sft",
        SftConfig,
        ["trainer.eval_strategy=no", "trainer.save_strategy=off", "trainer.save_total_limit=null",
         "trainer.num_train_epochs=null", "trainer.bf16=no"],
    )  # fmt: skip
    chosen = {name: recipe.trainer.get(name, "absent") for name in
              ("eval_strategy", "save_strategy", "save_total_limit", "num_train_epochs", "bf16")}  # fmt: skip
    assert list(chosen.values()) == ["no", "no", None, "absent", False]


def test_a_missing_recipe_lists_its_neighbours(tmp_path):
    write(tmp_path, "", "sft.yaml")
    with pytest.raises(ConfigError, match=r"holds sft\.yaml"):
        load_recipe(tmp_path / "stf.yaml", Recipe)


def test_extends_one_level_and_overrides_win(tmp_path):
    write(tmp_path, "learning_rate: 1.0\nsources: [{name: a}, {name: b}]\n", "base.yaml")
    top = write(tmp_path, "extends: base.yaml\nsteps: 5\n", "top.yaml")
    recipe = load_recipe(top, Recipe, ["sources.1.share=0.5", "learning_rate=2.0"])
    assert (recipe.steps, recipe.learning_rate) == (5, 2.0)
    assert recipe.sources[1] == Source(name="b", share=0.5)
    deeper = write(tmp_path, "extends: top.yaml\n", "deeper.yaml")
    with pytest.raises(ConfigError, match="only one level"):
        load_recipe(deeper, Recipe)
