"""Share of the weights that RLHF moves in five steps at 3e-6, by the type that they are held in.

    python benchmarks/precision.py [--steps 5] [--learning-rate 3e-6]

A small random policy on the CPU, AdamW, a constant rate, computed in bfloat16 in both arms. Weights
held in bfloat16 are what the stage refuses; the refusal is switched off for that arm.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from posttrain.models.load import build_model
from tests.models.tiny import TINY_ATTENTION
from tests.training.rl.policy import (
    Scripted,
    make_prompts,
    make_recipe,
    start,
    words_of,
    write_policy,
)


def moved(policy: Path, out: Path, dtype: str, trainer: dict[str, Any]) -> tuple[int, int]:
    """Weights that differ after the run, and all weights."""
    recipe = make_recipe(
        policy, out, trainer | {"bf16": True}, model={"path": str(policy), "dtype": dtype}
    )
    with patch("posttrain.training.arguments.check_precision"):
        prepared = start(recipe, make_prompts(48), Scripted(words_of))
    weights = dict(prepared.trainer.model.named_parameters())
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    prepared.trainer.train()
    prepared.trainer.close()
    differ = sum(int((weights[name] != before[name]).sum()) for name in before)
    return differ, sum(weight.numel() for weight in before.values())


def main() -> None:
    """Run both arms and print a row of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=3e-6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    trainer = {"max_steps": options.steps, "learning_rate": options.learning_rate}
    print("| weights held in | moved | of |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        policy = write_policy(Path(folder) / "policy")
        torch.manual_seed(0)
        # the usual deviation of fresh weights; the steps of bfloat16 grow with a weight
        fields = {"initializer_range": 0.02, "vocab_size": 64, "pad_token_id": 0, "eos_token_id": 2}
        build_model(TINY_ATTENTION | fields).save_pretrained(str(policy))
        for dtype in ("bfloat16", "float32"):
            n, of = moved(policy, Path(folder) / dtype, dtype, trainer)
            print(f"| {dtype} | {n / of:.1%} | {of:,} |", flush=True)


if __name__ == "__main__":
    main()
