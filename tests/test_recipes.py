"""Every recipe fits its schema and states decisions only, never the schema's defaults."""

from __future__ import annotations

import os
import select
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.config.build_genrm import BuildGenRmConfig
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.command import parse_recipe, recipe_parser
from posttrain.config.dpo import DpoConfig
from posttrain.config.eval import EvalConfig, EvalGenRmConfig, WinRateConfig
from posttrain.config.load import load_recipe, read_recipe
from posttrain.config.rlhf import GenRmConfig, RlhfConfig
from posttrain.config.rlvr import RlvrConfig
from posttrain.config.sample import ProfileConfig, SampleConfig
from posttrain.config.sft import SftConfig
from posttrain.config.stages import StagesConfig
from posttrain.config.tiny_world import TinyJudgementsConfig, TinyWorldConfig

ROOT = Path(__file__).resolve().parent.parent
# a recipe is named after its stage; recipes/accelerate holds accelerate's own files
SCHEMAS: dict[str, type[BaseModel]] = {
    "build_dpo.yaml": BuildDpoConfig,
    "build_dpo_offline.yaml": BuildDpoConfig,
    "build_genrm.yaml": BuildGenRmConfig,
    "build_genrm_sft.yaml": BuildSftConfig,
    "build_sft.yaml": BuildSftConfig,
    "build_sft_augmented.yaml": BuildSftConfig,
    "dpo.yaml": DpoConfig,
    "eval.yaml": EvalConfig,
    "eval_agentic.yaml": EvalConfig,
    "eval_genrm.yaml": EvalGenRmConfig,
    "eval_rlhf.yaml": EvalConfig,
    "eval_rlvr.yaml": EvalConfig,
    "eval_sensitivity.yaml": EvalConfig,
    "eval_suite.yaml": EvalConfig,
    "genrm.yaml": GenRmConfig,
    "genrm_sft.yaml": SftConfig,
    "judgements.yaml": TinyJudgementsConfig,
    "profile.yaml": ProfileConfig,
    "profile_second.yaml": ProfileConfig,
    "rlhf.yaml": RlhfConfig,
    "rlvr.yaml": RlvrConfig,
    "rlvr_second.yaml": RlvrConfig,
    "rlvr_stages.yaml": StagesConfig,
    "sample.yaml": SampleConfig,
    "sft.yaml": SftConfig,
    "sft_augmented.yaml": SftConfig,
    "win_rate.yaml": WinRateConfig,
    "world.yaml": TinyWorldConfig,
}
LISTS = {"narratives.yaml", "untranslated.yaml"}  # of patterns, that recipes name
RECIPES = sorted(
    path
    for path in (ROOT / "recipes").rglob("*.yaml")
    if path.parent.name != "accelerate" and path.name not in LISTS
)


def repeated(raw: Any, kept: Any, prefix: str = "") -> list[str]:
    """Dotted keys of a recipe that only repeat a default: they are not in `kept`, its values that
    differ from the defaults."""
    if isinstance(raw, list) and isinstance(kept, list):
        raw, kept = dict(enumerate(raw)), dict(enumerate(kept))
    if not isinstance(raw, dict) or not isinstance(kept, dict):
        return []
    return [
        name
        for key, value in raw.items()
        for name in (
            repeated(value, kept[key], f"{prefix}{key}.") if key in kept else [f"{prefix}{key}"]
        )
    ]


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths inside a recipe are relative to the directory a command is run in."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(ROOT)))
def test_recipe_fits_its_schema_and_repeats_no_default(path):
    assert path.name in SCHEMAS, f"{path} is named after no stage; known are {sorted(SCHEMAS)}"
    model = load_recipe(path, SCHEMAS[path.name])
    assert repeated(read_recipe(path), model.model_dump(mode="json", exclude_defaults=True)) == []


def test_a_printed_recipe_reads_back_as_itself(tmp_path, capsys):
    for path in RECIPES:
        model = load_recipe(path, SCHEMAS[path.name])
        with pytest.raises(SystemExit):
            parse_recipe(
                recipe_parser(""), SCHEMAS[path.name], ["--config", str(path), "--print-config"]
            )
        printed = tmp_path / path.name
        printed.write_text(capsys.readouterr().out)
        again = load_recipe(printed, SCHEMAS[path.name])
        assert again.model_dump() == model.model_dump(), path


def test_the_stages_of_a_chain_fit_their_schemas():
    for path in (path for path in RECIPES if path.name.endswith("_stages.yaml")):
        chain = load_recipe(path, StagesConfig)
        for step in chain.stages:
            name = f"{step.recipe.rpartition('/')[2]}.yaml"
            load_recipe(ROOT / "recipes" / f"{step.recipe}.yaml", SCHEMAS[name], step.overrides)


def stages(*arguments: str) -> Iterator[tuple[Path, list[str]]]:
    """The recipe and the overrides of every stage that make would run."""
    targets = ["chain", "chain-rlvr", "eval_rlvr", "eval_suite", "eval_agentic"]
    targets += ["eval_sensitivity", "eval_augmented"]
    make = ["make", "-n", *targets, *arguments]
    shown = subprocess.run(make, capture_output=True, text=True, check=True, cwd=ROOT)
    for line in shown.stdout.splitlines():
        command, config, rest = line.partition(" --config ")
        if config and "/scripts/" in command:
            recipe, *overrides = shlex.split(rest.split(") >>")[0])
            yield Path(recipe), overrides


@pytest.mark.parametrize("size", ["", "full", "smoke"])
def test_every_size_of_the_chain_fits_the_schemas(size: str):
    recipes = dict(stages(f"SIZE={size}", "SEED=3"))
    # what `make` names in recipes/sizes.mk is the name of a recipe, or it would do nothing
    sized = {
        line.split(" = ")[0].removeprefix(f"{size}_")
        for line in (ROOT / "recipes/sizes.mk").read_text().splitlines()
        if size and line.startswith(f"{size}_")
    }
    assert sized <= {path.stem for path in recipes}
    assert {path.stem for path in recipes} >= {
        path.stem for path in (ROOT / "recipes/tiny").glob("*")
    }
    for path, overrides in recipes.items():
        model = load_recipe(path, SCHEMAS[path.name], overrides)
        assert "seed=3" not in overrides or model.model_dump()["seed"] == 3


def test_a_chain_of_own_recipes_leaves_out_what_has_none(tmp_path: Path):
    folder = tmp_path / "my recipes"
    folder.mkdir()
    own = folder / "sft.yaml"
    own.write_text((ROOT / "recipes/tiny/sft.yaml").read_text())
    assert dict(stages(f"RECIPES={folder}")) == {own: []}
    own.rename(folder / "stf.yaml")
    (tmp_path / ".installed").touch()
    make = ["make", "smoke", f"RECIPES={folder}", f"BIN={tmp_path}"]
    done = subprocess.run(make, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode != 0
    assert "stf.yaml: no stage" in done.stdout


def test_a_make_that_is_terminated_ends_the_stage_that_runs(tmp_path: Path):
    """Its own shell is all that make signals. Here a stage is a program that writes what happens."""
    at, events = tmp_path / "a folder", tmp_path / "events"
    at.mkdir()
    os.mkfifo(events)
    (tmp_path / ".installed").touch()
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\nexec 3> {events}; trap 'echo terminated >&3; exit 143' TERM\n"
        "echo begun >&3; sleep 20 & wait\n"
    )
    python.chmod(0o755)
    reader = os.open(events, os.O_RDONLY | os.O_NONBLOCK)

    def event() -> bytes:
        return os.read(reader, 100) if select.select([reader], [], [], 30)[0] else b"nothing"

    make = ["make", "world", f"BIN={tmp_path}", f"AT={at}"]
    with subprocess.Popen(make, cwd=ROOT, stdout=subprocess.DEVNULL) as running:
        assert event() == b"begun\n"
        running.terminate()
        assert event() == b"terminated\n"
        assert running.wait() != 0
    os.close(reader)


def test_the_three_families_of_recipes_are_there():
    names = {(path.parent.name, path.name) for path in RECIPES}
    assert {
        (family, stage)
        for family in ("tiny", "nemotron-3-nano", "one-gpu")
        for stage in ("build_sft.yaml", "sft.yaml", "sample.yaml", "build_dpo.yaml", "dpo.yaml")
    } <= names


def test_a_repeated_default_is_found(tmp_path):
    path = tmp_path / "build_sft.yaml"
    path.write_text(
        "out: x\n"
        "tokenizer: {path: t, chat_template: own}\n"
        "packing: {max_length: 64, overlong: drop}\n"
        "reasoning: {strip: 0}\n"
        "sources: [{name: a, path: a.jsonl, ending: trim}]\n"
    )
    model = load_recipe(path, BuildSftConfig)
    assert repeated(read_recipe(path), model.model_dump(mode="json", exclude_defaults=True)) == [
        "tokenizer.chat_template",
        "packing.overlong",
        "reasoning",
        "sources.0.ending",
    ]


def test_the_paper_dpo_has_the_papers_numbers():
    recipe = load_recipe(ROOT / "recipes/nemotron-3-nano/dpo.yaml", DpoConfig)
    assert (recipe.trainer["learning_rate"], recipe.trainer["max_steps"]) == (3e-6, 50)
    assert (recipe.batch, recipe.max_epochs, recipe.adapter) == (128, 1, None)
    loss = recipe.loss
    assert (loss.preference_weight, loss.sft_weight, loss.beta) == (1.0, 0.2, 0.05)
    assert (loss.sft_form, loss.kl_weight) == ("sum", 0.0)


def test_the_paper_blend_has_the_papers_numbers():
    recipe = load_recipe(ROOT / "recipes/nemotron-3-nano/build_sft.yaml", BuildSftConfig)
    shares = {source.name: source.share for source in recipe.sources}
    assert (shares["chat"], shares["code"], shares["science"]) == (0.286, 0.207, 0.128)
    assert (recipe.reasoning.strip, recipe.reasoning.truncate) == (0.10, 0.03)
    assert recipe.packing.max_length == 256 * 1024
    assert all(source.filters.narratives for source in recipe.sources)
    untranslated = {source.name for source in recipe.sources if source.filters.untranslated}
    assert untranslated == {"multilingual"}


def test_the_sampling_recipe_has_the_papers_numbers():
    recipe = load_recipe(ROOT / "recipes/nemotron-3-nano/sample.yaml", SampleConfig)
    tasks = {source.name: (source.count, source.grader) for source in recipe.prompts}
    assert tasks == {"maths": (1000, "math"), "stem": (1000, "multiple_choice")}
    assert [recipe.n_of(setting.name) for setting in recipe.settings] == [32, 32]
    assert [setting.tools for setting in recipe.settings] == ["none", "python"]


def test_the_judges_recipe_has_the_papers_numbers():
    recipe = load_recipe(ROOT / "recipes/nemotron-3-nano/genrm.yaml", GenRmConfig)
    assert (recipe.prompts_per_step, recipe.num_generations, recipe.loss.num_iterations) == (
        128,
        8,
        1,
    )
    data = load_recipe(ROOT / "recipes/nemotron-3-nano/build_genrm.yaml", BuildGenRmConfig)
    assert data.swap


def test_the_rlhf_recipe_has_the_papers_numbers():
    recipe = load_recipe(ROOT / "recipes/nemotron-3-nano/rlhf.yaml", RlhfConfig)
    assert (recipe.prompts_per_step, recipe.num_generations, recipe.loss.num_iterations) == (
        128,
        16,
        1,
    )
    assert (recipe.loss.clip_low, recipe.loss.clip_high, recipe.loss.kl) == (0.2, 0.28, 0.0)
    assert recipe.pairing.strategy == "circular"
    length = recipe.length
    assert (length.reasoning_coefficient, length.answer_coefficient) == (0.5, 0.5)
    assert (length.reasoning_bonus, length.answer_bonus) == (0.5, 0.5)
    assert length.quality_percentile == 80
    assert (recipe.moe.freeze_router, recipe.moe.bias_update_rate) == (True, 1e-3)
