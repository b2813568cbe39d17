"""A trainer whose checkpoints are whole, whose log has the same rows after a resume.

class PackedSFTTrainer(Resumable, SFTTrainer): …
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from transformers import Trainer

from posttrain.training.checkpoints import Progress, mark_complete, rotate


class Resumable(Trainer):
    """Mixed in before a TRL trainer. Running counts live here, for the trainer stores none."""

    # transformers declares these as optional or as wide unions; here they are always set
    accelerator: Any
    args: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tokens_seen = 0
        self.trained_seen = 0

    def restore_progress(self, progress: Progress) -> None:
        """Take up the running counts of a resumed checkpoint."""
        self.tokens_seen = progress.tokens
        self.trained_seen = progress.trained

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self.control.should_save:
            # a row at every save, so that a resumed log has the same rows
            self.control.should_log = True
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.state.global_step >= self.state.max_steps:
            # the finished model follows at once; resuming here would train one step too many
            return
        folder = Path(self.args.output_dir)
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        if self.args.should_save and checkpoint.exists():
            shutil.rmtree(checkpoint)
        self.accelerator.wait_for_everyone()
        # the parent would delete the previous checkpoint before this one is known to be whole
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        super()._save_checkpoint(model, trial)
        self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            mark_complete(
                checkpoint,
                Progress(
                    step=self.state.global_step,
                    tokens=self.tokens_seen,
                    trained=self.trained_seen,
                    world_size=self.args.world_size,
                ),
            )
            rotate(folder, keep=limit)
        self.accelerator.wait_for_everyone()

    def create_model_card(self, *_args: Any, **_kwargs: Any) -> None:
        """Nothing: the stage writes its own card, with lineage, when it finishes."""
