"""What the quickstart shows, of seeds × CPU kernels; `posttrain report runs/tiny` shows one run.

    python benchmarks/quickstart.py --out runs/effects --seeds 0 1 2 --kernels default avx2

Runs `posttrain quickstart` for every cell, then RLHF without length control. Cells share the data
that no seed decides; kernels (ATEN_CPU_CAPABILITY: `default` is PyTorch's without AVX2) stand in
for other machines, whose floating point differs as theirs does. Finished stages are not done
again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from posttrain.pages.chain import chain_nodes, effect_lines
from posttrain.pages.effects import Effect, chain_effects

ROOT = Path(__file__).resolve().parents[1]
RUNS = Path("runs/tiny")  # in the directory of a cell, as the recipes have it
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
    """Many runs: a table a stage, in Markdown."""
    lines: list[str] = []
    first = next(iter(cells.values()))
    for stage in dict.fromkeys(row.stage for row in first):
        figures = [row for row in first if row.stage == stage]
        heads = [f"{row.title}, {row.questions:,} questions" for row in figures]
        lines += ["", f"| {stage} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
        for name, rows in cells.items():
            own = [f"{row.values}: {row.interval}" for row in rows if row.stage == stage]
            lines.append(f"| {name} | {' | '.join(own)} |")
        lines.append(f"| up, down in | {' | '.join(_held(cells, row) for row in figures)} |")
    return "\n".join(lines)


def _held(cells: Mapping[str, Sequence[Effect]], figure: Effect) -> str:
    """In how many cells the figure's interval lies above 0, and below."""
    own = [row for rows in cells.values() for row in rows if row.name == figure.name]
    up, down = sum(row.low > 0 for row in own), sum(row.high < 0 for row in own)
    return f"{up}, {down} of {len(own)}"


def run_cell(at: Path, shared: Path, *, kernel: str, seed: int, size: str, jobs: int) -> None:
    """The chain with one seed on one kernel, and RLHF without length control."""
    (at / RUNS).mkdir(parents=True, exist_ok=True)
    for name in SHARED:
        if not (at / RUNS / name).exists():
            (at / RUNS / name).symlink_to((shared / name).resolve())
    python = Path(sys.executable)
    environment = os.environ | {
        "ATEN_CPU_CAPABILITY": kernel,
        "PYTHONPATH": str(ROOT),
        # as the chain has them
        "ACCELERATE_USE_CPU": "true",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    chain = [str(python), f"{ROOT}/scripts", "quickstart", "--at", str(at)]
    chain += ["--seed", str(seed), "--jobs", str(jobs), *(["--size", size] if size else [])]
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
        with (at / RUNS / "logs" / "free.log").open("a") as log:
            subprocess.run(command, check=True, cwd=at, env=environment, stdout=log, stderr=log)


def build_shared(at: Path, *, size: str) -> Path:
    """The data of all cells."""
    at.mkdir(parents=True, exist_ok=True)
    chain = [sys.executable, f"{ROOT}/scripts", "stages", "--config", "tiny"]
    chain += ["targets=[build_sft,build_genrm_sft,build_genrm]", f"size={size or 'null'}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(chain, check=True, cwd=at, env=environment)
    return at / RUNS


def main() -> None:
    """Show one run, or run what is missing of many and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("runs/effects"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--kernels", nargs="+", default=["default"])
    parser.add_argument("--size", default="", choices=["", "full"], help="full: as `make tiny`")
    parser.add_argument("--jobs", type=int, default=2, help="stages at a time")
    given = parser.parse_args()
    shared = build_shared(given.out / "shared", size=given.size)
    cells: dict[str, list[Effect]] = {}
    for seed in given.seeds:
        for kernel in given.kernels:
            name = f"seed {seed}, {kernel}"
            at = given.out / name.replace(", ", "-").replace(" ", "-")
            before = sum(os.times()[2:4])  # of finished child processes
            run_cell(at, shared, kernel=kernel, seed=seed, size=given.size, jobs=given.jobs)
            minutes = (sum(os.times()[2:4]) - before) / 60
            cells[name] = chain_effects(chain_nodes([at / RUNS]))
            lines = "\n".join(effect_lines(cells[name]))
            print(f"\n{name}: {minutes:.1f} CPU minutes\n{lines}", flush=True)
    print(table(cells))


if __name__ == "__main__":
    main()
