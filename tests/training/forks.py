"""Runs in processes of their own that need not import everything again: forks of the tests'.

    ended = forked(lambda: sft.main(["--config", …]), processes=2)     → Ended(codes=[0, 0], text="…")

Processes are joined as `torchrun` joins them, by environment variables; with `sharding`, under the
shipped recipes/accelerate/KIND.yaml. accelerate drops sharding when CPU is forced, so `shard` sets
its *private* state beforehand. It proves that losses, resume and saving work with sharded
parameters; it says nothing about NCCL, offloading or memory. The recipe's precision holds.
"""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import gc
import importlib
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posttrain.report.html import page_html
from posttrain.report.section import LineChart, Section, Series

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 240  # far above what a run takes on a busy machine
LATE = (
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "peft.utils.transformers_weight_conversion",
    "posttrain.evaluation.intervals",
    "torch.distributed.checkpoint.state_dict",
    "torch.utils.serialization.config",
)
LATE_OF_DEEPSPEED = (
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.zero.muon.original_muon",
)
SHARDING = ("ACCELERATE_USE_", "ACCELERATE_DEEPSPEED_", "FSDP_", "PARALLELISM_CONFIG_")


@dataclass(frozen=True)
class Ended:
    """Exit codes by rank, negative for a signal, and what all processes printed."""

    codes: list[int]
    text: str


def forked(
    run: Callable[[], Any], *, processes: int = 1, sharding: str | None = None, check: bool = True
) -> Ended:
    """Run a function in one or several processes; where one is killed, the others are, too."""
    _warm_up(deepspeed=bool(sharding and sharding.startswith("zero")))
    with tempfile.TemporaryFile() as out, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        sys.stdout.flush()
        # what is here stays for the forks' whole lives: no collection of theirs has to walk it
        gc.collect()
        gc.freeze()
        ranks = {
            _fork(run, out.fileno(), r, processes, port, sharding): r for r in range(processes)
        }
        codes = [0] * processes
        running = set(ranks)
        while running:
            pid, status = os.waitpid(-1 if len(running) > 1 else next(iter(running)), 0)
            if pid in running:
                running.discard(pid)
                codes[ranks[pid]] = os.waitstatus_to_exitcode(status)
                # one that was killed says nothing to the others, as on a machine that is gone
                for other in running if codes[ranks[pid]] < 0 else ():
                    os.kill(other, signal.SIGTERM)
        if -signal.SIGALRM in codes:
            # it may wait for a thread of this process, such as a test's server
            faulthandler.dump_traceback(out)
        out.seek(0)
        ended = Ended(codes, out.read().decode("utf-8", "replace"))
    assert -signal.SIGALRM not in codes, ended.text[
        -20_000:
    ]  # a kill that a test expects is another
    if check:
        assert not any(ended.codes), f"{ended.codes} {ended.text[-20_000:]}"
    return ended


@functools.cache
def _warm_up(*, deepspeed: bool) -> None:
    """What is imported late, or first used: once here, not in every process."""
    for name in LATE:
        importlib.import_module(name)
    if deepspeed:  # it looks for a compiler
        for name in LATE_OF_DEEPSPEED:
            importlib.import_module(name)
    chart = LineChart([Series("", [0, 1], [0, 1])], x="", y="")
    page_html([Section("", [chart])], title="")


def _fork(
    run: Callable[[], Any], out: int, rank: int, processes: int, port: int, sharding: str | None
) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - the process's own
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - likewise
        # one that waits for ever says where, and fails its test instead of holding up all others
        faulthandler.register(signal.SIGALRM, file=2, chain=True)
        signal.alarm(SECONDS)
        # `asyncio.run`, as inspect-ai replaces it, goes on with the parent's loop, whose threads
        # are not here: a call handed to one of them would never return
        asyncio.set_event_loop(asyncio.new_event_loop())
        renew_threads()
        _join(rank, processes, port, sharding)
        run()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
        print(stop.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - whatever it is, this process ends here
        traceback.print_exc()
    finally:
        os._exit(code)


def renew_threads() -> None:
    """Give a forked process threads of its own for torch.

    torch does it at the first use, and fails ("Invalid thread pool") where two threads are the
    first at once, as those that load a checkpoint can be.
    """
    torch.set_num_threads(torch.get_num_threads())


def _join(rank: int, processes: int, port: int, sharding: str | None) -> None:
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    if processes > 1:
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }  # fmt: skip
    if sharding is not None:
        shard(sharding)
    elif processes > 1:
        os.environ["ACCELERATE_USE_CPU"] = "true"


def launch_environment(*arguments: str) -> dict[str, str]:
    """What `accelerate launch` leaves for a script under these arguments."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import (
        prepare_deepspeed_cmd_env,
        prepare_multi_gpu_env,
        prepare_simple_launcher_cmd_env,
    )

    parsed = launch_command_parser().parse_args([*arguments, "script.py"])
    args, _, _ = _validate_launch_command(parsed)
    if args.use_deepspeed:
        args.deepspeed_fields_from_accelerate_config = ""
        return prepare_deepspeed_cmd_env(args)[1]
    if args.use_fsdp or args.multi_gpu:
        return prepare_multi_gpu_env(args)
    return prepare_simple_launcher_cmd_env(args)[1]


def shipped(name: str) -> tuple[str, str]:
    """The arguments of `accelerate launch` for a launcher file of this repository."""
    return "--config_file", str(ROOT / "recipes" / "accelerate" / f"{name}.yaml")


def shard(kind: str) -> None:
    """Shard this process's parameters on CPU as a shipped launcher file says."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    arguments = list(shipped(kind))
    if kind == "fsdp2-context":
        # of two processes, not eight
        arguments += ["--parallelism_config_cp_size", "2"]
    environment = launch_environment(*arguments)
    os.environ |= {k: v for k, v in environment.items() if k.startswith(SHARDING)}
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    if kind.startswith("zero"):
        # a C++ extension compiled on first use; plain gloo does the same here. The attribute
        # `deepspeed.comm.torch` is PyTorch itself, hence the look-up
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
        PartialState(cpu=False, backend="gloo")
        # tensors of up to 100,000 numbers stay whole by default: nothing of a tiny model would be split
        from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

        DeepSpeedZeroConfig.model_fields["param_persistence_threshold"].default = 0
        DeepSpeedZeroConfig.model_rebuild(force=True)
    else:
        assert kind in ("fsdp2", "fsdp2-context"), kind
        state = PartialState(cpu=True, backend="gloo")
        state._shared_state["distributed_type"] = DistributedType.MULTI_GPU
