"""Test-only launcher: `scripts/sft.py`, or STAGE=dpo, under ZeRO-2, ZeRO-3 or FSDP2 on CPU.

    torchrun --nproc_per_node 2 tests/training/sharded_on_cpu.py zero3 --config … key=value

The sharding is that of the shipped recipes/accelerate/KIND.yaml, read as accelerate reads it.
accelerate drops sharding when CPU is forced, so this sets its *private* state beforehand. It proves
that losses, resume and saving work with sharded parameters; it says nothing about NCCL, offloading
or memory. The recipe's precision holds.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / f"{os.environ.get('STAGE', 'sft')}.py"
SHARDING = ("ACCELERATE_USE_", "ACCELERATE_DEEPSPEED_", "FSDP_")


def launch_environment(name: str) -> dict[str, str]:
    """What `accelerate launch` leaves for the script under a shipped launcher file."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import (
        prepare_deepspeed_cmd_env,
        prepare_multi_gpu_env,
        prepare_simple_launcher_cmd_env,
    )

    config = ROOT / "recipes" / "accelerate" / f"{name}.yaml"
    parsed = launch_command_parser().parse_args(["--config_file", str(config), str(SCRIPT)])
    args, _, _ = _validate_launch_command(parsed)
    if args.use_deepspeed:
        args.deepspeed_fields_from_accelerate_config = ""
        return prepare_deepspeed_cmd_env(args)[1]
    if args.use_fsdp or args.multi_gpu:
        return prepare_multi_gpu_env(args)
    return prepare_simple_launcher_cmd_env(args)[1]


def claim_state(kind: str) -> None:
    os.environ["DS_ACCELERATOR"] = "cpu"
    environment = launch_environment(kind)
    os.environ.update({k: v for k, v in environment.items() if k.startswith(SHARDING)})
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    if kind.startswith("zero"):
        import deepspeed.comm.torch

        # a C++ extension compiled on first use; plain gloo does the same here
        deepspeed.comm.torch.build_shm_op = lambda: None
        PartialState(cpu=False, backend="gloo")
    else:
        assert kind == "fsdp2", kind
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
