"""Resume checkpoints are whole or ignored, and hold the weights of their model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from posttrain.errors import ConfigError, DataError
from posttrain.training.trainer import (
    COMPLETE,
    Progress,
    latest_complete,
    mark_complete,
    remove_broken,
    rotate,
)
from tests.training.rl.policy import Scripted, make_prompts, make_recipe, start

PROMPTS = make_prompts(24)


def test_a_checkpoint_without_the_models_weights_is_refused(policy: Path, tmp_path: Path):
    trainer = start(make_recipe(policy, tmp_path / "out"), PROMPTS, Scripted()).trainer
    name = "model.layers.0.mlp.up_proj.weight"
    with pytest.raises(DataError, match=f"lacks 1 of them .{name}. and has 0 others"):
        trainer._issue_warnings_after_load(SimpleNamespace(missing_keys=[name], unexpected_keys=[]))
    with pytest.raises(DataError, match=r"lacks 0 of them .* and has 1 others"):
        trainer._issue_warnings_after_load(SimpleNamespace(missing_keys=[], unexpected_keys=["x"]))
    # a weight that is tied to one that is there is not lacking
    trainer.model.lm_head.weight = trainer.model.get_input_embeddings().weight
    trainer._issue_warnings_after_load(
        SimpleNamespace(missing_keys=["lm_head.weight"], unexpected_keys=[])
    )


def _checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"x" * step)
    mark_complete(path, Progress(step=step, tokens=1, trained=1, world_size=1))
    return path


def test_checkpoints_are_whole_or_ignored_and_the_newest_stay(tmp_path: Path):
    for step in (5, 9):
        _checkpoint(tmp_path, step)
    cut, unmarked = _checkpoint(tmp_path, 10), _checkpoint(tmp_path, 11)
    (cut / "model.safetensors").write_bytes(b"x")
    (unmarked / COMPLETE).unlink()
    found = latest_complete(tmp_path, world_size=1)
    assert found is not None
    assert found[0].name == "checkpoint-9"
    with pytest.raises(ConfigError, match="written by 1 processes and this run has 2"):
        latest_complete(tmp_path, world_size=2)
    remove_broken(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-5", "checkpoint-9"]
    _checkpoint(tmp_path, 100)
    for keep, left in ((None, 3), (2, 2), (0, 1)):
        rotate(tmp_path, keep=keep)
        steps = sorted(int(p.name.rpartition("-")[2]) for p in tmp_path.iterdir())
        assert steps == [5, 9, 100][-left:]
