"""RLVR whose verifiers ask a judge: labels become rewards, failures leave samples unscored or stop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_builders.prompts.profile import read_profile
from posttrain.runs import read_artifact
from tests.training.forks import Ended
from tests.training.methods import script
from tests.training.rl.conftest import command, write_recipes, write_sources
from tests.training.rl.servers import judge_server, label
from tests.training.tiny import log_rows, rollout_groups

ITEM = "Is it short?"
UNREADABLE = 90  # of 256 labels


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy, rows of both judged environments, their profile, and a recipe without a judge."""
    root = tmp_path_factory.mktemp("judged")
    rubric = {"rubric": [{"question": ITEM, "pass_criteria": "YES"}]}
    rows = {"equivalence": {"gold": "w1 w2"}, "rubric": {"metadata": rubric}}
    each = {
        name: {"format": "environment", "environment": name, "row": {"environment": name, **row}}
        for name, row in rows.items()
    }
    domains = {name: {"ratio": 1, "max_failure_rate": 0.9} for name in rows}
    keys: dict[str, Any] = {"max_epochs": 2, "domains": domains}
    write_recipes(root, write_sources(root, 12, each), max_tokens=48, **keys)
    with judge_server(UNREADABLE, answer=label) as (url, _):
        script("profile_prompts").main(["--config", str(root / "profile.yaml"), judge(url)])
    return root


def judge(url: str) -> str:
    backend = {"kind": "chat", "url": url, "model": "judge", "retries": 0}
    return f"judge={json.dumps({'backend': backend, 'retries': 0, 'thinking': False})}"


def run(root: Path, out: Path, *keys: str, check: bool = True) -> Ended:
    keys = (f"out={out}", "trainer.max_steps=2", *keys)
    return command("rlvr", root / "rlvr.yaml", *keys, check=check)


def rollouts_of(out: Path) -> Iterator[tuple[str, dict[str, Any], dict[int, dict[str, Any]]]]:
    for group in rollout_groups(out):
        judgements = {row["of"]: row for row in group["judgements"]}
        for rollout in group["rollouts"]:
            yield group["prompt"]["source"], rollout, judgements


def test_labels_are_the_rewards_and_a_label_that_cannot_be_read_is_none(root: Path):
    assert any(rate.unscored.get("verifier_error") for rate in read_profile(root / "profile").rates)
    with judge_server(UNREADABLE, answer=label) as (url, requests):
        run(root, root / "trained", judge(url))
        rewards: dict[str, set[float | None]] = {"equivalence": set(), "rubric": set()}
        # what looks like a part of the judge's frame is quoted by backslashes
        shown = "\n".join(requests).replace("\\", "")
        for source, rollout, judgements in rollouts_of(root / "trained"):
            own = judgements[rollout["index"]]
            rewards[source].add(rollout["reward"])
            unscored = rollout["reward"] is None
            assert unscored == (own.get("failure") == "verifier_error")
            assert rollout["in_loss"] <= (not unscored)
            if rollout["finish"] != "stop" or not rollout["answer"].strip():
                assert rollout["reward"] == 0.0  # for which no judge is asked
            elif "word for word" not in own["explanation"]:
                assert rollout["answer"].strip().replace("\\", "") in shown
        assert all(own >= {0.0, 1.0} for own in rewards.values())
        assert None in rewards["equivalence"] | rewards["rubric"]


def test_a_judge_that_is_down_stops_the_step_and_the_command_goes_on(root: Path, tmp_path: Path):
    limit = "domains.rubric.max_failure_rate=0.2"
    with judge_server(UNREADABLE, answer=label, down=ITEM) as (url, _):
        ended = run(root, tmp_path / "out", judge(url), limit, check=False)
        assert ended.codes == [1]
        last = ended.text.splitlines()[-1]
        assert limit.partition("=")[0] in last
        assert "service" in last
        # a limit above the share lets the step go on, with the samples unscored
        run(root, tmp_path / "lenient", judge(url), limit.replace("0.2", "0.99"))
    log = log_rows(tmp_path / "lenient", of="rollouts")[0]
    assert log["domain/rubric/unscored_service"] == log["domain/rubric/unscored"] > 0.2
    assert "domain/equivalence/unscored_service" not in log
    with judge_server(UNREADABLE, answer=label) as (url, _):
        run(root, tmp_path / "out", judge(url), limit.replace("0.2", "0.9"))
        if not (root / "trained").is_dir():
            run(root, root / "trained", judge(url))
    assert read_artifact(tmp_path / "out").digest == read_artifact(root / "trained").digest


def test_without_a_judge_nothing_is_trained(root: Path, tmp_path: Path):
    ended = run(root, tmp_path / "out", check=False)
    assert ended.codes == [1]
    assert "needs a judge model" in ended.text.splitlines()[-1]
