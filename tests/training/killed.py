"""Test-only launcher: `scripts/sft.py` that kills itself, as `kill -9` would, at a chosen moment.

python tests/training/killed.py step:7 --config …        after 7 optimiser steps
python tests/training/killed.py checkpoint:10 --config … when checkpoint 10 is half written
python tests/training/killed.py finish --config …        when trained, before the manifest
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "sft.py"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(moment: str) -> None:
    from posttrain.training import resumable, sft, sft_trainer

    kind, _, at = moment.partition(":")
    if kind == "step":
        trainer: Any = sft_trainer.PackedSFTTrainer
        original = trainer.training_step

        def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step == int(at):
                die()
            return original(self, *args, **kwargs)

        trainer.training_step = training_step
    elif kind == "checkpoint":
        whole = resumable.mark_complete

        def mark_complete(checkpoint: Path, progress: Any) -> None:
            if progress.step == int(at):
                # the weights are there, the optimiser is cut short, the marker is missing
                file = checkpoint / "optimizer.pt"
                file.write_bytes(file.read_bytes()[:100])
                die()
            whole(checkpoint, progress)

        resumable.mark_complete = mark_complete
    else:
        assert kind == "finish", moment
        sft.model_card = lambda *_, **__: die()


def main() -> None:
    moment, *rest = sys.argv[1:]
    arm(moment)
    sys.argv = [str(SCRIPT), *rest]
    runpy.run_path(str(SCRIPT), run_name="__main__")


if __name__ == "__main__":
    main()
