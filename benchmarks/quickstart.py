"""What the quickstart shows, of one run or of seeds × CPU kernels.

    python benchmarks/quickstart.py runs/tiny
    python benchmarks/quickstart.py --out runs/effects --seeds 0 1 2 --kernels default avx2

The second command runs `posttrain quickstart` for every cell, then RLHF without length control.
Cells share the data that no seed decides; kernels (ATEN_CPU_CAPABILITY: `default` is PyTorch's
without AVX2) stand in for other machines, whose floating point differs as theirs does. Finished
stages are not done again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from posttrain.evaluation.compare import Difference, length_difference, rate_difference
from posttrain.evaluation.intervals import Clustered, by_question
from posttrain.evaluation.metrics import values_of
from posttrain.evaluation.run import Record, read_run

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
CALLS, PAIRS = "undeclared calls, %", "accuracy on pairs, %"


@dataclass(frozen=True, slots=True)
class Effect:
    """One figure before and after a stage, with the change's 95 % interval over questions."""

    stage: str
    figure: str
    before: float
    after: float
    change: float
    low: float
    high: float
    questions: int

    @property
    def values(self) -> str:
        """As in `12.0 → 1.0`."""
        return f"{self.before:.1f} → {self.after:.1f}"

    @property
    def interval(self) -> str:
        """As in `−11.0 (−12.1 … −9.9)`."""
        return f"{self.change:+.1f} ({self.low:+.1f} … {self.high:+.1f})".replace("-", "−")


def effects(runs: Path) -> list[Effect]:
    """Every effect of a finished chain; the arm without length control where it was run."""
    dpo = read_run(runs / "eval")[1]
    rows: list[Effect] = []
    for setting, figure, name in (
        ("no_tools", "hallucination", CALLS),
        ("no_tools", "accuracy", "accuracy without tools, %"),
        ("with_tools", "accuracy", "accuracy with tools, %"),
        ("with_tools", "called_tool", "declared calls, %"),
    ):
        before, after = ([r for r in dpo[c] if r.prompt.setting == setting] for c in ("sft", "dpo"))
        rows.append(_rate("DPO", name, before, after, figure))
    judge = {
        row["b"]: Difference(**row["pairwise_accuracy"])
        for row in _json(runs / "eval_genrm" / "metrics.json")["differences"]
    }
    if "sft" in judge:  # compared with the warmed-up judge, which comes after it
        rows.append(_effect("judge, warm-up", PAIRS, _reversed(judge["sft"]), 100))
    rows.append(_effect("judge, training", PAIRS, judge["trained"], 100))
    rlhf = read_run(runs / "eval_rlhf")[1]
    rows += _policy("RLHF", rlhf["sft"], rlhf["rlhf"], runs / "win_rate")
    if (runs / "win_free").exists():
        free = read_run(runs / "eval_free")[1]["free"]
        rows += _policy("RLHF, no length control", rlhf["sft"], free, runs / "win_free")
    return rows


def _policy(stage: str, before: list[Record], after: list[Record], win: Path) -> list[Effect]:
    score = next(row for row in _json(win / "metrics.json")["rows"] if row["unit"] == "all")[
        "score"
    ]
    value, low, high = (100 * score[key] for key in ("value", "low", "high"))
    tokens = length_difference(_tokens(before), _tokens(after), seed=0)
    return [
        _rate(stage, "accuracy, %", before, after, "accuracy"),
        _effect(stage, "tokens", tokens, 1),
        Effect(
            stage, "win rate, %", 50, value, value - 50, low - 50, high - 50, score["questions"]
        ),
    ]


def _rate(stage: str, name: str, before: list[Record], after: list[Record], figure: str) -> Effect:
    sides = (by_question(values_of(side)[figure]) for side in (before, after))
    return _effect(stage, name, rate_difference(*sides, seed=0), 100)


def _tokens(records: list[Record]) -> Clustered:
    values = values_of(records)
    parts = zip(values["reasoning_tokens"], values["answer_tokens"], strict=True)
    return by_question([(a + b, question) for (a, question), (b, _) in parts])


def _effect(stage: str, name: str, d: Difference, scale: float) -> Effect:
    figures = (scale * value for value in (d.a, d.b, d.difference, d.low, d.high))
    return Effect(stage, name, *figures, d.questions)


def _reversed(d: Difference) -> Difference:
    return replace(d, a=d.b, b=d.a, difference=-d.difference, low=-d.high, high=-d.low)


def _json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def show(rows: Sequence[Effect]) -> str:
    """One run, a line an effect."""
    lines = [f"{'':<51}{'before → after':>16}   change (95 % interval), questions"]
    for row in rows:
        name = f"{row.stage}: {row.figure}"
        lines.append(f"{name:<51}{row.values:>16}   {row.interval}, {row.questions:,}")
    return "\n".join(lines)


def table(cells: Mapping[str, Sequence[Effect]]) -> str:
    """Many runs: a table a stage, in Markdown."""
    lines: list[str] = []
    first = next(iter(cells.values()))
    for stage in dict.fromkeys(row.stage for row in first):
        figures = [row for row in first if row.stage == stage]
        heads = [f"{row.figure}, {row.questions:,} questions" for row in figures]
        lines += ["", f"| {stage} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
        for name, rows in cells.items():
            own = [f"{row.values}: {row.interval}" for row in rows if row.stage == stage]
            lines.append(f"| {name} | {' | '.join(own)} |")
        lines.append(f"| up, down in | {' | '.join(_held(cells, row) for row in figures)} |")
    return "\n".join(lines)


def _held(cells: Mapping[str, Sequence[Effect]], figure: Effect) -> str:
    """In how many cells the figure's interval lies above 0, and below."""
    place = (figure.stage, figure.figure)
    own = [row for rows in cells.values() for row in rows if (row.stage, row.figure) == place]
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
        ("eval", "eval_rlhf", f"out={RUNS}/eval_free", f"checkpoints={{free: {RUNS}/free}}"),
        ("win_rate", "win_rate", f"out={RUNS}/win_free", f"after={RUNS}/eval_free"),
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
    parser.add_argument("runs", type=Path, nargs="?", help="a finished chain's runs/tiny")
    parser.add_argument("--out", type=Path, default=Path("runs/effects"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--kernels", nargs="+", default=["default"])
    parser.add_argument("--size", default="", choices=["", "full"], help="full: as `make tiny`")
    parser.add_argument("--jobs", type=int, default=2, help="stages at a time")
    given = parser.parse_args()
    if given.runs is not None:
        print(show(effects(given.runs)))
        return
    shared = build_shared(given.out / "shared", size=given.size)
    cells: dict[str, list[Effect]] = {}
    for seed in given.seeds:
        for kernel in given.kernels:
            name = f"seed {seed}, {kernel}"
            at = given.out / name.replace(", ", "-").replace(" ", "-")
            before = sum(os.times()[2:4])  # of finished child processes
            run_cell(at, shared, kernel=kernel, seed=seed, size=given.size, jobs=given.jobs)
            minutes = (sum(os.times()[2:4]) - before) / 60
            cells[name] = effects(at / RUNS)
            print(f"\n{name}: {minutes:.1f} CPU minutes\n{show(cells[name])}", flush=True)
    print(table(cells))


if __name__ == "__main__":
    main()
