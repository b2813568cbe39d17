"""Test-only launcher: a small run with a scripted reward, which may kill itself as `kill -9` would.

python tests/training/rl/run_grpo.py reward:1 grpo.yaml out=…

rollout:N while batch N is rolled out, reward:N while it is rewarded, train:N behind the first of
its micro-batches, write:N with only a part of its rollouts on disk, checkpoint:N when that
checkpoint is half written, finish when trained and before the manifest; never.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from posttrain.config.grpo import GroupTraining
from posttrain.config.load import load_recipe
from posttrain.errors import PosttrainError
from posttrain.group_rewards import Group, GroupRewards
from posttrain.training import stage as stages
from posttrain.training import trainer as resumable
from posttrain.training.rl import files, step
from posttrain.training.rl import trainer as rl_trainer
from posttrain.training.rl.stage import GroupStage, grpo_arguments
from posttrain.training.stage import RESUME
from tests.training.rl.policy import Scripted, make_prompts, words_of


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Mortal(Scripted):
    """Dies while it rewards batch `at`; notes every prompt that it was asked about."""

    at: int | None = None
    log: Path | None = None

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        given = await super().reward(groups, seed=seed)
        if len(self.requests) - 1 == self.at:
            die()
        return given


def arm(kind: str, at: int, reward: Mortal) -> None:
    trainer: Any = rl_trainer.GroupTrainer
    if kind == "rollout":
        maker: Any = step.StepMaker
        roll_out = maker.roll_out

        async def dying(self: Any, number: int, drawn: Any) -> Any:
            groups = await roll_out(self, number, drawn)
            return die() if number == at else groups

        maker.roll_out = dying
    elif kind == "reward":
        reward.at = at
    elif kind == "train":
        loss = trainer.compute_loss

        def dying_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step == at and self._current.ratios:
                die()
            return loss(self, *args, **kwargs)

        trainer.compute_loss = dying_loss
    elif kind == "write":
        whole_part = files.write_part

        def write_part(file: Path, rows: Any, *, process: int) -> None:
            whole_part(file, rows[: len(rows) // 2], process=process)
            if rows[0]["step"] == at + 1:
                die()
            whole_part(file, rows, process=process)

        rl_trainer.write_part = write_part
    elif kind == "checkpoint":
        whole = resumable.mark_complete

        def mark_complete(checkpoint: Path, progress: Any) -> None:
            if progress.step == at:
                file = checkpoint / "optimizer.pt"
                file.write_bytes(file.read_bytes()[:100])
                die()
            whole(checkpoint, progress)

        resumable.mark_complete = mark_complete
    elif kind == "finish":
        stages.model_card = lambda *_, **__: die()
    else:
        assert kind == "never", kind


def main() -> None:
    torch.set_num_threads(1)
    moment, path, *overrides = sys.argv[1:]
    kind, _, at = moment.partition(":")
    reward = Mortal(words_of)
    arm(kind, int(at or 0), reward)
    recipe = load_recipe(path, GroupTraining, overrides)
    prompts = make_prompts(18)
    out = Path(recipe.out)
    args = grpo_arguments(recipe, out=out / RESUME)
    stage = GroupStage(recipe, prompts=prompts, reward=reward)
    try:
        with args.main_process_first(local=False):
            directory = stage.open()
        stage.train(stage.prepare(args), directory)
    except PosttrainError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print("requests", json.dumps([list(ids) for ids, _ in reward.requests]))


if __name__ == "__main__":
    main()
