"""What a run prints: one line a step, in place of the trainer's thirty figures.

step 12/50   reward 3.41 ±0.52  answer 88  reasoning 140  truncated 2%  flat 10%  entropy 0.71 …
"""

from __future__ import annotations

import time
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from posttrain.training.rl.timing import StepClock


class StepLines(TrainerCallback):
    """Prints the newest row of the log."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._started = (0.0, 0)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Seconds count from here; a resumed run's from its first own step."""
        self._started = (time.perf_counter(), state.global_step)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Print it."""
        row = state.log_history[-1]
        if not state.is_world_process_zero or "rollouts" not in row:
            return
        at, from_step = self._started
        each = (time.perf_counter() - at) / max(1, state.global_step - from_step)
        left = each * (state.max_steps - state.global_step)
        print(f"step {state.global_step}/{state.max_steps}".ljust(12), step_line(row), end="  ")
        spent = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self._clock.seconds.items())
        print(f"{left:.0f} s left ({spent} s)", flush=True)


def step_line(row: dict[str, Any]) -> str:
    """The figures worth a look at every step."""
    reward = f"{row['reward']:.3f} ±{row['reward_std']:.2f}" if "reward" in row else "none"
    parts = [f"reward {reward}", f"answer {row['answer_tokens']:.0f}"]
    if "reasoning_tokens" in row:
        parts.append(f"reasoning {row['reasoning_tokens']:.0f}")
    parts += [f"truncated {row['truncated']:.0%}", f"flat {row['zero_variance']:.0%}"]
    if row["unscored"]:
        parts.append(f"unscored {row['unscored']:.0%}")
    if "part/accuracy" in row:
        parts.append(f"accuracy {row['part/accuracy']:.2f}")
    if "entropy" in row:
        parts.append(f"entropy {row['entropy']:.2f}")
    return "  ".join(parts)
