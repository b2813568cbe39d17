"""The commands that run chains: `stages`, `smoke` and `quickstart`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.errors import ConfigError, PosttrainError
from posttrain.pages import chain as page
from scripts import quickstart, smoke, stages
from tests.scripts.forked_stage import fork_stages

WORLD = """\
out: runs/world
families: {maths: {train: 40, heldout: 10, difficulties: [1]}}
"""
JUDGEMENTS = """\
out: runs/judgements
families: {maths: {warm_up: 4, train: 4, heldout: 4, difficulties: [1]}}
drills: 4
"""
DATA = """\
out: runs/data
layout: compact
sources: [{name: judgements, path: runs/judgements/train.jsonl, ties: middle}]
"""


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of recipes of one's own."""
    monkeypatch.chdir(tmp_path)
    fork_stages(monkeypatch)
    folder = tmp_path / "recipes" / "ci"
    folder.mkdir(parents=True)
    (folder / "world.yaml").write_text(WORLD)
    (folder / "judgements.yaml").write_text(JUDGEMENTS)
    (folder / "build_genrm.yaml").write_text(DATA)
    return folder


def test_a_dry_run_lists_all_and_checks_the_first_unfinished(recipes, capfd):
    Path("runs/judgements").mkdir(parents=True)
    Path("runs/judgements/manifest.json").write_text("{}")
    Path("runs/world").mkdir()
    Path("runs/world/stage.json").write_text('{"kind": "tiny_world", "config": {}}')
    with pytest.raises(PosttrainError, match="stage build_genrm"):  # no rows are there to read
        stages.main(["--config", str(recipes), "--dry-run"])
    states = [line.rpartition(": ")[2] for line in capfd.readouterr().out.splitlines()[:3]]
    assert states == ["finished", "to do", "goes on"]


def test_a_dry_run_refuses_what_another_configuration_finished(recipes: Path, capfd):
    stages.main(["--config", str(recipes), "targets=[world]"])
    stages.main(["--config", str(recipes), "targets=[world]", "--dry-run"])
    assert capfd.readouterr().out.splitlines()[-1].endswith("runs/world: finished")
    (recipes / "world.yaml").write_text(WORLD.replace("10, diff", "11, diff"))
    with pytest.raises(PosttrainError, match="stage world"):
        stages.main(["--config", str(recipes), "targets=[world]", "--dry-run"])
    printed = capfd.readouterr()
    assert "finished, with other values of families.maths.heldout\n" in printed.out
    assert (
        "made by another config (they differ in: families.maths.heldout)"
        in printed.out + printed.err
    )


def test_a_smoke_run_of_own_recipes_begins_anew_beside_their_runs(recipes, capfd):
    (recipes / "stf.yaml").write_text("")
    smoke.main([str(recipes), "world.seed=8"])
    shown = capfd.readouterr().out
    assert "stf.yaml: left out, no stage has this name" in shown
    assert "3 stages ran: judgements, build_genrm, world\n" in shown
    assert shown.endswith("runs/smoke/report.html\n")  # the chain's page
    assert not Path("runs/world").exists()
    manifest = json.loads(Path("runs/smoke/build_genrm/manifest.json").read_text())
    assert [parent["kind"] for parent in manifest["parents"]] == ["tiny_judgements"]
    assert yaml.safe_load(Path("runs/smoke/recipes/world.yaml").read_text())["seed"] == 8
    # what is wrong is said before anything is removed
    with pytest.raises(ConfigError, match="did you mean 'seed'"):
        smoke.main([str(recipes), "world.sed=7"])
    assert Path("runs/smoke/world/manifest.json").is_file()
    with pytest.raises(ConfigError, match=r"'word.seed=7' is not STAGE.key=value .* world"):
        smoke.main([str(recipes), "word.seed=7"])


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The chains that would be run."""
    monkeypatch.chdir(tmp_path)
    begun: list[Any] = []

    def run(found: Any, config: Any, **_: Any) -> None:
        begun.append((found, config))

    for script in (smoke, quickstart):
        monkeypatch.setattr(script, "run_chain", run)
    # nothing ran, so that there is nothing to show
    monkeypatch.setattr(page, "show_chain", lambda *_, **__: None)
    return begun


def test_without_a_folder_it_is_the_tiny_chain_at_its_own_size(chains, tmp_path):
    Path("runs/smoke").mkdir(parents=True)
    Path("runs/smoke/old").write_text("")
    smoke.main(["sft.seed=9"])
    [(found, config)] = chains
    assert config.size == "smoke"
    recipe = {stage.step.title: stage.recipe for stage in found}
    assert recipe.keys() >= {"win_rate", "eval_genrm", "eval", "eval_rlvr", "rlvr"}
    assert (recipe["eval_genrm"]["pairs"], recipe["sft"]["seed"]) == (4, 9)
    assert not Path("runs/smoke/old").exists()


def test_as_written_keeps_size_and_place(chains, recipes):
    smoke.main([str(recipes), "--as-written", "--jobs", "1"])
    [(found, config)] = chains
    assert [str(stage.out) for stage in found] == ["runs/judgements", "runs/data", "runs/world"]
    assert (config.jobs, config.logs) == (1, "runs/logs")


def test_the_quickstart_is_the_chain_at_any_size_and_shows_it(
    chains: list[Any], monkeypatch: pytest.MonkeyPatch
):
    shown: list[Path] = []
    monkeypatch.setattr(page, "show_chain", lambda _, folders: shown.extend(folders))
    quickstart.main(["--size", "full", "--seed", "4", "--at", "a b"])
    [(found, config)] = chains
    assert (len(found), config.size, config.jobs) == (16, "full", 2)
    recipe = {stage.step.title: stage.recipe for stage in found}
    assert (recipe["dpo"]["batch"], recipe["dpo"]["seed"]) == (128, 4)
    assert Path("a b").is_dir()
    assert shown == [Path("a b/runs/tiny")]
