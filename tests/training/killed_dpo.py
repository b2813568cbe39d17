"""Test-only launcher: `scripts/dpo.py` that kills itself, as `kill -9` would, at a chosen moment.

python tests/training/killed_dpo.py step:3 --config …

shard:N when N shards of the reference are written; step:N after N steps; checkpoint:N when that
checkpoint is half written; finish when trained, before the manifest; never.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "dpo.py"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(moment: str) -> None:
    from posttrain.training import dpo, dpo_trainer, reference, resumable

    # several shards of these few pairs
    reference.SHARD_PAIRS = 16
    kind, _, at = moment.partition(":")
    if kind == "shard":
        store: Any = reference.ReferenceStore
        write = store.write

        def write_shard(self: Any, number: int, **values: Any) -> None:
            if number == int(at):
                die()
            write(self, number, **values)

        store.write = write_shard
    elif kind == "step":
        trainer: Any = dpo_trainer.PairTrainer
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
        assert kind in ("finish", "never"), moment
        if kind == "finish":
            dpo.dpo_card = lambda *_, **__: die()


def main() -> None:
    moment, *rest = sys.argv[1:]
    arm(moment)
    sys.argv = [str(SCRIPT), *rest]
    runpy.run_path(str(SCRIPT), run_name="__main__")


if __name__ == "__main__":
    main()
