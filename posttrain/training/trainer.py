"""A trainer whose checkpoints are whole, whose log has the same rows after a resume.

class PackedSFTTrainer(Resumable, SFTTrainer): …
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import Trainer

from posttrain.errors import DataError
from posttrain.training.checkpoints import Progress, mark_complete, rotate


class Resumable(Trainer):
    """Mixed in before a TRL trainer. Running counts live here, for the trainer stores none."""

    # transformers declares these as optional or as wide unions; here they are always set
    model: Any
    accelerator: Any
    args: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if getattr(self.model, "is_loaded_in_4bit", False) and self.args.deepspeed_plugin is None:
            # TRL casts a QLoRA adapter to bfloat16, where small steps are rounded away
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.data = parameter.data.float()
        self.tokens_seen = 0
        self.trained_seen = 0

    def restore_progress(self, progress: Progress) -> None:
        """Take up the running counts of a resumed checkpoint."""
        self.tokens_seen = progress.tokens
        self.trained_seen = progress.trained

    def why_untrained(self) -> str:
        """The cause, for the error of a run that has trained no token."""
        return "no token of its data has a label"

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
        with _names_as_they_are(self.accelerator.unwrap_model(self.model)):
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

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """The parent warns of weights that were not loaded, and would train on without them.

        Raises:
            DataError: the checkpoint lacks weights of the model, or has others.
        """
        state = self.accelerator.unwrap_model(self.model).state_dict()
        absent = set(load_result.missing_keys)
        # a tied weight is stored once, under the other name
        there = {tensor.data_ptr() for name, tensor in state.items() if name not in absent}
        lost = sorted(name for name in absent if state[name].data_ptr() not in there)
        if lost or load_result.unexpected_keys:
            raise DataError(
                f"a checkpoint in {self.args.output_dir} does not hold this model's weights: it "
                f"lacks {len(lost)} of them ({', '.join(lost[:2])}) and has "
                f"{len(load_result.unexpected_keys)} others; delete it to go on from the one "
                "before, or from the beginning"
            )

    def create_model_card(self, *_args: Any, **_kwargs: Any) -> None:
        """Nothing: the stage writes its own card, with lineage, when it finishes."""


@contextlib.contextmanager
def _names_as_they_are(model: Any) -> Iterator[None]:
    """Save weights under the names that they have in memory, for this checkpoint is loaded by name.

    transformers saves some models (NemotronH, mixtures of experts) under the names of their first
    files, and its trainer resumes by the names in memory: it then finds nothing, and says so in a
    warning (transformers 5.23).
    """
    if isinstance(model, PeftModel):
        yield
        return
    model.save_pretrained = functools.partial(model.save_pretrained, save_original_format=False)
    try:
        yield
    finally:
        del model.save_pretrained
