"""A tiny policy with a chat template, prompts of its words, and rewards that need no judge."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.config.grpo import GroupTraining
from posttrain.config.load import validate
from posttrain.errors import JudgeError
from posttrain.group_rewards import Failure, Group, GroupRewards
from posttrain.records import Message
from posttrain.rollouts import Completion, Prompt
from posttrain.training.rl.stage import GroupStage
from posttrain.training.stage import PreparedRun
from tests.training.tiny import WORDS, attention_model, hybrid_model, make_tokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|> {{ m.content }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> {% endif %}"
)
TRAINER: dict[str, Any] = {
    "learning_rate": 5e-3,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "max_steps": 3,
    "per_device_train_batch_size": 8,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
}


def write_policy(folder: Path, kind: str = "attention") -> Path:
    """A random model and its tokenizer."""
    model = attention_model() if kind == "attention" else hybrid_model()
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


def make_prompts(count: int, *, longest: int = 6) -> list[Prompt]:
    """Random words."""
    rng, words = random.Random(0), sorted(WORDS)
    return [
        Prompt(
            id=f"prompt-{n}",
            task=f"prompt-{n}",
            setting="made",
            messages=(Message("user", " ".join(rng.choices(words, k=rng.randint(1, longest)))),),
            thinking=False,
        )
        for n in range(count)
    ]


def short(completion: Completion) -> float | None:
    """Fewer words are better."""
    return -float(completion.answer_tokens)


def words_of(completion: Completion) -> float | None:
    """The share of its words that are w5; something a policy can learn within a few steps."""
    words = completion.answer.split()
    return sum(word == "w5" for word in words) / max(len(words), 1)


@dataclass
class Scripted:
    """Rewards each completion by a function; keeps what it was asked."""

    score: Callable[[Completion], float | None] = short
    requests: list[tuple[tuple[str, ...], int]] = field(default_factory=list)
    identity: Mapping[str, Any] = field(default_factory=lambda: {"reward": "scripted"})

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        self.requests.append((tuple(group.prompt.id for group in groups), seed))
        await asyncio.sleep(0)
        return [self._rewards(group) for group in groups]

    def settle(self, requests: int, failures: Sequence[Failure], *, domain: str = "") -> None:
        """Nothing fails here."""

    def _rewards(self, group: Group) -> GroupRewards:
        rewards = tuple(self.score(completion) for completion in group.completions)
        return GroupRewards(
            rewards,
            parts={"base": rewards},
            judgements=({"of": group.prompt.id},),
            counts={"judge_calls": len(rewards)},
        )


class FailsAtTheSecond(Scripted):
    """Ends the run while it rewards the second batch."""

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        if self.requests:
            raise JudgeError("the end")
        return await super().reward(groups, seed=seed)


def raw_recipe(
    policy: Path, out: Path, trainer: dict[str, Any] | None = None, **keys: Any
) -> dict[str, Any]:
    """6 prompts × 4 rollouts of up to 8 tokens, 3 steps."""
    raw: dict[str, Any] = {
        "out": str(out),
        "model": {"path": str(policy)},
        "prompts_per_step": 6,
        "num_generations": 4,
        "sampling": {"max_tokens": 8},
        # a random policy hardly ever stops
        "loss": {"overlong": "train"},
        "guard": {name: {} for name in ("truncated", "zero_variance", "entropy", "length")},
        "trainer": {**TRAINER, **(trainer or {})},
    }
    return {**raw, **keys}


def make_recipe(*args: Any, **kwargs: Any) -> GroupTraining:
    return validate(raw_recipe(*args, **kwargs), GroupTraining, where="test")


def start(recipe: GroupTraining, prompts: Sequence[Prompt], reward: Scripted) -> PreparedRun:
    return GroupStage(recipe, prompts=prompts, reward=reward).prepare()


def finish(recipe: GroupTraining, prompts: Sequence[Prompt], reward: Scripted) -> Path:
    out = GroupStage(recipe, prompts=prompts, reward=reward).run(dry_run=False)
    assert out is not None
    return out
