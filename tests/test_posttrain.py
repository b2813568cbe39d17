"""The command `posttrain`: stages are discovered, recipes are named, mistakes name the nearest."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import psutil
import pytest

from posttrain.config.recipe_files import RECIPES, recipe_file, recipe_names
from posttrain.errors import ConfigError
from scripts import __main__ as command

SCRIPTS = Path(__file__).parents[1] / "scripts"


def test_a_script_is_listed_by_its_first_sentence_without_being_run(tmp_path, capsys, monkeypatch):
    command.dispatch(["--list"])
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines.keys() == {path.stem for path in SCRIPTS.glob("[!_]*.py")}
    assert [stage for stage, text in lines.items() if not text.endswith(".")] == []
    own = tmp_path / "own.py"
    own.write_text('"""Do what is\nneeded. More follows."""\nraise SystemExit\n')
    monkeypatch.setattr(command, "STAGES", {"own": own})
    command.dispatch(["--list"])
    assert capsys.readouterr().out.split(maxsplit=1) == ["own", "Do what is needed.\n"]


@pytest.mark.parametrize("arguments", [["stf"], ["launch", "stf"], ["sft", "--config", "tiny/stf"]])
def test_a_mistake_names_the_nearest_or_the_way(arguments: list[str], monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    with pytest.raises(ConfigError, match=r"'sft'|'tiny/sft'|launch --config_file"):
        command.dispatch(arguments)


def test_an_interrupted_launch_ends_when_its_process_has(monkeypatch):
    started: list[subprocess.Popen[str]] = []

    def launch(_: Namespace) -> None:
        code = (  # CI may have interrupts ignored
            "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); "
            "print('begun', flush=True); signal.pause()"
        )
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        raise KeyboardInterrupt

    def children(_: psutil.Process) -> list[psutil.Process]:  # not those of other tests
        return [psutil.Process(process.pid) for process in started]

    monkeypatch.setattr("accelerate.commands.launch.launch_command", launch)
    monkeypatch.setattr("psutil.Process.children", children)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("posttrain.training.launcher.PATIENCE", 0)
    with pytest.raises(SystemExit) as ended:
        command.dispatch(["launch", "sft", "--config", "tiny/sft"])
    assert ended.value.code == 130
    assert not psutil.pid_exists(started[0].pid)


def test_names_are_of_files_and_a_path_wins(tmp_path, monkeypatch):
    assert all(recipe_file(name).is_file() for name in recipe_names())
    monkeypatch.chdir(tmp_path)
    assert recipe_file("tiny/sft") == RECIPES / "tiny" / "sft.yaml"
    own = tmp_path / "tiny" / "sft"
    own.parent.mkdir()
    own.write_text("")
    assert recipe_file("tiny/sft") == Path("tiny/sft")


def test_every_stage_stands_in_one_group_of_the_help(capsys):
    grouped = [stage for stages in command.GROUPS.values() for stage in stages]
    assert sorted(grouped) == sorted(command.STAGES)
    command.dispatch([])
    printed = capsys.readouterr().out
    assert all(f"\n  {stage} " in printed for stage in grouped)
    command.dispatch(["--version"])
    assert capsys.readouterr().out.startswith("posttrain 0.")


def test_the_package_runs_as_a_module(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["posttrain", "--version"])
    runpy.run_module("posttrain", run_name="__main__")
    assert capsys.readouterr().out.startswith("posttrain 0.")


# how a shell is made to complete words: the script, then what the shell would do at the tab key
COMPLETE = {
    "bash": "COMP_WORDS=({words}); COMP_CWORD={last}; _posttrain; "
    "printf '%s\\n' \"${{COMPREPLY[@]}}\"",
    # outside of its editor there is no compadd; this one has the prefix do its work
    "zsh": "compadd() {{ print -l -- ${{(M)@:#$PREFIX*}} }}; _files() {{ : }}; words=({words}); "
    "CURRENT={last}+1; PREFIX=$words[CURRENT]; _posttrain",
    "fish": "complete -C (string join -- ' ' {words})",
}


@pytest.mark.parametrize("shell", COMPLETE)
def test_shells_complete_stages_recipes_and_keys(shell: str, tmp_path, capsys):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    command.dispatch(["completion", shell])
    script = tmp_path / f"completion.{shell}"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "posttrain").write_text(f'#!/bin/sh\nexec {sys.executable} "{SCRIPTS}" "$@"\n')
    (tmp_path / "posttrain").chmod(0o755)

    def completed(*words: str) -> list[str]:
        listed = " ".join(f"'{word}'" for word in ("posttrain", *words))
        complete = COMPLETE[shell].format(words=listed, last=len(words))
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        environment |= {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
        done = subprocess.run(
            [shell, "-c", f"source {script}; {complete}"],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
        )
        return done.stdout.split()

    assert completed("build_s") == ["build_sft"]
    assert "tiny/sft" in completed("sft", "--config", "tiny/s")
    assert completed("sft", "trainer.learning_r") == ["trainer.learning_rate="]
    assert completed("sft", "--dr") == ["--dry-run"]
    assert {*completed("chat", "--top")} == {"--top-p", "--top-k"}
    with pytest.raises(ConfigError, match="completion takes a shell: bash, zsh, fish"):
        command.dispatch(["completion", "tcsh"])


def test_a_launch_that_cannot_start_is_one_sentence(monkeypatch):
    from posttrain.training.launcher import run_launcher

    monkeypatch.setattr("posttrain.training.launcher.find_spec", lambda _: None)
    with pytest.raises(
        ConfigError, match=r"zero2.yaml shards with DeepSpeed, .*posttrain\[deepspeed\]"
    ):
        run_launcher(["--config_file", "accelerate/zero2", "sft.py"])
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    monkeypatch.setattr("posttrain.training.launcher.default_config_file", "/nowhere")
    for options in (["--num_processes", "2"], ["--cpu", "--num_processes", "2"]):
        with pytest.raises(ConfigError, match=r"no GPU here.*accelerate/cpu-2"):
            run_launcher([*options, "sft.py"])
