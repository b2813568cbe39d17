"""The workflow of docs/guides/ci.md as a shell script in a user's repository, and its other recipe."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from posttrain.chain import resolve_chain
from posttrain.config.load import validate
from posttrain.config.stages import StagesConfig
from tests.docs.pages import GUIDES, ROOT, recipes, yaml_blocks

PAGE = GUIDES / "ci.md"
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
# in the place of pip: the environment of these tests has the package
PIP = """#!/bin/sh
echo "$@" > pip-arguments
"""


def workflow() -> dict[str, object]:
    (block,) = (text for text in yaml_blocks(PAGE) if text.startswith("# .github/workflows/"))
    return yaml.safe_load(block)["jobs"]["smoke"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A user's repository, and the commands of an environment."""
    commands = tmp_path / "commands"
    commands.mkdir()
    posttrain = f'#!/bin/sh\nexec {sys.executable} "{ROOT}/scripts" "$@"\n'
    for name, text in (("pip", PIP), ("posttrain", posttrain)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    folder = tmp_path / "repository"
    (folder / "recipes/ci").mkdir(parents=True)
    (folder / "recipes/ci/judgements.yaml").write_text(JUDGEMENTS)
    (folder / "recipes/ci/build_genrm.yaml").write_text(DATA)
    return folder


def run(repository: Path) -> subprocess.CompletedProcess[str]:
    """As the runner does: each step's lines by bash, in the repository, up to one that fails."""
    job = workflow()
    lines = [step["run"] for step in job["steps"] if "run" in step]
    own = {"PATH": f"{repository.parent}/commands:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", "\n".join(lines)],
        cwd=repository,
        env=os.environ | job["env"] | own,
        capture_output=True,
        text=True,
    )


def test_the_workflow_installs_the_wheel_and_runs_the_recipes(repository: Path):
    done = run(repository)
    assert done.returncode == 0, done.stdout + done.stderr
    installed = (repository / "pip-arguments").read_text()
    assert installed == f"install posttrain[all] @ {workflow()['env']['WHEEL']}\n"
    assert "\n2 stages ran: judgements, build_genrm\n" in done.stdout
    assert done.stdout.endswith("runs/smoke/report.html\n")
    page = (repository / "runs/smoke/report.html").read_text()
    assert 'href="judgements/report.html"' in page or 'href="build_genrm/report.html"' in page
    (uploaded,) = (step["with"]["path"] for step in workflow()["steps"] if "if" in step)
    assert (repository / uploaded / "build_genrm/report.html").is_file()


def test_a_recipe_that_no_longer_fits_fails_the_workflow(repository: Path):
    (repository / "recipes/ci/judgements.yaml").write_text(JUDGEMENTS.replace("drills", "drill"))
    done = run(repository)
    assert done.returncode == 1
    assert "unknown key 'drill' (did you mean 'drills'?)" in done.stderr
    (repository / "recipes/ci/judgements.yaml").write_text(JUDGEMENTS)
    (repository / "recipes/ci/build_genrm.yaml").write_text(DATA.replace("train.j", "trains.j"))
    done = run(repository)
    assert done.returncode == 1
    assert "trains.jsonl" in done.stdout
    assert "stage build_genrm (build_genrm) stopped with code 1" in done.stderr


def test_the_chain_of_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    ((name, text),) = recipes(PAGE).items()
    folder = Path(name).parent
    folder.mkdir(parents=True)
    (folder / "data.yaml").write_text((ROOT / "recipes/tiny/build_sft.yaml").read_text())
    (folder / "first.yaml").write_text((ROOT / "recipes/tiny/sft.yaml").read_text())
    raw = yaml.safe_load(text) | {"size": "smoke", "seed": 5}
    data, again = resolve_chain(validate(raw, StagesConfig, where=name), ROOT / "scripts")
    assert (data.step.title, again.step.title) == ("data", "again")
    assert (again.recipe["seed"], again.recipe["trainer"]["max_steps"]) == (1, 4)
    raw |= {"targets": ["first"]}
    _, first = resolve_chain(validate(raw, StagesConfig, where=name), ROOT / "scripts")
    assert (first.recipe["seed"], first.recipe["trainer"]["max_steps"]) == (5, 4)
