"""The curriculum against random order at the same domain ratios, on the tiny world (figure 7).

    python benchmarks/rlvr_curriculum.py --sft runs/tiny/sft/checkpoint-epoch-1 --out runs/order

From an early SFT checkpoint: a profile, one run a seed and order, accuracy on held-out questions of
the trained difficulties (easy) and of higher ones (hard). Started again it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # two-sided, by the number of seeds
EASY, HARD = {"le": 2}, {"ge": 3, "le": 4}
FAMILIES = ("maths", "logs", "steps")


def run(script: str, recipe: str, *overrides: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / script)]
    command += ["--config", str(ROOT / "recipes/tiny" / recipe), *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def held_out(world: str) -> list[dict[str, object]]:
    return [
        {
            "name": f"{family}-{name}",
            "format": "tiny_world",
            "path": f"{world}/heldout/{family}.jsonl",
            "where": {
                "metadata.difficulty": difficulty,
                "metadata.turns": 1,
                "metadata.with_tools": False,
            },
        }
        for family in FAMILIES
        for name, difficulty in (("easy", EASY), ("hard", HARD))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sft", required=True)
    parser.add_argument("--world", default="runs/tiny/world")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    out = options.out

    def train(name: str, seed: int, *overrides: str) -> str:
        run(
            "rlvr.py", "rlvr.yaml", f"out={out}/{name}", f"model.path={options.sft}",
            f"pass_rates={out}/profile", f"seed={seed}", f"trainer.max_steps={options.steps}",
            "max_epochs=20", *overrides,
        )  # fmt: skip
        return f"{out}/{name}"

    run("profile_prompts.py", "profile.yaml", f"out={out}/profile", f"checkpoint={options.sft}")
    stats = json.loads((out / "profile/manifest.json").read_text())["stats"]
    for source, own in stats["rates"].items():
        print(f"{source:<8} passes {own['passes'] / own['scored']:.3f}  buckets {own['buckets']}")
    orders, seeds = ("gaussian", "random"), range(options.seeds)
    arms = {order: (f"curriculum.order={order}",) for order in orders}
    checkpoints = {"sft": options.sft}
    for arm, overrides in arms.items():
        for seed in seeds:
            name = f"{arm}-{seed}"
            checkpoints[name] = train(name, seed, *overrides)
    run(
        "eval.py", "eval_rlvr.yaml", f"out={out}/eval",
        f"checkpoints={json.dumps(checkpoints)}", f"prompts={json.dumps(held_out(options.world))}",
        'settings=[{"name": "plain"}]',
    )  # fmt: skip

    cells = json.loads((out / "eval/metrics.json").read_text())["cells"]
    right: dict[tuple[str, str], tuple[float, int]] = {}
    for cell in cells:
        if cell["task"] != "all":
            rate = cell["rates"]["accuracy"]
            right[cell["checkpoint"], cell["task"]] = (
                rate["value"] * rate["questions"], rate["questions"],
            )  # fmt: skip

    def share(name: str, families: tuple[str, ...], difficulty: str) -> float:
        found = [right[name, f"{family}-{difficulty}"] for family in families]
        return 100 * sum(n for n, _ in found) / sum(of for _, of in found)

    for difficulty in ("easy", "hard"):
        questions = sum(right["sft", f"{family}-{difficulty}"][1] for family in FAMILIES)
        print(
            f"{difficulty}: {questions:,} questions; sft {share('sft', FAMILIES, difficulty):.1f}"
        )
        runs = {
            order: [share(f"{order}-{seed}", FAMILIES, difficulty) for seed in seeds]
            for order in orders
        }
        for order, own in runs.items():
            listed = ", ".join(f"{value:.1f}" for value in own)
            print(f"  {order:<9} {statistics.fmean(own):.1f}  ({listed})")
        apart = [one - other for one, other in zip(*runs.values(), strict=True)]
        half = T_95[len(apart)] * statistics.stdev(apart) / math.sqrt(len(apart))
        print(f"  difference {statistics.fmean(apart):+.1f} ± {half:.1f} (95 %, paired by seed)")


if __name__ == "__main__":
    main()
