"""Every training method on tiny data, as a command of its own, and the moments at which it dies.

method = write_methods(root, data, policy…)["dpo"]
forked(lambda: method.run(out, "launch.world_size=2", killed="checkpoint:6"))
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

import data_builders.prompts  # noqa: F401 - once here, not in every process
from posttrain.config.grpo import GroupTraining
from posttrain.config.load import load_recipe
from posttrain.group_rewards import Group, GroupRewards
from posttrain.pages.write import TrainingPage
from posttrain.records import message_to_row
from posttrain.training.rl.stage import GroupStage
from reward.judge import judge
from tests.training.conftest import TRAINER
from tests.training.dpo import recipe as dpo
from tests.training.dpo.pairs import make_pairs, write_pairs
from tests.training.rl.policy import Scripted, make_prompts, raw_recipe, words_of, write_policy


def script(name: str) -> ModuleType:
    """A stage's script as a module."""
    return importlib.import_module(f"scripts.{name}")


@dataclass(frozen=True)
class Method:
    """`moments`: where a run is killed, one after the other."""

    name: str
    recipe: Path
    moments: tuple[str, ...]

    def run(self, out: Path, *overrides: str, killed: str = "never") -> None:
        """The whole stage; kills itself, as `kill -9` would, at the moment `killed`.

        To be called in a process of its own: judges save three requests at a time here, so that
        a step has several chunks.
        """
        judge.CHUNK = 3
        reward = Mortal(words_of)
        arm(self.name, killed, reward)
        keys = [f"out={out}", *overrides]
        if self.name == "grpo":
            recipe = load_recipe(self.recipe, GroupTraining, keys)
            stage = GroupStage(recipe, prompts=make_prompts(18), reward=reward)
            stage.run(dry_run=False, page=TrainingPage(out))
        else:
            script(self.name).main(["--config", str(self.recipe), *keys])


def write_methods(root: Path, data: Path, attention: Path) -> dict[str, Method]:
    """Recipes of all methods in `root`.

    Args:
        data: an `sft_data` artifact.
        attention: a checkpoint.
    """
    dropping = root / "dropping"
    shutil.copytree(attention, dropping)
    config = json.loads((dropping / "config.json").read_text())
    (dropping / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.1}))
    # 10 steps in 2 epochs, resumable every 4 steps, epoch 1 kept, logged every 3 steps, evaluated at
    # the start too, dropout
    trainer = {"num_train_epochs": 2, "logging_steps": 3}
    trainer |= {"eval_strategy": "epoch", "eval_on_start": True}
    sft: dict[str, Any] = {
        "data": str(data),
        "out": "unset",
        "model": {"path": str(dropping)},
        "keep_epochs": [1],
        "trainer": TRAINER | trainer | {"save_strategy": "steps", "save_steps": 4},
    }
    # 10 steps of 8 pairs, resumable every 3 steps, logged every 2; mean form, so that the layout
    # could show; the reference in 3 shards
    trainer = {"max_steps": 10, "save_steps": 3, "logging_steps": 2}
    loss = {"sft_form": "mean"}
    pairs = dpo.raw_recipe(
        write_pairs(root / "pairs", make_pairs(40)), attention, Path("unset"),
        trainer | {"per_device_train_batch_size": 4}, max_epochs=2, loss=loss,
    )  # fmt: skip
    # 5 steps of 6 × 4 rollouts from 18 prompts, so that a second epoch begins within a step; 3
    # micro-batches a step, resumable every 2 steps. Mamba, attention and experts whose biases move,
    # and a reference
    grpo = raw_recipe(
        write_policy(root / "hybrid", "hybrid"), Path("unset"), {"max_steps": 5, "save_steps": 2},
        max_epochs=2, loss={"overlong": "train", "kl": 0.05},
    )  # fmt: skip
    recipes = {
        "sft": (sft, ("step:5", "checkpoint:8", "finish")),
        # with a shard of the reference missing, with a checkpoint half written, before the manifest
        "dpo": (pairs, ("shard:1", "checkpoint:6", "finish")),
        # before the first checkpoint, behind it with half of the rollouts on disk, at the end;
        # rl/test_rlvr.py has the other moments of a step
        "grpo": (grpo, ("reward:1", "write:3", "finish")),
        "rlhf": (_rlhf(root), ("votes:9",)),
    }
    methods: dict[str, Method] = {}
    for name, (raw, moments) in recipes.items():
        path = root / f"{name}.yaml"
        path.write_text(yaml.safe_dump(raw))
        methods[name] = Method(name, path, moments)
    return methods


def _rlhf(root: Path) -> dict[str, Any]:
    """4 steps of 4 prompts × 4 rollouts of an adapter from 8 prompts, so that each is met twice;
    hardly any temperature, so that the same answers come again and the same matches are judged in
    two steps."""
    policy = write_policy(root / "policy")
    model = {"backend": {"kind": "transformers"}, "checkpoint": str(policy), "layout": "compact"}
    return raw_recipe(
        policy,
        Path("unset"),
        {"max_steps": 4, "save_steps": 1, "learning_rate": 1e-6, "per_device_train_batch_size": 4},
        prompts=[chats(root, 8)],
        settings=[{"name": "rlhf", "thinking": 0.0}],
        prompts_per_step=4,
        max_epochs=2,
        sampling={"max_tokens": 4, "temperature": 0.004},
        adapter={"rank": 2, "preset": "attention"},
        judge={"models": [model], "retries": 0, "max_failure_rate": 0.6},
        pairing={"strategy": "both_orders"},
    )


def chats(root: Path, count: int) -> dict[str, str]:
    """A source of that many prompts, written to `root`."""
    answer = {"role": "assistant", "content": "w5"}
    rows = [{"messages": [message_to_row(p.messages[0]), answer]} for p in make_prompts(count)]
    (root / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"name": "chats", "format": "chat", "path": str(root / "chats.jsonl")}


# ---- moments ----


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Mortal(Scripted):
    """Dies while it rewards batch `at`."""

    at: int | None = None

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        given = await super().reward(groups, seed=seed)
        if len(self.requests) - 1 == self.at:
            die()
        return given


def arm(method: str, moment: str, reward: Mortal) -> None:
    """Have this process die, e.g. at `checkpoint:6`: when that checkpoint is half written."""
    from posttrain.training import stage, trainer
    from posttrain.training.dpo import reference
    from posttrain.training.dpo.trainer import PairTrainer
    from posttrain.training.rl import step
    from posttrain.training.rl import trainer as rl
    from posttrain.training.sft.trainer import PackedSFTTrainer
    from reward.judge.votes import VerdictCache
    from reward.kept_scores import ScoreStore

    if method == "dpo":
        reference.SHARD_PAIRS = 16  # several shards of these few pairs
    if method == "rlhf":
        _judge_by_seed()
    kind, _, number = moment.partition(":")
    at, votes = int(number or 0), list[int]()

    def cut(checkpoint: Path, progress: Any) -> bool:
        # the weights are there, the optimiser is cut short, the marker is missing
        if due := progress.step == at:
            file = checkpoint / "optimizer.pt"
            file.write_bytes(file.read_bytes()[:100])
        return due

    def half(file: Path, rows: Any, *, process: int) -> bool:
        # with only a part of the rollouts on disk
        if due := rows[0]["step"] == at + 1:
            whole(file, rows[: len(rows) // 2], process=process)
        return due

    def at_step(self: Any, *_: Any, **__: Any) -> bool:
        return self.state.global_step == at

    whole, trainers = rl.write_part, {"sft": PackedSFTTrainer, "dpo": PairTrainer}
    moments: dict[str, tuple[Any, str, Any]] = {
        "step": (trainers.get(method), "training_step", at_step),
        "checkpoint": (trainer, "mark_complete", cut),
        "shard": (reference.ReferenceStore, "write", lambda _, number, **__: number == at),
        "rollout": (step.StepMaker, "roll_out", lambda _, number, *__, **___: number == at),
        # behind the first of the micro-batches
        "train": (rl.GroupTrainer, "compute_loss", lambda s, *_, **__: at_step(s) and s._current.ratios),
        "write": (rl, "write_part", half),
        "votes": (VerdictCache, "add", lambda *_, **__: votes.append(1) or len(votes) > at),
        "scores": (ScoreStore, "add", lambda *_, **__: votes.append(1) or len(votes) > at),
        # it is written, and no step is made
        "plan": (stage.TrainingStage, "train", lambda *_, **__: True),
        "finish": (stage, "write_card", lambda *_, **__: True),
    }  # fmt: skip
    if kind == "reward":
        reward.at = at
    elif kind != "never":
        before(*moments[kind])


def before(owner: Any, name: str, due: Any) -> None:
    """Die before a call for which `due(self or first argument, …)` holds."""
    original = getattr(owner, name)

    def dying(*args: Any, **kwargs: Any) -> Any:
        return die() if due(*args, **kwargs) else original(*args, **kwargs)

    setattr(owner, name, dying)


def _judge_by_seed() -> None:
    """The judge is no model: it answers by its seeds alone, batch-wise, as one in process does."""
    from posttrain.sampling import open as opening
    from posttrain.sampling.sampler import Request
    from reward.judge.prompt import verdict_text
    from reward.judge.verdict import Verdict
    from tests.sampling.scripted import END
    from tests.sampling.scripted import Scripted as ScriptedSampler

    def by_seed(_request: Request, rng: random.Random) -> str:
        verdict = Verdict(rng.randint(1, 5), rng.randint(1, 5), rng.randint(1, 6))
        text = verdict_text(verdict) if rng.random() < 0.95 else "Both are fine."
        return f"hm</think>{text}{END}"

    @contextlib.asynccontextmanager
    async def opened(*_: Any, **__: Any) -> AsyncIterator[ScriptedSampler]:
        yield ScriptedSampler(by_seed)

    setattr(opening, "opened_sampler", opened)  # noqa: B010 - pyright knows the type it had
