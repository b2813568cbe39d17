"""What the manifest of a group-relative run says about it, from its log; the same after a resume.

run_stats(trainer, got, preflight, method="rlhf")  → {"method": "rlhf", "steps": 50, "first":
                                                      {"reward": 3.1, …}, "last": {…}, …}
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.training.launch import Launched
from posttrain.training.preflight import Preflight
from posttrain.training.rl.trainer import GroupTrainer

# a single batch is noisy: the first and the last so many are averaged, fewer in a short run, so
# that the two do not overlap
AVERAGED = 5
SHOWN = (
    "reward", "reward_std", "answer_tokens", "reasoning_tokens", "truncated", "zero_variance",
    "unscored", "entropy", "kl", "masked_tokens", "masked_completions",
)  # fmt: skip


def run_stats(
    trainer: GroupTrainer, got: Launched, preflight: Preflight, *, method: str
) -> dict[str, Any]:
    """Stats of a finished run."""
    recipe = trainer.recipe
    rows = [row for row in trainer.state.log_history if "rollouts" in row]
    batches = trainer.args.max_steps // recipe.loss.num_iterations
    averaged = min(AVERAGED, max(1, len(rows) // 2))
    return {
        "method": method,
        "steps": trainer.state.global_step,
        "batches": batches,
        "prompts_per_step": recipe.prompts_per_step,
        "num_generations": recipe.num_generations,
        "rollouts": batches * recipe.prompts_per_step * recipe.num_generations,
        "epochs": batches * recipe.prompts_per_step / len(trainer.rollouts.prompts),
        "world_size": got.world_size,
        "sharding": got.sharding,
        "tokens": trainer.tokens_seen,
        "trained": trainer.trained_seen,
        "averaged": averaged,
        "first": _means(rows[:averaged]),
        "last": _means(rows[-averaged:]),
        "counts": _sums(rows),
        **preflight.stats,
    }


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    parts = sorted({name for row in rows for name in row if name.startswith("part/")})
    found: dict[str, float] = {}
    for name in (*SHOWN, *parts):
        values = [row[name] for row in rows if name in row]
        if values:
            found[name] = statistics.fmean(values)
    return found


def _sums(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = sorted({name for row in rows for name in row if name.startswith("count/")})
    return {name.removeprefix("count/"): sum(row.get(name, 0) for row in rows) for name in names}
