"""What length control does: the tiny RLHF under several length rewards, seed by seed.

python benchmarks/tiny_rlhf.py --runs runs/tiny --out runs/tiny_rlhf --seeds 0 1 2

Each arm is recipes/tiny/rlhf.yaml with the overrides below; all arms of a seed start from the same
policy, draw the same prompts and face the same judge. Then all answer the same held-out questions
(recipes/tiny/eval_rlhf.yaml) and are judged against their start in both orders. `--policies` gives
each seed a start of its own. Finished stages are not done again. A run takes a minute on a core.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECIPES = ROOT / "recipes" / "tiny"
NO_ADJUSTMENT = ["length.reasoning_coefficient=0", "length.answer_coefficient=0"]
NO_BONUS = ["length.reasoning_bonus=0", "length.answer_bonus=0"]
ARMS: dict[str, list[str]] = {
    "control": [],
    "no_bonus": NO_BONUS,
    "bonus_only": NO_ADJUSTMENT,
    "no_control": [*NO_ADJUSTMENT, *NO_BONUS],
    "penalty_1": [*NO_ADJUSTMENT, *NO_BONUS, "length.absolute_penalty=1"],
    "penalty_3": [*NO_ADJUSTMENT, *NO_BONUS, "length.absolute_penalty=3"],
}
START = "start"


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the quickstart's artifacts are, where this writes, and each seed's first policy."""

    runs: Path
    out: Path
    policies: Mapping[int, Path]
    arms: Sequence[str]

    def rlhf(self, arm: str, seed: int) -> Path:
        """The artifact of one arm of one seed."""
        return self.out / f"rlhf-{arm}-{seed}"


def run(script: str, recipe: str, *overrides: str) -> None:
    """One stage; its output goes to the screen."""
    command = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), "--config"]
    command += [str(RECIPES / f"{recipe}.yaml"), *overrides]
    print("$", " ".join(command[1:]), flush=True)
    subprocess.run(command, check=True)


def run_seed(bench: Bench, seed: int) -> None:
    """Train every arm, then evaluate all of them together."""
    policy, world = bench.policies[seed], bench.runs / "world"
    for arm in bench.arms:
        run(
            "rlhf", "rlhf", *ARMS[arm], f"out={bench.rlhf(arm, seed)}", f"seed={seed}",
            f"model.path={policy}", f"judge.models.0.checkpoint={bench.runs / 'genrm'}",
            f"prompts.0.path={world / 'train' / 'maths.jsonl'}",
            f"prompts.1.path={world / 'train' / 'steps.jsonl'}",
        )  # fmt: skip
    named = {START: policy} | {arm: bench.rlhf(arm, seed) for arm in bench.arms}
    asked = ", ".join(f"{name}: {path}" for name, path in named.items())
    evaluation = bench.out / f"eval-{seed}"
    run(
        "eval", "eval_rlhf", f"out={evaluation}", f"checkpoints={{{asked}}}",
        f"prompts.0.path={world / 'heldout' / 'maths.jsonl'}",
        f"prompts.1.path={world / 'heldout' / 'steps.jsonl'}",
    )  # fmt: skip
    for arm in bench.arms:
        run(
            "win_rate", "win_rate", f"out={bench.out / f'win-{arm}-{seed}'}", "prompts=null",
            f"before={evaluation}:{START}", f"after={evaluation}:{arm}",
            f"judge.models.0.checkpoint={bench.runs / 'genrm_sft'}",
        )  # fmt: skip


def read(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text("utf-8"))


def row_of(bench: Bench, arm: str, seed: int) -> str:
    """One arm of one seed as a row of the table."""
    metrics = read(bench.out / f"eval-{seed}" / "metrics.json")
    cells = {cell["checkpoint"]: cell for cell in metrics["cells"] if cell["task"] == "all"}
    found, start = cells[arm], cells[START]
    accuracy, tokens = _percent(found["rates"]["accuracy"]), _length(found)
    if arm == START:
        return f"| {seed} | {arm} | {accuracy} | | {tokens:.1f} | | | |"
    pair = next(
        pair for pair in metrics["pairs"]
        if (pair["a"], pair["b"], pair["task"]) == (START, arm, "all")
    )["rates"]["accuracy"]  # fmt: skip
    gain = f"{100 * pair['difference']:+.1f} ({100 * pair['low']:+.1f} … {100 * pair['high']:+.1f})"
    stats = read(bench.rlhf(arm, seed) / "manifest.json")["stats"]
    base = f"{stats['first']['part/base']:.2f} → {stats['last']['part/base']:.2f}"
    wins = read(bench.out / f"win-{arm}-{seed}" / "metrics.json")["rows"]
    score = _percent(next(row for row in wins if row["unit"] == "all")["score"])
    shorter = f"{100 * (tokens / _length(start) - 1):+.0f} %"
    return f"| {seed} | {arm} | {accuracy} | {gain} | {tokens:.1f} | {shorter} | {base} | {score} |"


def _percent(figure: Mapping[str, float]) -> str:
    value, low, high = (100 * figure[key] for key in ("value", "low", "high"))
    return f"{value:.1f} ({low:.1f}–{high:.1f})"


def _length(cell: Mapping[str, Any]) -> float:
    return sum(cell["lengths"][part]["mean"]["value"] for part in _PARTS)


_PARTS = ("reasoning_tokens", "answer_tokens")


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=Path, default=Path("runs/tiny"))
    parser.add_argument("--out", type=Path, default=Path("runs/tiny_rlhf"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--policies", type=Path, nargs="+", help="one for each seed")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    given = parser.parse_args()
    policies: list[Path] = given.policies or [given.runs / "sft"] * len(given.seeds)
    if len(policies) != len(given.seeds):
        parser.error("--policies needs one path for each of --seeds")
    start = dict(zip(given.seeds, policies, strict=True))
    bench = Bench(given.runs, given.out, start, given.arms)
    for seed in given.seeds:
        run_seed(bench, seed)
    print(
        "| seed | arm | accuracy % | against the start | tokens | change | judge's base reward, "
        "first → last batches | win rate % |\n|---|---|---|---|---|---|---|---|"
    )
    for seed in given.seeds:
        for arm in (START, *given.arms):
            print(row_of(bench, arm, seed))


if __name__ == "__main__":
    main()
