"""From wherever a run stands to a written model: what every training stage does between its
preparation and its manifest.

    train_to_the_end(trainer, Path("runs/tiny/sft"), base=recipe.model, special=special)
"""

from __future__ import annotations

from pathlib import Path

from posttrain.config.sft import ModelConfig
from posttrain.models.tokenizer import SpecialTokens
from posttrain.training.checkpoints import latest_complete, remove_broken
from posttrain.training.resumable import Resumable
from posttrain.training.save import write_model


def train_to_the_end(
    trainer: Resumable, out: Path, *, base: ModelConfig, special: SpecialTokens
) -> None:
    """Train, resuming from a whole checkpoint if there is one, and write the model to `out`.

    Runs on every process.

    Raises:
        ConfigError: the checkpoint was written by another number of processes.
    """
    work = Path(trainer.args.output_dir)
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
    write_model(trainer, out, out=out, base=base, special=special)
