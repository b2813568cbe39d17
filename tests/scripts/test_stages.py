"""A chain of stages: all recipes are checked first, finished stages are passed on, failures end it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from posttrain.errors import ConfigError, PosttrainError
from scripts import stages


@pytest.fixture
def chain(tmp_path: Path) -> Callable[..., str]:
    """Writes a chain of three worlds, whose recipe takes no time to check."""

    def write(*changes: dict[str, Any]) -> str:
        steps = [
            {"stage": "tiny_world", "recipe": "tiny/world", "overrides": [f"out={tmp_path}/{k}"]}
            for k in range(3)
        ]
        for step, change in zip(steps, changes, strict=False):
            step |= change
        file = tmp_path / "chain.yaml"
        file.write_text(yaml.safe_dump({"stages": steps}))
        return str(file)

    return write


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was started; the second stage stops with code 7."""
    commands: list[list[str]] = []

    def run(command: list[str]) -> Any:
        commands.append(command[2:])
        return SimpleNamespace(returncode=7 if f"{len(commands)}" == "2" else 0)

    monkeypatch.setattr(stages.subprocess, "run", run)
    return commands


def test_stages_run_in_order_up_to_one_that_fails(chain, started, tmp_path):
    launch = {"launch": ["--config_file", "accelerate/cpu-2"]}
    with pytest.raises(PosttrainError, match=r"stage 2/3 .* code 7"):
        stages.main(["--config", chain(launch)])
    world = ["tiny_world", "--config", "tiny/world"]
    assert started == [
        ["launch", "--config_file", "accelerate/cpu-2", *world, f"out={tmp_path}/0"],
        [*world, f"out={tmp_path}/1"],
    ]


def test_a_dry_run_lists_all_and_checks_the_first_unfinished(chain, started, tmp_path, capsys):
    for name in ("0/manifest.json", "1/stage.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}")
    stages.main(["--config", chain(), "--dry-run"])
    states = [line.rpartition(": ")[2] for line in capsys.readouterr().out.splitlines()[:3]]
    assert states == ["finished", "goes on", "to do"]
    assert [command[-2:] for command in started] == [[f"out={tmp_path}/1", "--dry-run"]]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"stage": "tiny_word"}, "did you mean 'tiny_world'"),
        ({"stage": "preview"}, "there is no stage 'preview'"),
        ({"overrides": ["sed=3"]}, "did you mean 'seed'"),
        ({"overrides": ["--out", "same"]}, "does not take --out same"),
        ({"overrides": ["out=same"]}, "two stages write to same"),
    ],
)
def test_a_chain_that_cannot_be_begins_nothing(chain, started, change, match):
    with pytest.raises(ConfigError, match=match):
        stages.main(["--config", chain(change, change)])
    assert not started
