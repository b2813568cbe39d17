"""Effects of the quickstart by seeds × CPU kernels; `posttrain report runs/tiny` shows one run.

    python -m benchmarks quickstart --out runs/effects --seeds 0 1 2 --kernels default avx2

Runs `posttrain quickstart` for every cell, then RLHF without length control. Cells share the data
that no seed decides; kernels (ATEN_CPU_CAPABILITY: `default` is PyTorch's without AVX2) stand in
for other machines, whose floating point differs as theirs does. Finished stages are not done
again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import ROOT
from posttrain.pages.chain import chain_nodes, effect_lines
from posttrain.pages.effects import Effect, chain_effects

RUNS = Path("runs/tiny")  # inside the folder of a cell, as the recipes have it
SHARED = ("world", "sft_data", "judgements", "genrm_sft_data", "genrm_data")
NO_CONTROL = [
    f"length.{name}=0"
    for name in (
        "reasoning_coefficient",
        "answer_coefficient",
        "reasoning_bonus",
        "answer_bonus",
    )
]


def table(cells: Mapping[str, Sequence[Effect]]) -> str:
    """Effects of all cells in Markdown, a table for each stage."""
    lines: list[str] = []
    effects = next(iter(cells.values()))
    for stage in dict.fromkeys(row.stage for row in effects):
        figures = [row for row in effects if row.stage == stage]
        heads = [f"{row.title}, {row.questions:,} questions" for row in figures]
        lines += ["", f"| {stage} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
        for name, rows in cells.items():
            texts = [f"{row.values}: {row.interval}" for row in rows if row.stage == stage]
            lines.append(f"| {name} | {' | '.join(texts)} |")
        counts = [_cells_with_change(cells, row) for row in figures]
        lines.append(f"| up, down in | {' | '.join(counts)} |")
    return "\n".join(lines)


def _cells_with_change(cells: Mapping[str, Sequence[Effect]], figure: Effect) -> str:
    """Number of cells whose interval of the figure lies above 0, and number with one below."""
    up = down = 0
    for rows in cells.values():
        for row in rows:
            if row.name == figure.name:
                up += row.low > 0
                down += row.high < 0
    return f"{up}, {down} of {len(cells)}"


def run_cell(folder: Path, shared: Path, *, kernel: str, seed: int, size: str, jobs: int) -> None:
    """Run the chain with one seed on one kernel, and RLHF without length control."""
    (folder / RUNS).mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        if not (folder / RUNS / name).exists():
            (folder / RUNS / name).symlink_to((shared / name).resolve())
    python = Path(sys.executable)
    environment = os.environ | {
        "ATEN_CPU_CAPABILITY": kernel,
        "PYTHONPATH": str(ROOT),
        # as the chain has them
        "ACCELERATE_USE_CPU": "true",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    chain = [str(python), f"{ROOT}/scripts", "quickstart", "--at", str(folder)]
    chain += ["--seed", str(seed), "--jobs", str(jobs)]
    if size:
        chain += ["--size", size]
    subprocess.run(chain, check=True, env=environment)
    for script, recipe, *overrides in (
        ("rlhf", "rlhf", f"out={RUNS}/free", f"seed={seed}", *NO_CONTROL),
        (
            "eval",
            "eval_rlhf",
            f"out={RUNS}/eval_free",
            f"checkpoints={{sft: {RUNS}/sft, free: {RUNS}/free}}",
        ),
        (
            "win_rate",
            "win_rate",
            f"out={RUNS}/win_free",
            f"before={RUNS}/eval_free:sft",
            f"after={RUNS}/eval_free:free",
        ),
    ):
        command = [str(python), f"{ROOT}/scripts/{script}.py", "--config"]
        command += [f"{ROOT}/recipes/tiny/{recipe}.yaml", *overrides]
        with (folder / RUNS / "logs" / "free.log").open("a") as log:
            subprocess.run(command, check=True, cwd=folder, env=environment, stdout=log, stderr=log)


def build_shared(folder: Path, *, size: str) -> Path:
    """Build the data that all cells share. Returns the folder of their runs."""
    folder.mkdir(parents=True, exist_ok=True)
    chain = [sys.executable, f"{ROOT}/scripts", "stages", "--config", "tiny"]
    chain += ["targets=[build_sft,build_genrm_sft,build_genrm]", f"size={size or 'null'}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(chain, check=True, cwd=folder, env=environment)
    return folder / RUNS


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("runs/effects"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--kernels", nargs="+", default=["default"])
    parser.add_argument("--size", default="", choices=["", "full"], help="full: as `make tiny`")
    parser.add_argument("--jobs", type=int, default=2, help="stages at a time")


def main(options: Namespace) -> None:
    """Show one run, or run what is missing of many and print their tables."""
    shared = build_shared(options.out / "shared", size=options.size)
    cells: dict[str, list[Effect]] = {}
    for seed in options.seeds:
        for kernel in options.kernels:
            name = f"seed {seed}, {kernel}"
            folder = options.out / name.replace(", ", "-").replace(" ", "-")
            before = sum(os.times()[2:4])  # of finished child processes
            run_cell(folder, shared, kernel=kernel, seed=seed, size=options.size, jobs=options.jobs)
            minutes = (sum(os.times()[2:4]) - before) / 60
            cells[name] = chain_effects(chain_nodes([folder / RUNS]))
            lines = "\n".join(effect_lines(cells[name]))
            print(f"\n{name}: {minutes:.1f} CPU minutes\n{lines}", flush=True)
    print(table(cells))
