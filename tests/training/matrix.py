"""Short runs of every method under every sharding, compared with one process, killed and resumed.

cells = Cells(tmp_path)
cells.run("fsdp2", "hybrid", lora=False, method="sft", kill=True)
→ Result(loss=4.8e-07, weight=1.3e-06, resumed=True)
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM

from posttrain.config.distill import DistillConfig
from posttrain.runs import read_artifact
from posttrain.training.dpo.stage import DpoStage
from posttrain.training.rl.stage import GroupStage
from posttrain.training.sft.stage import SftStage
from posttrain.training.trainer import Resumable
from tests.training.conftest import sft_recipe
from tests.training.dpo import recipe as dpo
from tests.training.dpo.pairs import make_pairs, write_pairs
from tests.training.forks import forked
from tests.training.rl import distilling
from tests.training.rl.distilling import write_teacher
from tests.training.rl.policy import (
    Scripted,
    make_prompts,
    make_recipe,
    words_of,
    write_policy,
)
from tests.training.tiny import losses, write_artifact

SHARDINGS = ("ddp", "zero2", "zero3", "fsdp2")
MODELS = ("attention", "hybrid")
# `full` is distillation with the exact reverse KL
METHODS = ("sft", "dpo", "grpo", "distill", "full")
STEPS = 2


@dataclass(frozen=True)
class Result:
    """One cell of the matrix: differences from one process, and the killed run's bytes."""

    loss: float
    weight: float
    resumed: bool


@dataclass(frozen=True)
class Distillation:
    """A stage that opens its teachers in the process that runs it."""

    recipe: DistillConfig

    def run(self, *, dry_run: bool) -> None:
        distilling.distil(self.recipe, dry_run=dry_run)


class Cells:
    """Runs of one matrix, and the data and models that they share."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.packs = write_artifact(root / "packs", packs=STEPS * 8, held_out=0)
        self.pairs = write_pairs(root / "pairs", make_pairs(STEPS * 8))
        self.policies = {model: write_policy(root / model, model) for model in MODELS}
        self.teachers = {
            model: {
                name: write_teacher(root / f"{model}-{name}", policy, moved=moved)
                for name, moved in (("first", 0.05), ("second", 0.1))
            }
            for model, policy in self.policies.items()
        }
        self.alone = cache(self._alone)

    def stage(self, method: str, model: str, lora: bool, sharding: str | None, out: Path) -> Any:
        """A training stage; `sharding` None: of one process. Each step is saved."""
        sharded, policy = sharding not in (None, "ddp"), self.policies[model]
        trainer: dict[str, Any] = {
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "max_steps": STEPS,
            "per_device_train_batch_size": 4 if sharding is None else 2,
            "save_strategy": "steps",
            "save_steps": 1,
            "warmup_steps": 0,
        }
        if sharded:
            trainer |= {"use_cpu": False, "accelerator_config": {"use_configured_state": True}}
        preset = {"attention": "attention_mlp", "hybrid": "nemotron_h"}[model]
        keys: dict[str, Any] = {
            "adapter": {"preset": preset, "rank": 4} if lora else None,
            "launch": {"sharding": sharding if sharded else "none"},
        }
        if method == "sft":
            trainer |= {"gradient_accumulation_steps": 2, "num_train_epochs": None}
            return SftStage(sft_recipe(self.packs, policy, out, trainer, **keys))
        if method == "dpo":
            return DpoStage(dpo.make_recipe(self.pairs, policy, out, trainer, **keys))
        keys |= {
            "sampling": {"max_tokens": 4},
            "moe": {"bias_update_rate": 0.0 if lora else 0.001},
        }
        if method in ("distill", "full"):
            keys["objective"] = "full" if method == "full" else "sampled"
            teachers = {name: {"path": str(path)} for name, path in self.teachers[model].items()}
            return Distillation(
                distilling.make_recipe(policy, out, trainer, teachers=teachers, **keys)
            )
        keys["prompts_per_step"] = 4
        recipe = make_recipe(policy, out, trainer, **keys)
        return GroupStage(recipe, prompts=make_prompts(4 * STEPS), reward=Scripted(words_of))

    def _alone(self, method: str, model: str, lora: bool) -> Path:
        out = self.root / f"one-{method}-{model}-{lora}"
        stage = self.stage(method, model, lora, None, out)
        forked(lambda: stage.run(dry_run=False))
        return out

    def run(self, sharding: str, model: str, lora: bool, method: str, *, kill: bool) -> Result:
        """One cell."""
        name = f"{sharding}-{method}-{model}-{lora}"
        out, killed = self.root / name, self.root / f"{name}-killed"
        kind = {"processes": 2, "sharding": None if sharding == "ddp" else sharding}

        def go(where: Path) -> Callable[[], Any]:
            return lambda: self.stage(method, model, lora, sharding, where).run(dry_run=False)

        forked(go(out), **kind)
        alone = self.alone(method, model, lora)
        pairs = list(zip(losses(out), losses(alone), strict=True))
        assert len(pairs) == STEPS
        a, b = (AutoModelForCausalLM.from_pretrained(run).state_dict() for run in (out, alone))
        apart = max(float((a[key] - b[key]).abs().max()) for key in b)
        if kill:
            ended = forked(lambda: dying_at_step_1(go(killed)), check=False, **kind)
            assert ended.codes[0] == -signal.SIGKILL, ended.text[-3000:]
            assert list(killed.glob("resume/checkpoint-1/complete.json"))
            forked(go(killed), **kind)
        same = kill and read_artifact(killed).digest == read_artifact(out).digest
        return Result(max(abs(x - y) for x, y in pairs), apart, same)


def dying_at_step_1(run: Callable[[], Any]) -> None:
    """Run a stage whose processes kill themselves, as `kill -9` would, after the first step."""

    def dying(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super(Resumable, self).training_step(*args, **kwargs)

    Resumable.training_step = dying  # type: ignore[method-assign]
    run()
