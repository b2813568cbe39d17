"""RLHF of an adapter over processes, with a judge in each: the same run, also when it is killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.records import message_to_row
from posttrain.runs import read_artifact
from tests.training.rl.policy import make_prompts, raw_recipe, write_policy
from tests.training.tiny import ROOT, log_rows, run_script, sha

RLHF = "tests/training/rl/killed_rlhf.py"
TWO = (
    *(sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"),
    *("--config_file", "recipes/accelerate/cpu-2.yaml"),
)


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 steps of 4 prompts × 4 rollouts from 8 prompts, so that each is met twice; hardly any
    temperature, so that the same answers come again and the same matches are asked in two steps."""
    root = tmp_path_factory.mktemp("processes")
    rows = [
        {"messages": [message_to_row(prompt.messages[0]), {"role": "assistant", "content": "w5"}]}
        for prompt in make_prompts(8)
    ]
    (root / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    policy = write_policy(root / "policy")
    raw = raw_recipe(
        policy,
        Path("unset"),
        {"max_steps": 4, "save_steps": 1, "learning_rate": 1e-6, "per_device_train_batch_size": 4},
        prompts=[{"name": "chats", "format": "chat", "path": str(root / "chats.jsonl")}],
        settings=[{"name": "rlhf", "thinking": 0.0}],
        prompts_per_step=4,
        max_epochs=2,
        sampling={"max_tokens": 4, "temperature": 0.004},
        adapter={"rank": 2, "preset": "attention"},
        judge={
            "models": [
                {"backend": {"kind": "transformers"}, "checkpoint": str(policy),
                 "layout": "compact"}
            ],
            "retries": 0,
            "max_failure_rate": 0.6,
            "chunk": 3,
        },
        pairing={"strategy": "both_orders"},
    )  # fmt: skip
    path = root / "rlhf.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def run(votes: str, recipe: Path, out: Path, *, processes: int, check: bool = True) -> Any:
    more = (f"launch.world_size={processes}",)
    return run_script(
        RLHF, votes, "scripted", "--config", str(recipe), f"out={out}", *more, check=check,
        launcher=TWO if processes == 2 else (sys.executable,), PYTHONPATH=str(ROOT),
        ACCELERATE_USE_CPU="true",
    )  # fmt: skip


def rollouts(out: Path) -> list[str]:
    return [sha(path) for path in sorted((out / "rollouts").iterdir())]


def judged(out: Path) -> list[Any]:
    """All but the ratios, whose last digits are those of a layout."""
    groups = [
        json.loads(line)
        for file in sorted((out / "rollouts").iterdir())
        for line in file.read_text().splitlines()
    ]
    for group in groups:
        for one in group["rollouts"]:
            one.pop("importance", None)
    return groups


def asked_twice(groups: list[Any]) -> int:
    """Matches that are asked in more than one step."""
    steps: dict[str, set[int]] = {}
    for group in groups:
        answers = [one["answer"] for one in group["rollouts"]]
        for row in group["judgements"]:
            key = json.dumps(
                [group["prompt"]["task"], answers[row["first"]], answers[row["second"]]]
            )
            steps.setdefault(key, set()).add(group["step"])
    return sum(len(found) > 1 for found in steps.values())


def test_processes_and_kills_change_no_reward(recipe_file: Path, tmp_path: Path):
    one, two, killed = tmp_path / "one", tmp_path / "two", tmp_path / "killed"
    run("never", recipe_file, one, processes=1)
    run("never", recipe_file, two, processes=2)
    assert asked_twice(judged(one)) > 0
    assert judged(one) == judged(two)
    for votes in ("9",):
        died = run(votes, recipe_file, killed, processes=2, check=False)
        assert died.returncode != 0
        assert not (killed / "manifest.json").exists()
    run("never", recipe_file, killed, processes=2)
    assert rollouts(killed) == rollouts(two)
    assert log_rows(killed) == log_rows(two)
    assert read_artifact(killed).digest == read_artifact(two).digest
