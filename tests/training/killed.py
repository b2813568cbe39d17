"""Test-only launcher: a training script that kills itself, as `kill -9` would, at a chosen moment.

python tests/training/killed.py sft step:7 --config …    before optimiser step 8
python tests/training/killed.py dpo checkpoint:10 --config …    when checkpoint 10 is half written
python tests/training/killed.py dpo shard:2 --config …   when 2 shards of the reference are written
python tests/training/killed.py sft finish --config …    when trained, before the manifest
python tests/training/killed.py dpo never --config …
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_step(trainer: Any, at: int) -> None:
    original = trainer.training_step

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == at:
            die()
        return original(self, *args, **kwargs)

    trainer.training_step = training_step


def at_checkpoint(at: int) -> None:
    from posttrain.training import trainer

    whole = trainer.mark_complete

    def mark_complete(checkpoint: Path, progress: Any) -> None:
        if progress.step == at:
            # the weights are there, the optimiser is cut short, the marker is missing
            file = checkpoint / "optimizer.pt"
            file.write_bytes(file.read_bytes()[:100])
            die()
        whole(checkpoint, progress)

    trainer.mark_complete = mark_complete


def at_shard(at: int) -> None:
    from posttrain.training.dpo import reference

    store: Any = reference.ReferenceStore
    write = store.write

    def write_shard(self: Any, number: int, **values: Any) -> None:
        if number == at:
            die()
        write(self, number, **values)

    store.write = write_shard


def arm(method: str, moment: str) -> None:
    from posttrain.training import stage
    from posttrain.training.dpo import reference
    from posttrain.training.dpo import trainer as dpo_trainer
    from posttrain.training.sft import trainer as sft_trainer

    if method == "dpo":
        reference.SHARD_PAIRS = 16  # several shards of these few pairs
    kind, _, at = moment.partition(":")
    match kind:
        case "step":
            of = {"sft": sft_trainer.PackedSFTTrainer, "dpo": dpo_trainer.PairTrainer}
            at_step(of[method], int(at))
        case "checkpoint":
            at_checkpoint(int(at))
        case "shard":
            at_shard(int(at))
        case "finish":
            stage.model_card = lambda *_, **__: die()
        case _:
            assert kind == "never", moment


def main() -> None:
    stage, moment, *rest = sys.argv[1:]
    arm(stage, moment)
    script = str(SCRIPTS / f"{stage}.py")
    sys.argv = [script, *rest]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
