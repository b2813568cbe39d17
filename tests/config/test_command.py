"""The command line of the stages: overrides may stand anywhere."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.config.base import Strict
from posttrain.config.command import parse_recipe, recipe_parser, run_command
from posttrain.config.sft import SftConfig
from posttrain.errors import ConfigError

ROOT = Path(__file__).parents[2]
# the scripts that take a recipe; others look at or move what is there
STAGES = sorted(p for p in (ROOT / "scripts").glob("[!_]*.py") if "recipe_parser(" in p.read_text())


class Recipe(Strict):
    out: str
    seed: int = 1


@pytest.mark.parametrize("order", ["F -d out=x seed=3", "F out=x -d seed=3", "out=x F seed=3 -d"])
def test_overrides_before_between_and_after_options(tmp_path: Path, order: str):
    file = tmp_path / "recipe.yaml"
    file.write_text("seed: 1\n")
    options = {"F": f"--config={file}", "-d": "--dry-run"}
    argv = [options.get(word, word) for word in order.split()]
    recipe, options = parse_recipe(recipe_parser("Write."), Recipe, argv)
    assert (recipe.out, recipe.seed, options.dry_run) == ("x", 3, True)


def test_without_a_recipe_the_shipped_ones_of_the_stage_are_named(capsys):
    parser = recipe_parser("Write.")
    parser.prog = "posttrain sft"
    with pytest.raises(SystemExit):
        parse_recipe(parser, Recipe, ["out=x"])
    message = " ".join(capsys.readouterr().err.split())
    assert "one-gpu/sft, " in message
    assert "tiny/sft, " in message


@pytest.mark.parametrize("script", STAGES, ids=lambda path: path.stem)
def test_every_stage_takes_the_order_of_the_readme(script: Path):
    module = importlib.import_module(f"scripts.{script.stem}")
    # read as far as the recipe, which is not there: the arguments themselves were accepted
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        module.main(["--config", "missing.yaml", "out=runs/mine", "--dry-run", "seed=1"])


def test_an_error_under_torchrun_is_printed_once_and_stands_in_its_report(
    tmp_path: Path, monkeypatch
):
    def main() -> None:
        raise ConfigError("out: missing")

    printed = []
    for rank in "10":
        report = tmp_path / "attempt_0" / rank / "error.json"
        report.parent.mkdir(parents=True)
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(report))
        with pytest.raises(SystemExit) as ended:
            run_command(main)
        printed.append(ended.value.code)
        assert "out: missing" in json.loads(report.read_text())["message"]
    assert printed == ["ConfigError: out: missing", 1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="macOS has no /dev/full")
def test_output_to_a_full_disk_is_one_line():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "scripts", "--list"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=full, stderr=-1, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("No space left")


def test_output_that_nobody_reads_ends_a_command_without_a_word():
    read, write = os.pipe()
    os.close(read)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "scripts", "--recipes"]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert not done.stderr


def test_a_mistake_under_launch_is_one_line_of_two_processes():
    command = [
        *(sys.executable, "scripts", "launch", "--config_file", "accelerate/cpu-2"),
        *("sft", "--config", "tiny/sft", "trainer.learning_rat=1"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "did you mean 'trainer.learning_rate'?" in line
    assert not done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--learning_rate=1e-4"], "--learning_rate is no option: .*: trainer.learning_rate=1e-4$"),
        (["--learning-rate", "1e-4"], "--learning-rate is .*: trainer.learning_rate=1e-4$"),
        (["--trainer.learning_rate", "1e-4"], "dashes: trainer.learning_rate=1e-4$"),
        (["--outt=x"], ": out=x$"),
        (["--zzzz"], r"as key\.path=value"),
        (["--dryrun"], r"did you mean '--dry-run'\?"),
        (["--print_config"], r"did you mean '--print-config'\?"),
    ],
)
def test_a_key_given_as_an_option_is_answered_with_its_place(arguments: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        parse_recipe(recipe_parser(""), SftConfig, ["--config", "tiny/sft", *arguments])
