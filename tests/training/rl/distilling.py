"""Distillation on tiny data: recipes, teachers that differ from the student, and a whole run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from posttrain.config.distill import DistillConfig, TeacherConfig
from posttrain.config.load import validate
from posttrain.group_rewards import Group, GroupRewards
from posttrain.rollouts import Prompt
from posttrain.runs import Counts, Run
from posttrain.training.launch import SPLITS_WEIGHTS, requested_sharding
from posttrain.training.rl.full_objective import full_objective
from posttrain.training.rl.stage import GroupStage, Simulation
from posttrain.training.rl.teachers import Teachers, open_teachers
from reward.distill import DistillationReward
from tests.training.rl.policy import make_prompts, raw_recipe

SOURCE = {"format": "question", "grader": None, "path": "questions.jsonl"}


def make_recipe(policy: Path, out: Path, trainer: Any = None, **keys: Any) -> DistillConfig:
    raw = raw_recipe(policy, out, trainer) | {
        "num_generations": 1,
        "prompts_per_step": 8,
        "prompts": [SOURCE | {"name": "a"}, SOURCE | {"name": "b"}],
        "settings": [{"name": "plain"}],
        "teachers": {"first": {"path": "x"}, "second": {"path": "y"}},
        "routes": {"a": "first", "b": "second"},
    }
    return validate({**raw, **keys}, DistillConfig, where="test")


def prompts_of_two_domains() -> list[Prompt]:
    return [
        replace(prompt, source="ab"[number % 2]) for number, prompt in enumerate(make_prompts(32))
    ]


def write_teacher(folder: Path, policy: Path, *, moved: float) -> Path:
    """The policy with every weight moved at random, as a finished artifact."""
    run = Run.open(folder, kind="checkpoint", config={"moved": moved})
    shutil.copytree(policy, folder, dirs_exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(policy)
    generator = torch.Generator().manual_seed(round(1000 * moved))
    with torch.no_grad():
        for weight in model.parameters():
            weight += moved * torch.randn(weight.shape, generator=generator)
    model.save_pretrained(folder)
    run.finish(counts=Counts(0, 0), files={"model.safetensors": None})
    return folder


class Keeping(DistillationReward):
    """Keeps the groups of the run and their rewards."""

    kept: list[tuple[Group, GroupRewards]]

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        rewards = await super().reward(groups, seed=seed)
        self.kept = [*zip(groups, rewards, strict=True)]
        return rewards


def open_teachers_of(recipe: DistillConfig, stack: contextlib.AsyncExitStack) -> Teachers:
    """Open a recipe's teachers on the CPU, as the script does."""
    is_split = requested_sharding() in SPLITS_WEIGHTS
    return open_teachers(
        recipe.teachers,
        student=recipe.model,
        device=torch.device("cpu"),
        out=Path(recipe.out),
        stack=stack,
        in_memory=recipe.teachers_in_memory,
        student_is_rounded=recipe.simulate is not None,
        processes=int(os.environ["WORLD_SIZE"]) if is_split else 1,
    )


def distil(
    recipe: DistillConfig,
    teachers: dict[str, Path] | None = None,
    *,
    dry_run: bool = False,
    simulation: Simulation | None = None,
) -> tuple[Path, Keeping]:
    """Run a recipe with its teachers, or with others in their place."""
    if teachers is not None:
        configs = {name: TeacherConfig(path=str(path)) for name, path in teachers.items()}
        recipe = recipe.model_copy(update={"teachers": configs})
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        opened = open_teachers_of(recipe, stack)
        reward = Keeping(
            opened.scorers, teacher_of=recipe.teacher_of, max_failure_rate=recipe.max_failure_rate
        )
        stage = GroupStage(
            recipe,
            prompts=prompts_of_two_domains(),
            reward=reward,
            runner=runner,
            method="distill",
            lines=opened.lines,
            frozen=opened.frozen,
            shares=recipe.shares,
            full=full_objective(recipe, opened) if recipe.objective == "full" else None,
            simulation=simulation,
        )
        out = stage.run(dry_run=dry_run)
    return out or stage.out, reward


def mean_reverse_kl(reward: Keeping, student: Any, teacher_of: Mapping[str, Any]) -> torch.Tensor:
    """Mean over the sampled tokens of a step of KL(student ‖ teacher), in float64, with gradient.

    Args:
        teacher_of: source of prompts → its teacher's model.
    """
    total = torch.zeros((), dtype=torch.double)
    tokens = 0
    for group, _ in reward.kept:
        [rollout] = group.completions
        prompt = rollout.prompt_ids or ()
        ids = torch.tensor([[*prompt, *rollout.sampled()[0]]])
        positions = slice(len(prompt) - 1, ids.shape[1] - 1)
        logps_T_V = student(ids).logits[0, positions].double().log_softmax(-1)
        with torch.no_grad():
            teacher_logits_T_V = teacher_of[group.prompt.source](ids).logits[0, positions]
        teacher_T_V = teacher_logits_T_V.double().log_softmax(-1)
        total = total + (logps_T_V.exp() * (logps_T_V - teacher_T_V)).sum()
        tokens += len(logps_T_V)
    return total / tokens
