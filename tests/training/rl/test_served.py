"""Rollouts by a server that is given the adapter before every batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.config.grpo import GroupTraining
from posttrain.config.load import validate
from posttrain.errors import ConfigError
from posttrain.training.rl.stage import GroupStage
from tests.training.rl.policy import (
    Scripted,
    finish,
    make_prompts,
    make_recipe,
    raw_recipe,
    start,
    words_of,
)
from tests.training.rl.policy_server import policy_server
from tests.training.tiny import log_rows

pytestmark = pytest.mark.usefixtures("bare")

PROMPTS = make_prompts(24)


def served(url: str) -> dict[str, Any]:
    """Rank 4, and steps that are large enough to tell one batch's weights from the next's."""
    return {
        "adapter": {"rank": 4, "preset": "attention"},
        "sampling": {"max_tokens": 8},
        "rollouts": {"engine": "lora_server", "url": url, "retries": 0},
        "trainer": {"max_steps": 4, "learning_rate": 0.05},
    }


def test_each_batch_is_made_with_the_weights_of_its_step(policy: Path, tmp_path: Path):
    with policy_server(policy) as server:
        out = finish(
            make_recipe(policy, tmp_path / "out", **served(server.url)), PROMPTS, Scripted(words_of)
        )
        rows = [row for row in log_rows(out) if "loss" in row]
        assert server.log == [
            "+policy-00000",
            *[
                change
                for n in range(1, 4)
                for change in (f"+policy-{n:05d}", f"-policy-{n - 1:05d}")
            ],
        ]
    # what it says of its samples is what the trainer says of them: the weights are the same
    assert all(row["strayed"] == pytest.approx(1, abs=1e-4) for row in rows)
    assert all(row["failed"] == 0 for row in rows)
    local: dict[str, Any] = served("unset") | {"rollouts": {"engine": "in_process"}}
    alone = finish(make_recipe(policy, tmp_path / "alone", **local), PROMPTS, Scripted(words_of))
    theirs = [row for row in log_rows(alone) if "loss" in row]
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in theirs], abs=1e-4)


def test_weights_that_do_not_arrive_show(policy: Path, tmp_path: Path):
    """A server that keeps to its first adapter: the ratios say so at once."""
    with policy_server(policy) as server:
        load = server._load

        def stale(name: str, path: str) -> tuple[int, str]:
            if not server.loaded:
                return load(name, path)
            server.loaded[name] = next(iter(server.loaded.values()))
            return 200, "added"

        server._load = stale  # type: ignore[method-assign]  # the trouble that is tested
        out = finish(
            make_recipe(policy, tmp_path / "out", **served(server.url)), PROMPTS, Scripted(words_of)
        )
    apart = [row["logp_difference"] for row in log_rows(out) if "loss" in row]
    assert apart[0] == pytest.approx(0, abs=1e-4)
    assert apart[-1] > 0.02


def test_a_server_that_takes_no_adapters_is_refused(policy: Path, tmp_path: Path):
    with policy_server(policy) as server:
        server._load = lambda *_: (404, "Not Found")  # type: ignore[method-assign]  # as above
        recipe = make_recipe(policy, tmp_path / "out", **served(server.url))
        with pytest.raises(ConfigError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"):
            start(recipe, PROMPTS, Scripted()).trainer.train()


def test_all_weights_cannot_be_sent(policy: Path, tmp_path: Path):
    raw = raw_recipe(policy, tmp_path, **served("http://localhost:8001/v1") | {"adapter": None})
    with pytest.raises(ConfigError, match="is sent the adapter: set adapter:"):
        validate(raw, GroupTraining, where="test")


def test_where_the_server_listens_is_no_part_of_the_run(policy: Path, tmp_path: Path):
    for port in (1, 2):
        recipe = make_recipe(policy, tmp_path / "out", **served(f"http://localhost:{port}/v1"))
        GroupStage(recipe, prompts=PROMPTS, reward=Scripted()).open()
