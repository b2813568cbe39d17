"""`scripts/rlhf.py` with a judge behind a server that lies in this process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.runs import read_artifact
from tests.training.forks import Ended
from tests.training.methods import chats
from tests.training.rl.conftest import command
from tests.training.rl.policy import raw_recipe, write_policy
from tests.training.rl.servers import judge_server
from tests.training.tiny import rollout_groups


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 steps of 4 prompts × 4 rollouts, both orders: 32 questions a step."""
    root = tmp_path_factory.mktemp("rlhf")
    raw = raw_recipe(write_policy(root / "policy"), Path("unset"), {"save_steps": 1})
    raw |= {
        "prompts": [chats(root, 16)],
        "settings": [{"name": "rlhf", "thinking": 0.0}],
        "prompts_per_step": 4,
        "judge": {
            "models": [
                {"backend": {"kind": "chat", "url": "unset", "model": "stub"}, "layout": "compact"}
            ],
            "retries": 0,
        },
        "pairing": {"strategy": "both_orders"},
    }
    raw["trainer"]["per_device_train_batch_size"] = 4
    path = root / "rlhf.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def run(recipe: Path, url: str, out: Path, *keys: str, **options: Any) -> Ended:
    return command(
        "rlhf", recipe, f"out={out}", f"judge.models.0.backend.url={url}", *keys, **options
    )


def test_killed_while_it_judges_it_asks_for_what_is_missing_and_ends_the_same(
    recipe_file: Path, tmp_path: Path
):
    """A tenth of the judgements fail: training goes on, and nothing stands in for them."""
    one, two = tmp_path / "one", tmp_path / "two"
    with judge_server(failing=26) as (url, requests):
        run(recipe_file, url, one)
        undisturbed = list(requests)
        requests.clear()
        killed = run(recipe_file, url, two, killed="votes:40", check=False)
        assert killed.codes == [-9]
        before = list(requests)
        ended = run(recipe_file, url, two)
    assert re.search(r"^truncated +\d\.\d{3} → \d\.\d{3}$", ended.text, re.MULTILINE)
    assert set(requests) == set(undisturbed)
    # what was under way when it was killed is asked again, what was kept is not
    assert len(requests) - len(undisturbed) < len(before)
    assert read_artifact(one).digest == read_artifact(two).digest
    # rewards are what their parts say; a rollout that no verdict speaks of has none
    failed = scored = 0
    for group in rollout_groups(one):
        judged = [row for row in group["judgements"] if not row["failed"]]
        failed += len(group["judgements"]) - len(judged)
        spoken_of = {row[side] for row in judged for side in ("first", "second")}
        for rollout in group["rollouts"]:
            parts = rollout["parts"]
            assert (rollout["reward"] is not None) == (rollout["index"] in spoken_of)
            if rollout["reward"] is not None:
                scored += 1
                names = ("base", "reasoning_length", "answer_length", "reasoning_bonus")
                total = sum(parts[name] for name in (*names, "answer_bonus"))
                assert rollout["reward"] == pytest.approx(total)
    assert failed > 0
    assert scored > 40


def test_with_lag_a_killed_run_asks_its_judge_nothing_twice(recipe_file: Path, tmp_path: Path):
    """Killed while step 2 trains; step 3 has been judged, behind the last checkpoint."""
    keys = ("rollouts={engine: in_process, lag: 1}",)
    with judge_server() as (url, requests):
        run(recipe_file, url, tmp_path / "whole", *keys)
        undisturbed = sorted(requests)
        requests.clear()
        out = tmp_path / "killed"
        assert run(recipe_file, url, out, *keys, killed="train:1", check=False).codes == [-9]
        run(recipe_file, url, out, *keys)
    assert sorted(requests) == undisturbed
    assert read_artifact(out).digest == read_artifact(tmp_path / "whole").digest


def test_a_judge_that_mostly_fails_stops_the_run(recipe_file: Path, tmp_path: Path):
    with judge_server(failing=154) as (url, _):
        failed = run(recipe_file, url, tmp_path / "out", check=False)
    assert failed.codes == [1]
    assert "max_failure_rate" in failed.text.splitlines()[-1]
    assert "Traceback" not in failed.text
    assert not (tmp_path / "out" / "manifest.json").exists()
    # once the judge answers, the same command asks again for what failed, and finishes
    with judge_server() as (url, _):
        run(recipe_file, url, tmp_path / "out")
    assert (tmp_path / "out" / "manifest.json").exists()


def test_a_judge_that_is_down_stops_the_run_before_a_rollout(recipe_file: Path, tmp_path: Path):
    """Not a dry run, which asks no judge."""
    no_waiting = "judge.models.0.backend.wait=0"
    down = run(recipe_file, "http://127.0.0.1:9/v1", tmp_path / "out", no_waiting, check=False)
    assert down.codes == [1]
    assert "judge.models.0.backend.url http://127.0.0.1:9/v1" in down.text.splitlines()[-1]
    assert "Traceback" not in down.text
    assert not (tmp_path / "out" / "timing.jsonl").exists()
    assert not (tmp_path / "out" / "rollouts").exists()


def test_a_dry_run_plans_and_writes_nothing(recipe_file: Path, tmp_path: Path):
    planned = run(recipe_file, "http://127.0.0.1:9/v1", tmp_path / "out", "--dry-run")
    assert "4 prompts × 4 = 16 rollouts on 1 process(es)" in planned.text
    assert "about" in planned.text
    assert not (tmp_path / "out").exists()
