"""Sampling values that a model's own generation config states, and which recipe says otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.config.eval import EvalConfig, EvaluatedConfig, with_choices
from posttrain.config.load import validate
from posttrain.config.sample import SampleConfig
from posttrain.errors import ConfigError

QWEN3 = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
SOURCE = {"name": "q", "format": "question", "path": "rows.jsonl", "grader": None}
SHARED: dict[str, Any] = {
    "out": "runs/x",
    "backend": {"kind": "transformers"},
    "prompts": [SOURCE],
    "settings": [{"name": "plain"}],
}


def checkpoint(folder: Path, config: object) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps(config))
    return str(folder)


def sampled(path: str, **sampling: object) -> tuple[SampleConfig, str]:
    raw = {**SHARED, "checkpoint": path, "n": 1, "sampling": sampling}
    return validate(raw, SampleConfig, where="recipe").with_choice()


def evaluated(checkpoints: dict[str, Any], **keys: Any) -> tuple[EvalConfig, list[str]]:
    raw = {**SHARED, "checkpoints": checkpoints, **keys}
    return with_choices(validate(raw, EvalConfig, where="recipe"))


def test_what_the_recipe_leaves_open_is_as_the_model_says(tmp_path: Path):
    recipe, line = sampled(checkpoint(tmp_path, QWEN3), temperature=0.3)
    parameters = recipe.sampling.parameters()
    assert (parameters.temperature, parameters.top_p, parameters.top_k) == (0.3, 0.95, 20)
    assert line == (
        "sampling: temperature 0.3 (the recipe); "
        "top_p 0.95, top_k 20 (the model's generation config)"
    )


def test_a_model_that_says_nothing_is_sampled_from_its_whole_distribution(tmp_path: Path):
    silent, line = sampled(checkpoint(tmp_path, {"eos_token_id": 2}))
    stated, _ = sampled(str(tmp_path / "none"), temperature=1.0, top_p=1.0, top_k=0)
    assert "temperature 1, top_p 1, top_k 0 (ours, since neither" in line
    # the bytes of the artifact are those of a recipe that states the values
    changed = {"checkpoint": "x"}
    assert {**silent.owner_config(), **changed} == {**stated.owner_config(), **changed}


def test_a_generation_config_that_cannot_be_meant_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"generation_config\.json: 'temperature'"):
        sampled(checkpoint(tmp_path, {"temperature": -1}))


def test_checkpoints_that_agree_share_their_values(tmp_path: Path):
    path = checkpoint(tmp_path, QWEN3)
    recipe, [line] = evaluated({"base": path, "sft": path})
    assert line.startswith("sampling of base, sft: temperature 0.6")
    assert recipe.checkpoints == {"base": path, "sft": path}
    assert recipe.owner_config()["sampling"]["top_k"] == 20


def test_checkpoints_that_differ_keep_their_own_values(tmp_path: Path):
    paths = {
        "base": checkpoint(tmp_path / "base", QWEN3),
        "sft": checkpoint(tmp_path / "sft", {"temperature": 0.7, "top_p": 0.95}),
    }
    settings = [{"name": "plain"}, {"name": "greedy", "sampling": {"temperature": 0}}]
    recipe, lines = evaluated(paths, settings=settings)
    assert [line.partition(":")[0] for line in lines] == ["sampling of base", "sampling of sft"]
    found = {name: recipe.sampling_of("plain", name).parameters() for name in paths}
    assert (found["base"].temperature, found["base"].top_k) == (0.6, 20)
    assert (found["sft"].temperature, found["sft"].top_k) == (0.7, 0)
    assert {one.top_p for one in found.values()} == {0.95}
    assert recipe.sampling_of("greedy", "base").temperature == 0
    block = recipe.owner_config()["checkpoints"]["sft"]
    assert block["sampling"] == {"temperature": 0.7, "top_k": 0}


def test_a_checkpoints_own_block_comes_before_its_generation_config(tmp_path: Path):
    path = checkpoint(tmp_path, QWEN3)
    recipe, _ = evaluated({"cold": {"path": path, "sampling": {"temperature": 0.1}}, "base": path})
    assert recipe.sampling_of("plain", "cold").temperature == 0.1
    assert recipe.sampling_of("plain", "base").temperature == 0.6
    # a block that says nothing changes no byte of what an evaluation depends on
    blocks, _ = evaluated({"base": {"path": path}})
    assert isinstance(blocks.checkpoints["base"], EvaluatedConfig)
    assert "sampling" not in blocks.owner_config()["checkpoints"]["base"]
