"""What a DPO run prints: the terms before the first update, then one line a logged step.

step 12/50   loss 5.1021  preference 0.6712  accuracy 0.71  margin +0.0461  chosen -0.31  …
"""

from __future__ import annotations

import math
import time
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from posttrain.config.dpo import LossConfig


def first_line(first: dict[str, float], loss: LossConfig) -> str:
    """The terms before the first update, with both forms of the SFT term."""
    both = ", ".join(
        f"{form} {first[f'sft_{form}']:.4f}" + (" (used)" if form == loss.sft_form else "")
        for form in ("sum", "mean")
    )
    weighted = loss.sft_weight * first[f"sft_{loss.sft_form}"]
    return (
        f"first step   preference {first['preference_loss']:.6f} (ln 2 = {math.log(2):.6f}); "
        f"SFT on chosen: {both}; it adds {loss.sft_weight:g} × = {weighted:.4f}"
    )


class StepLines(TrainerCallback):
    """Replaces the trainer's own printing, which would show thirty figures a step."""

    def __init__(self) -> None:
        self._started = (0.0, 0)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Seconds count from here; a resumed run's from its first own step."""
        self._started = (time.perf_counter(), state.global_step)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Print the newest row."""
        row = state.log_history[-1]
        if not state.is_world_process_zero or "preference_loss" not in row:
            return
        at, from_step = self._started
        each = (time.perf_counter() - at) / max(1, state.global_step - from_step)
        left = each * (state.max_steps - state.global_step)
        fallen = "  (below chosen_floor)" if "chosen_below_floor" in row else ""
        print(
            f"step {state.global_step}/{state.max_steps}".ljust(12),
            f"loss {row['loss']:.4f}  preference {row['preference_loss']:.4f}  "
            f"accuracy {row['accuracy']:.2f}  margin {row['margin']:+.4f}  "
            f"chosen {row['chosen_change']:+.2f}{fallen}  rejected {row['rejected_change']:+.2f}  "
            f"{left:.0f} s left",
            flush=True,
        )
