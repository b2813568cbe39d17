"""Event files of TensorBoard stay beside the checkpoint and are no part of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from posttrain.errors import JudgeError
from posttrain.group_rewards import Group, GroupRewards
from posttrain.runs import read_artifact
from posttrain.training.rl.stage import GroupStage
from tests.training.rl.policy import (
    Scripted,
    finish,
    make_prompts,
    make_recipe,
    words_of,
)

PROMPTS, TENSORBOARD = make_prompts(24), "tensorboard"


@pytest.fixture(autouse=True)
def no_folder_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)


def events_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("events.out.tfevents.*"))


def steps_of(folder: Path, tag: str) -> list[int]:
    """The steps at which a figure was logged."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return [event.step for event in events.Scalars(tag)]


class FailsAtTheSecond(Scripted):
    """Ends the run while it rewards the second batch."""

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        if self.requests:
            raise JudgeError("the end")
        return await super().reward(groups, seed=seed)


def test_they_stay_also_over_a_resume_and_the_digest_is_the_same(policy: Path, tmp_path: Path):
    trainer = {"max_steps": 2, "save_steps": 1, "report_to": "tensorboard"}
    one, two = (make_recipe(policy, tmp_path / name, trainer) for name in ("one", "two"))
    whole = finish(one, PROMPTS, Scripted(words_of))
    assert len(events_of(whole)) == 1
    with pytest.raises(JudgeError, match="the end"):
        finish(two, PROMPTS, FailsAtTheSecond(words_of))
    before = events_of(tmp_path / "two")
    parts = finish(two, PROMPTS, Scripted(words_of))
    assert set(before) < set(events_of(parts))
    for out in (whole, parts):
        assert steps_of(out / TENSORBOARD, "train/reward") == [1, 2]
        manifest = read_artifact(out, kind="checkpoint")
        assert not [entry.path for entry in manifest.files if "tfevents" in entry.path]
    assert read_artifact(whole).digest == read_artifact(parts).digest
    assert GroupStage(two, prompts=PROMPTS, reward=Scripted()).open().complete


def test_a_folder_that_the_user_names_is_taken(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also one in the output directory: what lies in it is no part of the artifact."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "out" / "mine"))
    trainer = {"max_steps": 1, "report_to": "tensorboard"}
    recipe = make_recipe(policy, tmp_path / "out", trainer)
    out = finish(recipe, PROMPTS, Scripted(words_of))
    assert [path.parent.name for path in events_of(tmp_path)] == ["mine"]
    assert not [f.path for f in read_artifact(out).files if f.path.startswith("mine")]
