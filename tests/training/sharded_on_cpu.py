"""Test-only launcher: `scripts/sft.py`, or STAGE=dpo, under ZeRO-2, ZeRO-3 or FSDP2 on CPU.

    torchrun --nproc_per_node 2 tests/training/sharded_on_cpu.py zero3 --config … key=value

accelerate drops sharding when CPU is forced, so this sets its *private* state beforehand. It proves
that losses, resume and saving work with sharded parameters; it says nothing about NCCL, mixed
precision, offloading or memory.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / f"{os.environ.get('STAGE', 'sft')}.py"


def claim_state(kind: str) -> None:
    os.environ["DS_ACCELERATOR"] = "cpu"
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    if kind.startswith("zero"):
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
        os.environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = kind[-1]
        os.environ["ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"] = "true"
        os.environ["ACCELERATE_DEEPSPEED_ZERO3_INIT"] = str(kind == "zero3").lower()
        import deepspeed.comm.torch

        # a C++ extension compiled on first use; plain gloo does the same here
        deepspeed.comm.torch.build_shm_op = lambda: None
        PartialState(cpu=False, backend="gloo")
    else:
        assert kind == "fsdp2", kind
        os.environ["ACCELERATE_USE_FSDP"] = "true"
        os.environ["FSDP_VERSION"] = "2"
        os.environ["FSDP_AUTO_WRAP_POLICY"] = "TRANSFORMER_BASED_WRAP"
        os.environ["FSDP_STATE_DICT_TYPE"] = "FULL_STATE_DICT"
        os.environ["FSDP_RESHARD_AFTER_FORWARD"] = "true"
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
        state = PartialState(cpu=True, backend="gloo")
        state._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def main() -> None:
    kind, *rest = sys.argv[1:]
    claim_state(kind)
    sys.argv = [
        str(SCRIPT),
        *rest,
        "trainer.use_cpu=false",
        "trainer.accelerator_config={use_configured_state: true}",
    ]
    runpy.run_path(str(SCRIPT), run_name="__main__")


if __name__ == "__main__":
    main()
