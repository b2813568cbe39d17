"""A GRPO step against plain TRL: seconds for the same prompts, rollouts, model and settings.

    python -m benchmarks grpo_step                 # a 0.5 B model on a GPU, a tiny one on CPU
    python -m benchmarks grpo_step --checkpoint runs/tiny/sft

The reward is a constant in both arms, so that only making rollouts and training on them is
measured, and everything that comes with a step: metrics, and on our side every rollout on disk and
importance weights. TRL runs with the settings of ours: token-level loss, clip 0.2/0.28, no KL. On
CPU the seconds are the process's own, so that other work on the machine counts little. The arms
take turns, each in a process of its own.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks import COMMAND
from benchmarks.shapes import SHAPES, add_comparison_arguments, random_model, write_figures
from posttrain.config.grpo import GroupTraining
from posttrain.config.load import validate
from posttrain.group_rewards import Failure, Group, GroupRewards
from posttrain.records import Message
from posttrain.rollouts import Prompt
from posttrain.tokens.tokenizer import load_tokenizer
from posttrain.training.rl.stage import GroupStage, grpo_arguments

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of each step behind the first, which warms up, and sampled tokens of a step."""

    arm: str
    steps: list[float]
    tokens: float

    @property
    def seconds(self) -> float:
        """Median seconds of a step."""
        return statistics.median(self.steps)


class Constant:
    """Reward of 1 for all rollouts."""

    @property
    def identity(self) -> dict[str, Any]:
        return {"reward": "constant"}

    async def reward(self, groups: Sequence[Group], *, seed: int) -> list[GroupRewards]:
        return [GroupRewards((1.0,) * len(group.completions)) for group in groups]

    def settle(self, requests: int, failures: Sequence[Failure], *, domain: str = "") -> None:
        """Accept all failures: there are none."""


class Clock(TrainerCallback):
    """Callback that times steps; on a CPU by the CPU seconds of this process."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            self.marks.append(time.perf_counter())
        else:
            self.marks.append(time.process_time())

    @property
    def steps(self) -> list[float]:
        """Seconds of each step but the first."""
        return [end - start for start, end in zip(self.marks, self.marks[1:], strict=False)]


def write_model(folder: Path, shape: str) -> None:
    """Write a random model with a tokenizer of words."""
    words = {"<|pad|>": 0, "<|start|>": 1, "<|end|>": 2}
    words |= {f"w{n}": n for n in range(3, SHAPES[shape]["vocab_size"])}
    raw = Tokenizer(models.WordLevel(words, unk_token="w3"))  # noqa: S106 - a token
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<|pad|>", "bos_token": "<|start|>", "eos_token": "<|end|>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, **special)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(str(folder))
    random_model(shape).save_pretrained(str(folder))


def make_prompts(args: Namespace) -> list[Prompt]:
    """Prompts of random words, as long as questions are."""
    rng = random.Random(0)
    prompts: list[Prompt] = []
    for n in range(args.prompts * args.steps):
        length = max(4, int(rng.gauss(args.prompt_tokens, args.prompt_tokens / 3)))
        text = " ".join(f"w{rng.randrange(3, 1000)}" for _ in range(length))
        prompts.append(Prompt(str(n), str(n), "made", (Message("user", text),), thinking=False))
    return prompts


def shared_arguments(args: Namespace) -> dict[str, Any]:
    """Trainer arguments of both arms."""
    return {
        "max_steps": args.steps,
        "per_device_train_batch_size": args.micro,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "bf16": torch.cuda.is_available(),
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }


def run_ours(args: Namespace, work: Path) -> Result:
    """Run our trainer."""
    raw = {
        "out": str(work),
        "model": {"path": str(args.checkpoint)},
        "prompts_per_step": args.prompts,
        "num_generations": args.generations,
        "sampling": {"max_tokens": args.tokens},
        # a random policy hardly ever stops; TRL trains on such completions
        "loss": {"overlong": "train"},
        "guard": {name: {} for name in ("zero_variance", "truncated", "entropy", "length")},
        "trainer": {**shared_arguments(args), "warmup_steps": 0},
    }
    recipe = validate(raw, GroupTraining, where="benchmark")
    arguments = grpo_arguments(recipe, out=work / "resume")
    stage = GroupStage(recipe, prompts=make_prompts(args), reward=Constant())
    prepared = stage.prepare(arguments)
    clock = Clock()
    prepared.trainer.add_callback(clock)
    prepared.trainer.train()
    rows = [row for row in prepared.trainer.state.log_history if "rollouts" in row]
    tokens = statistics.fmean(row["completion_tokens"] * row["rollouts"] for row in rows)
    return Result("ours", clock.steps, tokens)


def run_trl(args: Namespace, work: Path) -> Result:
    """Run TRL's trainer as it is."""
    tokenizer = load_tokenizer(args.checkpoint)
    tokenizer.padding_side = "left"
    prompts = [[{"role": "user", "content": p.messages[0].content}] for p in make_prompts(args)]
    rollouts = args.prompts * args.generations
    config = GRPOConfig(
        output_dir=str(work),
        num_generations=args.generations,
        max_completion_length=args.tokens,
        gradient_accumulation_steps=rollouts // args.micro,
        epsilon=0.2,
        epsilon_high=0.28,
        beta=0.0,
        loss_type="dapo",
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=False,
        logging_steps=1,
        report_to="none",
        **shared_arguments(args),
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(args.checkpoint),
        reward_funcs=lambda completions, **_: [1.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
    )
    clock = Clock()
    trainer.add_callback(clock)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "completions/mean_length" in row]
    tokens = statistics.fmean(row["completions/mean_length"] * rollouts for row in rows)
    return Result("trl", clock.steps, tokens)


def run_arm(name: str, options: Sequence[str]) -> Result:
    """Run an arm in a process of its own."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [*COMMAND, "grpo_step", *options, "--arm", name, "--out", file.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return Result(**json.loads(Path(file.name).read_text()))


def add_arguments(parser: ArgumentParser) -> None:
    on_gpu = torch.cuda.is_available()
    add_comparison_arguments(parser)
    parser.add_argument("--checkpoint", type=Path, help="the policy; default: random weights")
    parser.add_argument("--prompts", type=int, default=16, help="a step")
    parser.add_argument("--generations", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=256 if on_gpu else 40)
    parser.add_argument("--tokens", type=int, default=1024 if on_gpu else 96, help="new, at most")
    parser.add_argument("--micro", type=int, default=16, help="rollouts a micro-batch")
    parser.add_argument("--steps", type=int, default=4, help="the first one is not counted")
    parser.add_argument("--rounds", type=int, default=3, help="how often the arms take turns")
    parser.add_argument("--arm", choices=["ours", "trl"], help=SUPPRESS)


def main(args: Namespace) -> None:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if args.checkpoint is None:
            args.checkpoint = root / "model"
            write_model(args.checkpoint, args.shape)
        if args.arm:
            run = {"ours": run_ours, "trl": run_trl}[args.arm]
            result = run(args, root / "work")
            args.out.write_text(json.dumps(asdict(result)))
            return
        compare(args)


def compare(args: Namespace) -> None:
    """Run all rounds, and print the ratio of the arms."""
    names = ("checkpoint", "prompts", "generations", "prompt_tokens", "tokens", "micro", "steps")
    options = [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in names]
    results: list[Result] = []
    for _ in range(args.rounds):
        for arm in ("trl", "ours"):
            result = run_arm(arm, options)
            results.append(result)
            print(
                f"{arm:<5} {result.seconds:>7.2f} s a step  {result.tokens:>8,.0f} tokens made  "
                f"{1000 * result.seconds / result.tokens:.3f} ms a token",
                flush=True,
            )
    ratios: list[float] = []
    for trl, ours in zip(results[::2], results[1::2], strict=True):
        ratios.append(ours.seconds / ours.tokens / (trl.seconds / trl.tokens))
    rounds = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    print(f"ours / trl   {statistics.median(ratios):.3f} (of each round: {rounds})")
    write_figures(args.out, results)
