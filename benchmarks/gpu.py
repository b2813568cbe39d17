"""Checks of a GPU: training, packing, rollouts and QLoRA at small size, in eight minutes.

    python -m benchmarks gpu                       # make gpu-check; without a GPU at tiny size
    python -m benchmarks gpu --only masking,dpo --out gpu.json

Each check is a process of its own with a time limit, so that a crash or a full memory ends only
that check. It passed, failed, or was not possible here, with the reason; the table and the JSON say
which, and with which versions. Model flops utilisation counts 6 flops a parameter and token.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import COMMAND
from benchmarks.options import add_figures_file

# dense bf16 flops a second, from the makers' data sheets
PEAK_FLOPS = {
    "H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12,
    "L4": 121e12, "RTX 4090": 165e12, "RTX 3090": 71e12,
}  # fmt: skip
Figures = dict[str, float | str]


@dataclass(frozen=True, slots=True)
class Check:
    """Check that runs one measurement, a line of the table.

    Attributes:
        gpu: arguments of its measurement on a GPU.
        cpu: arguments on a CPU; None where a CPU cannot run it.
        judge: the measurement's JSON → whether it passed, and the figures to show. Its docstring is
            the condition, shown where the check fails.
        needs_gib: GPU memory that it cannot do without.
    """

    name: str
    measurement: str
    gpu: tuple[str, ...]
    cpu: tuple[str, ...] | None
    judge: Callable[[dict[str, Any]], tuple[bool, Figures]]
    needs_gib: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a check: `passed`, `failed` or `not possible here`, with the reason."""

    name: str
    status: str
    figures: Figures
    reason: str
    seconds: float


def judge_sft(stats: dict[str, Any]) -> tuple[bool, Figures]:
    """Every arm's loss is finite and within 2 % of the padded one, over other micro-batches."""
    arms = {arm["arm"]: arm for arm in stats["arms"]}
    padded = arms["trl padded"]["loss"]
    figures: Figures = {}
    for name, arm in arms.items():
        figures[f"{name} tokens/s"] = arm["tokens_per_second"]
        figures[f"{name} GiB"] = arm["peak_gib"]
        peaks = [flops for device, flops in PEAK_FLOPS.items() if device in stats["device"]]
        if peaks:
            flops = 6 * stats["parameters"] * arm["tokens_per_second"]
            figures[f"{name} MFU"] = flops / peaks[0]
    passed = all(abs(arm["loss"] - padded) <= 0.02 * padded for arm in arms.values())
    return passed, figures


def judge_masking(stats: dict[str, Any]) -> tuple[bool, Figures]:
    """Packed logits equal those of a sequence alone, within the stage's own limit."""
    return bool(stats["held"]), {k: v for k, v in stats.items() if k != "held"}


def judge_dpo(stats: dict[str, Any]) -> tuple[bool, Figures]:
    """All arms train the same pairs from the same weights: the first losses agree within 1 %."""
    first_losses = [arm["losses"][0] for arm in stats["arms"]]
    figures: Figures = {}
    for arm in stats["arms"]:
        figures[f"{arm['arm']} s"] = arm["step_seconds"] + arm["reference_seconds"]
    loss = first_losses[0]
    figures["first loss"] = loss
    return all(abs(other - loss) <= 0.01 * loss for other in first_losses), figures


def judge_grpo(stats: dict[str, Any]) -> tuple[bool, Figures]:
    """Both arms finished their steps; milliseconds a token that was sampled and trained."""
    figures: Figures = {}
    for arm in stats["arms"]:
        median = sorted(arm["steps"])[len(arm["steps"]) // 2]
        figures[f"{arm['arm']} ms/token"] = 1000 * median / arm["tokens"]
    return all(math.isfinite(float(value)) for value in figures.values()), figures


def judge_decode(stats: dict[str, Any]) -> tuple[bool, Figures]:
    """Each arm made tokens."""
    speeds: Figures = {
        f"{arm['arm']} tokens/s": arm["tokens"] / arm["seconds"] for arm in stats["arms"]
    }
    return all(float(value) > 0 for value in speeds.values()), speeds


def judge_loss(stats: dict[str, Any]) -> tuple[bool, Figures]:
    """The last loss is below the first."""
    return stats["last_loss"] < stats["first_loss"], stats


_SFT = ("--steps", "8")
_GRPO = ("--rounds", "1", "--steps", "3")
_DPO = ("--steps", "2")
_MODELS = "gpu_models"
CHECKS = (
    Check("packed against alone, bf16", _MODELS, ("masking",), ("masking",), judge_masking),
    Check("SFT stage, launched", _MODELS, ("stage",), ("stage",), judge_loss),
    Check(
        "SFT, 0.5 B",
        "sft_throughput",
        gpu=("--shape", "0.5b", *_SFT),
        cpu=("--steps", "1", "--tokens", "2048"),
        judge=judge_sft,
        needs_gib=24,
    ),
    Check("SFT, 1.5 B", "sft_throughput", ("--shape", "1.5b", *_SFT), None, judge_sft, 60),
    Check(
        "DPO step, 0.5 B",
        "dpo_throughput",
        gpu=(*_DPO, "--mean", "512", "--micro", "4"),
        cpu=(*_DPO, "--mean", "16"),
        judge=judge_dpo,
        needs_gib=40,
    ),
    Check(
        "GRPO step, 0.5 B",
        "grpo_step",
        gpu=(*_GRPO, "--prompts", "8", "--generations", "8", "--tokens", "256"),
        cpu=(*_GRPO, "--prompts", "2", "--generations", "4", "--tokens", "16", "--micro", "8"),
        judge=judge_grpo,
        needs_gib=40,
    ),
    Check(
        "decoding, 0.5 B",
        "sampling_throughput",
        gpu=("--shape", "0.5b", "--count", "16", "--max-tokens", "256"),
        cpu=("--count", "4", "--samples", "4", "--max-tokens", "32"),
        judge=judge_decode,
        needs_gib=16,
    ),
    Check("QLoRA, 0.5 B", _MODELS, ("qlora",), None, judge_loss, 8),
)


def run_check(check: Check, work: Path, *, gpu_gib: float | None, limit: float) -> Outcome:
    """Run one check in a process of its own.

    Args:
        gpu_gib: memory of the GPU; None on a CPU.
        limit: seconds.
    """
    arguments = check.cpu if gpu_gib is None else check.gpu
    if arguments is None:
        return Outcome(check.name, "not possible here", {}, "needs a CUDA GPU", 0.0)
    if gpu_gib is not None and gpu_gib < check.needs_gib:
        reason = f"needs {check.needs_gib:.0f} GiB of GPU memory, there are {gpu_gib:.0f}"
        return Outcome(check.name, "not possible here", {}, reason, 0.0)
    out = work / "figures.json"
    out.unlink(missing_ok=True)
    started = time.monotonic()
    command = [*COMMAND, check.measurement, *arguments, "--out", str(out)]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env=env, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(check.name, "failed", {}, f"took over {limit:.0f} s", limit)
    seconds = time.monotonic() - started
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
        # a package that is absent or too old for us is no fault of this GPU
        absent = lines[-1].startswith(("ModuleNotFoundError", "ImportError", "not possible here"))
        status = "not possible here" if absent else "failed"
        reason = lines[-1].removeprefix("not possible here: ")
        return Outcome(check.name, status, {}, reason, seconds)
    passed, figures = check.judge(json.loads(out.read_text()))
    reason = "" if passed else " ".join((check.judge.__doc__ or "").split())
    return Outcome(check.name, "passed" if passed else "failed", figures, reason, seconds)


def describe_machine() -> tuple[dict[str, Any], float | None]:
    """Device with versions, and its GPU memory in GiB, None without a GPU."""
    import torch  # imported here, so that `--help` works without it

    from posttrain.versions import package_versions

    versions = package_versions(("torch", "transformers", "trl", "peft", "flash_attn", "triton"))
    if not torch.cuda.is_available():
        return {"device": "CPU, tiny models", "versions": versions}, None
    properties = torch.cuda.get_device_properties(0)
    gib = properties.total_memory / (1 << 30)
    machine = {"device": properties.name, "GiB": round(gib), "cuda": torch.version.cuda}
    return {**machine, "versions": versions}, gib


def show(machine: dict[str, Any], outcomes: Sequence[Outcome]) -> None:
    """Print the table, a line for each check."""
    table = Table(title=f"{machine['device']}, {machine['versions']}", title_justify="left")
    for column in ("check", "outcome", "s", "figures, or why"):
        table.add_column(column, justify="right" if column == "s" else "left")
    for outcome in outcomes:
        lines = [outcome.reason] if outcome.reason else []
        lines += [f"{name}: {_figure_text(value)}" for name, value in outcome.figures.items()]
        table.add_row(outcome.name, outcome.status, f"{outcome.seconds:.0f}", "\n".join(lines))
    Console().print(table, markup=False)


def _figure_text(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--only", help="words of the names of checks, with commas")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds of one check")
    add_figures_file(parser)


def main(options: Namespace) -> int:
    """Run the checks; 1 if one failed."""
    words = [word.strip().lower() for word in (options.only or "").split(",") if word.strip()]
    chosen: list[Check] = []
    for check in CHECKS:
        if not words or any(word in check.name.lower() for word in words):
            chosen.append(check)
    if not chosen:
        names = ", ".join(check.name for check in CHECKS)
        sys.exit(f"--only {options.only}: the checks are {names}")
    machine, gib = describe_machine()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for check in chosen:
            print(f"{check.name} …", flush=True)
            outcomes.append(run_check(check, Path(folder), gpu_gib=gib, limit=options.limit))
    show(machine, outcomes)
    if options.out:
        rows = [asdict(outcome) for outcome in outcomes]
        options.out.write_text(json.dumps({**machine, "checks": rows}, indent=1) + "\n")
    return int(any(outcome.status == "failed" for outcome in outcomes))
