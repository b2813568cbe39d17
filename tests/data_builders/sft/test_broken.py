"""Broken recipes, templates and tokenizers: each is refused with what to do about it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from data_builders.sft.preflight import check_probe, probe_source
from data_builders.sft.prepare import Preparer
from posttrain.chat import nemotron_3_nano_template
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.load import load_recipe
from posttrain.errors import ConfigError, DataError
from posttrain.tokens.supervision import NO_MARKS
from tests.data_builders.small_build import (
    build,
    index,
    write_recipe,
    write_tokenizer,
)


def edit(recipe: Path, **keys: object) -> Path:
    raw = yaml.safe_load(recipe.read_text()) | keys
    recipe.write_text(yaml.safe_dump(raw, sort_keys=False))
    return recipe


@pytest.mark.parametrize(
    ("change", "error", "pattern"),
    [
        (
            {"packng": {"capacity": 9}},
            ConfigError,
            r"unknown key 'packng' \(did you mean 'packing'",
        ),
        ({"packing": {"max_length": "big"}}, ConfigError, r"packing.max_length.*found 'big'"),
        ({"packing": {"max_length": 48}}, ConfigError, r"48 is shorter than the prompts of source"),
        ({"held_out": {"rate": 0.1, "rows": 3}}, ConfigError, "exactly one of rate and rows"),
        ({"tokenizer": {"path": "no/such/folder"}}, ConfigError, "no such directory"),
        ({"mixture": {"total": 10_000_000}}, DataError, r"'reasoning': 8,000,000 tokens requested"),
    ],
)
def test_broken_recipes_say_what_to_do(tmp_path, change, error, pattern):
    with pytest.raises(error, match=pattern):
        build(edit(write_recipe(tmp_path), **change))


@pytest.mark.parametrize(
    ("source", "pattern"),
    [
        ({"dialect": "sharegtp"}, r"sources.0.dialect.*'openai'.*found 'sharegtp'"),
        ({"path": "reasonin.jsonl"}, "'reasonin.jsonl' does not exist"),
        ({"share": 0.7}, "shares sum to 0.9, they must sum to 1"),
        ({"where": {"levl": 1}}, "levl"),
    ],
)
def test_broken_sources_say_what_to_do(tmp_path, source, pattern):
    recipe = write_recipe(tmp_path)
    raw = yaml.safe_load(recipe.read_text())
    raw["sources"][0] |= source
    with pytest.raises(ConfigError, match=pattern):
        build(edit(recipe, sources=raw["sources"]))


def test_pad_that_is_the_end_token_is_refused(tmp_path):
    recipe = write_recipe(tmp_path)
    write_tokenizer(tmp_path / "tokenizer", pad_token="<|im_end|>")  # noqa: S106 - no password
    with pytest.raises(ConfigError, match=r"pad and end of turn are both '<\|im_end\|>'"):
        build(recipe)


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def with_template(folder: Path, source: str) -> Path:
    """A recipe of this template."""
    (folder / "own.jinja").write_text(source)
    tokenizer = {
        "path": str(write_tokenizer(folder / "tokenizer")),
        "chat_template": str(folder / "own.jinja"),
    }
    return write_recipe(folder, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("source", "error", "pattern"),
    [
        ("{% for m in messages %}{{ m.__class__.__mro__ }}{% endfor %}", ValueError, r"own\.jinja"),
        ("{{ strftime_now('%d %b') }}" + CHATML, ConfigError, "writes today's date.*date_string"),
    ],
)
def test_a_template_that_is_unsafe_or_reads_the_clock_is_refused(tmp_path, source, error, pattern):
    with pytest.raises(error, match=pattern):
        build(with_template(tmp_path, source))


def test_a_template_without_reasoning_is_refused_for_data_that_reasons(tmp_path):
    recipe = with_template(tmp_path, CHATML)
    with pytest.raises(ConfigError, match=r"leaves out .*the reasoning of message \d+"):
        build(recipe)
    build(
        recipe,
        "reasoning.strip=1.0",
        "tokenizer.allow_left_out=[tools,tool_call]",
        "limits.max_empty_answers=null",
    )
    assert {row["reasoning"] for row in index(tmp_path / "out")} == {"off"}


@pytest.mark.parametrize("prefix", ["Metaspace", "ByteLevel"])
def test_a_tokenizer_that_begins_every_text_with_a_space_is_refused(tmp_path, prefix):
    folder = write_tokenizer(tmp_path / "spaced")
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["pre_tokenizer"] = (
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        if prefix == "ByteLevel"
        else {"type": "Metaspace", "replacement": "Ġ", "prepend_scheme": "always", "split": True}
    )
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    tokenizer = {"path": str(folder), "chat_template": "nemotron_3_nano"}
    with pytest.raises(ConfigError, match="puts a space before every text"):
        build(write_recipe(tmp_path, tokenizer=tokenizer))


def test_a_prompt_tokenised_otherwise_in_pieces_is_refused(tmp_path):
    recipe = load_recipe(write_recipe(tmp_path), BuildSftConfig)

    def with_a_start_token(texts):
        return [np.array([0, *map(ord, text)], np.int32) for text in texts]

    renderer: Any = SimpleNamespace(
        template=nemotron_3_nano_template(),
        encode=with_a_start_token,
        offsets=lambda text: [(i, i + 1) for i in range(len(text))],
        marks=NO_MARKS,
        special_texts={},
        special=SimpleNamespace(stop_ids=[ord("\n")]),
        encoder=SimpleNamespace(decode=str),
    )
    preparer = Preparer(recipe, recipe.sources[0], renderer)
    _, problems = check_probe(probe_source(preparer, Path()), preparer)
    assert any("encodes a prompt in pieces otherwise than as one" in line for line in problems)


def test_an_output_directory_of_another_config_is_refused(world):
    with pytest.raises(ConfigError, match=r"made by another config \(they differ in: seed\)"):
        build(world / "recipe.yaml", "seed=5")
    with pytest.raises(ConfigError, match="another config"):
        build(world / "recipe.yaml", "seed=5", "--dry-run")


def test_a_corrected_recipe_may_have_the_directory_of_the_wrong_one(tmp_path):
    """And the source that has nothing to give says where its rows went."""
    recipe = write_recipe(tmp_path)
    with pytest.raises(DataError, match=r"'plain' has share 0\.2 .*\(300 license\)"):
        build(recipe, "licenses=[MIT]")
    build(recipe)
    again = write_recipe(tmp_path, out=str(tmp_path / "fresh"))
    build(again)
    manifests = [json.loads((tmp_path / n / "manifest.json").read_text()) for n in ("out", "fresh")]
    assert manifests[0]["digest"] == manifests[1]["digest"]
