"""From wherever a run stands to a written model: what every training stage does between its
preparation and its manifest.

    train_to_the_end(trainer, Path("runs/tiny/sft"), base=recipe.model, special=special)
"""

from __future__ import annotations

from pathlib import Path

from transformers.integrations.integration_utils import TensorBoardCallback

from posttrain.config.sft import ModelConfig
from posttrain.errors import TrainingError
from posttrain.tokens.tokenizer import SpecialTokens
from posttrain.training.checkpoints import latest_complete, remove_broken
from posttrain.training.resumable import Resumable
from posttrain.training.save import write_model
from posttrain.training.stage import TENSORBOARD


def train_to_the_end(
    trainer: Resumable, out: Path, *, base: ModelConfig, special: SpecialTokens
) -> None:
    """Train, resuming from a whole checkpoint if there is one, and write the model to `out`.

    Runs on every process.

    Raises:
        ConfigError: the checkpoint was written by another number of processes.
        TrainingError: the whole run, its part before a resume included, trained no token.
    """
    work = Path(trainer.args.output_dir)
    for callback in trainer.callback_handler.callbacks:
        # its own default lies in the resume folder, which goes with the run's end; a folder that
        # the user has set in TENSORBOARD_LOGGING_DIR stays
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(out / TENSORBOARD)
    if trainer.is_world_process_zero():
        remove_broken(work)
    trainer.accelerator.wait_for_everyone()
    found = latest_complete(work, world_size=trainer.args.world_size)
    if found is None:
        trainer.train()
    else:
        checkpoint, progress = found
        trainer.restore_progress(progress)
        trainer.train(resume_from_checkpoint=str(checkpoint))
    # the count is global and restored from the checkpoint: every process stops here, or none
    if not trainer.trained_seen:
        raise TrainingError(
            f"no token was trained in {trainer.state.global_step} steps, so {out} gets no model: "
            f"{trainer.why_untrained()}. Start the corrected recipe with another out="
        )
    write_model(trainer, out, out=out, base=base, special=special)
