"""Every recipe fits its schema and states decisions only, never the schema's defaults."""

from __future__ import annotations

import itertools
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from posttrain.chain import resolve_chain, stage_of
from posttrain.config.command import parse_recipe, recipe_parser
from posttrain.config.load import load_recipe
from posttrain.config.recipe_files import read_mapping
from posttrain.config.schemas import stage_schemas
from posttrain.config.stages import StagesConfig

ROOT = Path(__file__).resolve().parent.parent
# recipes/accelerate holds accelerate's own files
SCHEMAS = stage_schemas()
LISTS = {"narratives.yaml", "untranslated.yaml"}  # of patterns, that recipes name
RECIPES = sorted(
    path
    for path in (ROOT / "recipes").rglob("*.yaml")
    if path.parent.name != "accelerate" and path.name not in LISTS
)


def schema_of(path: Path) -> type[BaseModel]:
    """The schema of the stage that a recipe is named after, such as `eval` of eval_rlhf."""
    if path.stem == "chain" or path.stem.endswith("_stages"):
        return StagesConfig
    stage = stage_of(path.stem, [*SCHEMAS])
    assert stage is not None, path
    return SCHEMAS[stage]


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
    model = load_recipe(path, schema_of(path))
    assert repeated(read_mapping(path), model.model_dump(mode="json", exclude_defaults=True)) == []


def test_a_printed_recipe_reads_back_as_itself(tmp_path, capsys):
    for path in RECIPES:
        schema, printed = schema_of(path), tmp_path / path.name
        with pytest.raises(SystemExit):
            parse_recipe(recipe_parser(""), schema, ["--config", str(path), "--print-config"])
        printed.write_text(capsys.readouterr().out)
        again, model = load_recipe(printed, schema), load_recipe(path, schema)
        assert again.model_dump() == model.model_dump(), path


def test_the_stages_of_a_chain_fit_their_schemas():
    for path in (path for path in RECIPES if path.name.endswith("_stages.yaml")):
        chain = load_recipe(path, StagesConfig)
        for step in chain.stages:
            load_recipe(step.recipe, schema_of(Path(step.recipe)), step.overrides)


def test_each_round_of_distillation_grows_its_teachers_from_the_student_before_it():
    chain = load_recipe("tiny/mopd/chain", StagesConfig)
    stages = {stage.step.title: stage for stage in resolve_chain(chain, ROOT / "scripts")}
    readers = {
        title: {other.step.title for other in stages.values() if stage.reads(other)}
        for title, stage in stages.items()
    }
    teachers = {"rlvr_logs", "rlvr_steps", "sft_unanswerable"}
    assert readers["distill"] == {"world", "sft", "sft_warm_up"} | teachers
    second = {f"{teacher}_second" for teacher in teachers}
    assert readers["distill_second"] == {"world", "distill"} | second
    for teacher in teachers:
        assert "sft" in readers[teacher]
        assert "distill" in readers[f"{teacher}_second"]
        assert "sft" not in readers[f"{teacher}_second"]
    for name, student in (("distill", "sft"), ("distill_second", "distill")):
        general = stages[name].recipe["teachers"]["general"]["path"]
        assert len(stages[name].recipe["teachers"]) == 4
        assert Path(general) == stages[student].out


def test_the_rounds_of_expert_iteration_and_their_control_arm_differ_in_the_check_alone():
    chain = load_recipe("tiny/expert-iteration/chain", StagesConfig, ["seed=3"])
    stages = {stage.step.title: stage for stage in resolve_chain(chain, ROOT / "scripts")}
    assert "seed" not in " ".join(stages["sft"].arguments), "all seeds begin with one model"
    for arm in ("", "_any"):
        student = str(stages["sft"].out)
        for number in ("first", "second"):
            first = number == "first"
            rows = stages[f"synthesize{arm}" if first else f"synthesize{arm}_second"]
            data = stages[f"build_sft{arm or '_own'}" if first else f"build_sft{arm}_second"]
            sft = stages[f"sft{arm or '_first'}" if first else f"sft{arm}_second"]
            assert rows.recipe["models"]["generator"][0]["checkpoint"] == student
            assert rows.recipe["make"]["keep"] == ("any" if arm else "passing")
            assert rows.recipe["make"]["prompts"] == stages["synthesize"].recipe["make"]["prompts"]
            assert data.reads(rows)
            assert data.recipe["mixture"] == stages["build_sft_own"].recipe["mixture"]
            assert sft.reads(data)
            assert sft.recipe["model"]["path"] == student
            assert {rows.recipe["seed"], data.recipe["seed"], sft.recipe["seed"]} == {3}
            student = str(sft.out)
        assert student in stages["eval"].recipe["checkpoints"].values()


def test_both_models_that_select_see_the_same_held_out_candidates():
    chain = load_recipe("tiny/genselect/chain", StagesConfig)
    stages = {stage.step.title: stage for stage in resolve_chain(chain, ROOT / "scripts")}
    assert stages["synthesize"].reads(stages["sft_form"])
    assert stages["synthesize"].reads(stages["sample"])
    assert stages["sft_traces"].reads(stages["build_sft_traces"])
    assert stages["sft_traces"].recipe["model"]["path"] == str(stages["sft_form"].out)
    assert stages["eval"].reads(stages["synthesize_heldout"])
    assert stages["synthesize_heldout"].reads(stages["sample_heldout"])
    templates = [stages[name].recipe["templates"] for name in ("synthesize", "synthesize_heldout")]
    assert templates[0] == templates[1]


def test_the_chains_of_safety_and_twins_train_both_sides_alike():
    chain = load_recipe("tiny/safety/chain", StagesConfig)
    stages = {stage.step.title: stage for stage in resolve_chain(chain, ROOT / "scripts")}
    generators = stages["synthesize"].recipe["models"]["generator"]
    start = str(stages["sft_start"].out)
    assert {model["checkpoint"] for model in generators} == {start}
    assert stages["dpo"].recipe["model"]["path"] == start
    assert stages["dpo"].reads(stages["build_dpo"])
    assert stages["build_dpo"].reads(stages["synthesize"])
    assert stages["build_dpo"].reads(stages["sample"])
    assert stages["sample"].recipe["checkpoint"] == start
    chain = load_recipe("tiny/twins/chain", StagesConfig)
    stages = {stage.step.title: stage for stage in resolve_chain(chain, ROOT / "scripts")}
    clean = stages["build_sft_clean"].recipe
    leaked = stages["build_sft_leaked"].recipe
    assert clean["mixture"] == leaked["mixture"]
    assert stages["sft_clean"].recipe["trainer"] == stages["sft_leaked"].recipe["trainer"]
    assert stages["eval"].reads(stages["synthesize"])


@pytest.mark.parametrize("size", ["null", "smoke"])
def test_each_stage_of_the_whole_chain_starts_from_the_one_before(size: str):
    chain = load_recipe("tiny/nemotron-3/chain", StagesConfig, [f"size={size}", "seed=3"])
    stages = {stage.step.title: stage for stage in resolve_chain(chain, ROOT / "scripts")}
    outs = {title: str(stage.out) for title, stage in stages.items()}
    line = ["sft", "sft_synthetic", "rlvr", "rlhf", "rlvr_second", "dpo", "distill"]
    for before, title in itertools.pairwise(line):
        assert stages[title].recipe["model"]["path"] == outs[before]
        assert stages[title].recipe["seed"] == 3
    assert stages["synthesize"].recipe["models"]["generator"][0]["checkpoint"] == outs["sft"]
    assert stages["sft_synthetic"].reads(stages["build_sft_synthetic"])
    assert stages["build_sft_synthetic"].reads(stages["synthesize"])
    for before, title in (("sft_synthetic", "profile"), ("rlhf", "profile_second")):
        assert stages[title].recipe["checkpoint"] == outs[before]
    assert stages["sample"].recipe["checkpoint"] == outs["rlvr_second"]
    assert stages["quantize"].recipe["checkpoint"] == outs["distill"]
    teachers = stages["distill"].recipe["teachers"].values()
    assert {teacher["path"] for teacher in teachers} == {
        outs[title] for title in ("rlhf", "rlvr_second", "dpo")
    }
    assert [*stages["eval"].recipe["checkpoints"].values()] == [outs[title] for title in line]
    checkpoints = stages["eval_quantized"].recipe["checkpoints"].values()
    assert [*checkpoints] == [outs["distill"], outs["quantize"]]


def test_a_distilled_model_is_quantised_as_the_one_that_its_student_rounds_as():
    chain = load_recipe("tiny/qad/chain", StagesConfig)
    stages = {stage.step.title: stage for stage in resolve_chain(chain, ROOT / "scripts")}
    distill = stages["distill"].recipe
    assert distill["simulate"] == str(stages["quantize"].out)
    source = stages["quantize"].recipe["checkpoint"]
    assert distill["model"]["path"] == distill["teachers"]["source"]["path"] == source
    again = stages["quantize_distilled"].recipe
    assert again["checkpoint"] == str(stages["distill"].out)
    for key in ("data", "format", "keep", "kv_cache", "samples"):
        assert again[key] == stages["quantize"].recipe[key]


@pytest.mark.parametrize("size", [None, "full", "smoke"])
def test_every_size_of_the_tiny_chain_fits_the_schemas(size: str | None):
    """As their scripts resolve them; the seed is that of what trains and samples."""
    keys = ["seed=3", f"size={size or 'null'}", "targets=null"]
    chain = load_recipe("tiny/chain", StagesConfig, keys)
    stages = resolve_chain(chain, ROOT / "scripts")
    files = {Path(stage.step.recipe).name for stage in stages}
    # quantisation needs an extra of its own; folders are chains of their own
    rest = {"chain", "quantize", "mopd", "nemotron-3", "qad"}
    rest |= {"expert-iteration", "safety", "twins", "genselect"}
    assert files == {path.stem for path in (ROOT / "recipes/tiny").glob("*")} - rest
    seeds = {stage.step.title: stage.recipe.get("seed") for stage in stages if stage.step.seeded}
    assert {*seeds.values()} == {3}
    assert seeds.keys() >= {"sft", "sample", "dpo", "genrm", "rlhf", "rlvr"}
    world = next(stage for stage in stages if stage.step.title == "world")
    assert world.recipe["seed"] != 3


def test_the_quickstart_needs_no_more_than_its_stages():
    """Order and parents come of the recipes alone."""
    chain = load_recipe("tiny/chain", StagesConfig)
    stages = resolve_chain(chain, ROOT / "scripts")
    names = [stage.step.title for stage in stages]
    assert len(names) == 16
    assert "rlvr" not in names
    parents = {
        stage.step.title: {other.step.title for other in stages if stage.reads(other)}
        for stage in stages
    }
    assert parents["genrm"] == {"genrm_sft", "build_genrm"}
    assert parents["eval"] == {"world", "sft", "dpo"}
    assert parents["win_rate"] == {"eval_rlhf", "genrm_sft"}
    assert all(names.index(p) < names.index(name) for name in names for p in parents[name])


def test_make_runs_own_recipes_where_their_paths_begin(tmp_path: Path):
    """And gives out what the command says of them."""
    folder = tmp_path / "my recipes"
    folder.mkdir()
    (folder / "stf.yaml").write_text((ROOT / "recipes/tiny/sft.yaml").read_text())
    (tmp_path / ".installed").touch()
    command = tmp_path / "posttrain"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} "{ROOT}/scripts" "$@"\n')
    command.chmod(0o755)
    make = ["make", "smoke", f"RECIPES={folder}", f"BIN={tmp_path}", f"AT={tmp_path}"]
    done = subprocess.run(make, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode != 0
    assert "stf.yaml: left out, no stage has this name (did you mean 'sft'?)" in done.stdout
    assert "nothing to run" in done.stderr


def test_a_make_that_is_terminated_ends_what_runs(tmp_path: Path):
    """Its own shell is all that make signals. Here the command writes what happens."""
    events = tmp_path / "events"
    os.mkfifo(events)
    (tmp_path / ".installed").touch()
    command = tmp_path / "posttrain"
    command.write_text(
        f"#!/bin/sh\nexec 3> {events}; trap 'echo terminated >&3; exit 143' TERM\n"
        "echo begun >&3; sleep 20 & wait\n"
    )
    command.chmod(0o755)
    reader = os.open(events, os.O_RDONLY | os.O_NONBLOCK)

    def event() -> bytes:
        return os.read(reader, 100) if select.select([reader], [], [], 30)[0] else b"nothing"

    make = ["make", "quickstart", f"BIN={tmp_path}", f"AT={tmp_path}/a folder"]
    with subprocess.Popen(make, cwd=ROOT, stdout=subprocess.DEVNULL) as running:
        assert event() == b"begun\n"
        running.terminate()
        assert event() == b"terminated\n"
        assert running.wait() != 0
    os.close(reader)


def test_the_papers_recipes_have_the_papers_numbers():
    def paper(stage: str) -> Any:
        return load_recipe(f"nemotron-3-nano/{stage}", SCHEMAS[stage])

    blend = paper("build_sft")
    shares = {source.name: source.share for source in blend.sources}
    assert (shares["chat"], shares["code"], shares["science"]) == (0.286, 0.207, 0.128)
    assert (blend.reasoning.strip, blend.reasoning.truncate) == (0.10, 0.03)
    assert blend.packing.max_length == 256 * 1024
    assert all(source.filters.narratives for source in blend.sources)
    assert [source.name for source in blend.sources if source.filters.untranslated] == [
        "multilingual"
    ]

    samples = paper("sample")
    tasks = {source.name: (source.count, source.grader) for source in samples.prompts}
    assert tasks == {"maths": (1000, "math"), "stem": (1000, "multiple_choice")}
    settings = [(setting.tools, samples.n_of(setting.name)) for setting in samples.settings]
    assert settings == [("none", 32), ("python", 32)]

    dpo = paper("dpo")
    assert (dpo.trainer["learning_rate"], dpo.trainer["max_steps"]) == (3e-6, 50)
    assert (dpo.batch, dpo.max_epochs, dpo.adapter) == (128, 1, None)
    assert [*dpo.loss.model_dump().values()] == [0.05, 1.0, 0.2, "sum"]

    for stage, n in (("genrm", 8), ("rlhf", 16)):
        recipe = paper(stage)
        assert (recipe.prompts_per_step, recipe.num_generations) == (128, n)
        assert recipe.loss.num_iterations == 1
        assert (recipe.loss.clip_low, recipe.loss.clip_high, recipe.loss.kl) == (0.2, 0.28, 0.0)
        assert (recipe.moe.freeze_router, recipe.moe.bias_update_rate) == (True, 1e-3)
    assert paper("build_genrm").swap
    rlhf = paper("rlhf")
    assert rlhf.pairing.strategy == "circular"
    assert [*rlhf.length.model_dump().values()] == [0.5, 0.5, 0.5, 0.5, 80, "tokens"]
    assert [*rlhf.judge.sampling.model_dump().values()] == [0.6, 0.95, 0, 16384]
    assert rlhf.judge.retries == 3
