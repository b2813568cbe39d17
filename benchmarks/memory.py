"""The memory plan of training: against the measured peak of small runs, and at the paper's size.

    python -m benchmarks memory [--only 0 3] [--paper]

Each small run trains for four steps on the CPU in processes of its own: DDP writes to its buckets
for good from the third on. Measured is the largest resident size of the first process, as the
kernel notes it, above that of the same run with a tiny model, whose memory is the process's own.
`--paper` prints plans of the shape of Nemotron 3 Nano, from the numbers of its public config,
without weights.
"""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from benchmarks import COMMAND
from posttrain.config.dpo import DpoConfig
from posttrain.config.grpo import GroupTraining
from posttrain.config.load import validate
from posttrain.config.sft import SftConfig
from posttrain.models.load import build_model
from posttrain.training.activations import (
    RolloutShape,
    StepShape,
    measure_step,
    rollout_bytes,
)
from posttrain.training.dpo.stage import DpoStage
from posttrain.training.launch import Launched
from posttrain.training.plan import MemoryPlan, model_size, state_bytes, whole_bytes
from posttrain.training.rl.stage import GroupStage
from posttrain.training.sft.stage import SftStage
from tests.models.tiny import TINY_ATTENTION, TINY_HYBRID
from tests.training.dpo.pairs import make_pairs, write_pairs
from tests.training.forks import forked
from tests.training.rl.policy import Scripted, make_prompts, words_of, write_policy
from tests.training.tiny import write_artifact

# freed memory goes back to the system at once, so that the resident size is what is in use
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
GIB = 1 << 30
MIB = 1 << 20
ATTENTION = TINY_ATTENTION | {
    "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "tie_word_embeddings": False,
}  # fmt: skip
HYBRID = TINY_HYBRID | {
    "hidden_size": 384, "intermediate_size": 1024, "mamba_num_heads": 12, "mamba_head_dim": 64,
    "moe_intermediate_size": 512, "moe_shared_expert_intermediate_size": 512,
    "num_attention_heads": 6, "head_dim": 64, "n_routed_experts": 8,
}  # fmt: skip
DEEP = ATTENTION | {"hidden_size": 320, "intermediate_size": 960, "num_hidden_layers": 10,
    "num_attention_heads": 5, "num_key_value_heads": 5, "tie_word_embeddings": True,
}  # fmt: skip
WIDE = HYBRID | {"hidden_size": 640, "num_attention_heads": 10, "n_routed_experts": 4}
SHAPES = {"attention": ATTENTION, "hybrid": HYBRID, "deep": DEEP, "wide": WIDE}
LORA: dict[str, Any] = {"adapter": {"rank": 16, "preset": "attention_mlp"}}
# method, model, more keys, more of the trainer, sharding
RUNS: list[tuple[str, str, dict[str, Any], dict[str, Any], str | None]] = [
    ("sft", "attention", {}, {}, None),
    ("sft", "attention", LORA, {}, None),
    ("sft", "hybrid", {}, {"gradient_checkpointing": True, "gradient_accumulation_steps": 2}, None),
    ("dpo", "attention", {}, {}, None),
    ("grpo", "attention", {}, {}, None),
    ("sft", "attention", {}, {}, "fsdp2"),
    ("sft", "hybrid", {}, {}, "zero3"),
    ("sft", "attention", {}, {}, "ddp"),
    ("sft", "deep", LORA, {}, "fsdp2"),
    ("dpo", "deep", {}, {}, "zero2"),
    ("sft", "wide", {}, {"gradient_accumulation_steps": 2}, "fsdp2"),
    ("grpo", "deep", {}, {}, "zero3"),
    ("dpo", "wide", {}, {"gradient_checkpointing": True}, "fsdp2"),
    ("sft", "deep", {}, {}, "zero3"),
]


def make_stage(root: Path, run: tuple[Any, ...], out: Path) -> Any:
    """The stage of a run."""
    method, model, keys, trainer, sharding = run
    shared = {
        "learning_rate": 1e-4,
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    if sharding not in (None, "ddp"):
        shared |= {"use_cpu": False, "accelerator_config": {"use_configured_state": True}}
    raw: dict[str, Any] = {
        "out": str(out), "model": {"path": str(root / model)}, "trainer": shared | trainer, **keys,
    }  # fmt: skip
    if method == "sft":
        return SftStage(validate(raw | {"data": str(root / "packs")}, SftConfig, where="bench"))
    if method == "dpo":
        raw |= {"data": str(root / "pairs"), "batch": 8, "max_epochs": 8}
        raw["trainer"]["per_device_train_batch_size"] = 8 if sharding is None else 4
        return DpoStage(validate(raw, DpoConfig, where="bench"))
    raw |= {
        "prompts_per_step": 4,
        "max_epochs": 2,
        "num_generations": 8,
        "sampling": {"max_tokens": 96},
        "loss": {"overlong": "train"},
        "guard": {name: {} for name in ("truncated", "zero_variance", "entropy", "length")},
    }
    raw["trainer"]["per_device_train_batch_size"] = 8
    recipe = validate(raw, GroupTraining, where="bench")
    return GroupStage(recipe, prompts=make_prompts(8), reward=Scripted(words_of))


def write_inputs(root: Path) -> None:
    """Data, and models of some ten million parameters."""
    write_artifact(root / "packs", packs=8, capacity=512, held_out=0)
    write_pairs(root / "pairs", make_pairs(8, longest=60))
    for name, config in SHAPES.items():
        kind = "hybrid" if config["model_type"] == "nemotron_h" else "attention"
        write_policy(root / f"tiny-{name}", kind)
        write_policy(root / name)
        for weights in (root / name).glob("*.safetensors"):
            weights.unlink()
        torch.manual_seed(0)
        fields = {"vocab_size": 8192, "pad_token_id": 0, "eos_token_id": 2}
        build_model(config | fields).save_pretrained(str(root / name))


def resident(name: str) -> int:
    """Bytes of this process that the kernel states: VmRSS now, VmHWM at the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def measure(root: Path, run: tuple[Any, ...], out: Path) -> tuple[str, int]:
    """Line of the plan, and the growth in bytes of the first process to its peak."""
    growth_file = root / f"{out.name}.bytes"
    sharding = run[4]

    def train() -> None:
        start = resident("VmRSS")
        make_stage(root, run, out).run(dry_run=False)
        if os.environ.get("RANK", "0") == "0":
            growth_file.write_text(str(resident("VmHWM") - start))

    kind = None if sharding == "ddp" else sharding
    ended = forked(train, processes=1 if sharding is None else 2, sharding=kind)
    line = next(line for line in ended.text.splitlines() if line.startswith("memory"))
    return line, int(growth_file.read_text())


def small_runs(only: Sequence[int]) -> list[str]:
    """Rows of a table with the plan and the measurement of each run."""
    lines = ["| run | planned MiB | measured MiB | planned / measured |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TORCH_EXTENSIONS_DIR", f"{folder}/extensions")
        root = Path(folder)
        write_inputs(root)
        for number, run in enumerate(RUNS):
            if number not in only:
                continue
            method, model, keys, trainer, sharding = run
            tiny = (method, f"tiny-{model}", keys, trainer, sharding)
            tiny_line, tiny_growth = measure(root, tiny, root / f"tiny-{number}")
            line, growth = measure(root, run, root / f"out-{number}")
            measured = growth - tiny_growth
            # the interpreter and its libraries are in both plans
            planned = (float(line.split()[1]) - float(tiny_line.split()[1])) * GIB
            name = ", ".join([method, model, *keys, *trainer, sharding or "one process"])
            ratio = planned / measured
            lines.append(f"| {name} | {planned / MIB:.0f} | {measured / MIB:.0f} | {ratio:.2f} |")
            print(lines[-1], line, sep="\n", flush=True)
    return lines


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--only", type=int, nargs="+", default=range(len(RUNS)))
    parser.add_argument("--paper", action="store_true")


def main(options: Namespace) -> None:
    """Measure, or print the plans of the paper's size."""
    if not MALLOC.items() <= os.environ.items():
        arguments = [*COMMAND, *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, **MALLOC})  # noqa: S606 - this command
    torch.set_num_threads(1)
    lines = paper_plans() if options.paper else small_runs(options.only)
    print(*lines, sep="\n")


# https://huggingface.co/nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16/blob/main/config.json
NANO: dict[str, Any] = {
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "vocab_size": 131072, "hidden_size": 2688, "num_attention_heads": 32, "num_key_value_heads": 2,
    "head_dim": 128, "intermediate_size": 1856, "mamba_num_heads": 64, "mamba_head_dim": 64,
    "ssm_state_size": 128, "n_groups": 8, "n_routed_experts": 128, "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
    "max_position_embeddings": 262144, "pad_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
# rows and columns of a micro-batch, its labels, completions at a time
PAPER: dict[str, tuple[int, int, int, RolloutShape | None]] = {
    "SFT, packs of 256K": (1, 262144, 131072, None),
    "SFT, packs of 64K": (1, 65536, 32768, None),
    "DPO, 2 × 8K": (2, 8192, 8192, None),
    "RLHF, 4K + 16K": (1, 20480, 16384, RolloutShape(rows=32, columns=20480)),
}


def paper_plans() -> list[str]:
    """Plans on 8 and 64 GPUs, in bf16 with gradient checkpointing and fused Mamba kernels."""
    lines = [
        "| step | GPUs | sharding | state | gathered | activations | rollouts | peak GiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    config = CONFIG_MAPPING["nemotron_h"](**NANO)
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        size = model_size(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16))
    lines.append(f"| {size.parameters / 1e9:.2f} B parameters | | | | | | | |")
    for step, (rows, columns, labels, rollouts) in PAPER.items():
        shape = StepShape(
            rows, columns, labels, masked=False, dtype=torch.bfloat16, checkpointing=True,
            cpu_head=False, kernels=True, accumulated=True,
        )  # fmt: skip
        cache = rollout_bytes(config, rollouts, torch.bfloat16) if rollouts else 0
        for gpus, sharding in (
            (8, "fsdp2"),
            (8, "zero3"),
            (64, "fsdp2"),
            (64, "zero3"),
            (64, "zero2"),
        ):
            launched = Launched(gpus, sharding, "cuda", "bf16")
            sampling = cache + whole_bytes(size, launched) if rollouts else 0
            at_work = measure_step(config, shape, None, launched)
            plan = MemoryPlan(**state_bytes(size, launched), step=at_work, rollouts=sampling)
            cells = (
                plan.weights + plan.optimizer + at_work.gradients, at_work.gathered,
                at_work.activations, sampling, plan.peak,
            )  # fmt: skip
            numbers = " | ".join(f"{n / GIB:.1f}" for n in cells)
            lines.append(f"| {step} | {gpus} | {sharding} | {numbers} |")
    return lines
