"""Shardings × models × full or LoRA × methods on two CPU processes against one process.

    python -m benchmarks sharding [--sharding fsdp2 zero3 …] [--method sft …]

Each cell trains two steps on tiny data under the shipped recipes/accelerate file (its sharding
keys; gloo, float32) and is compared with the same recipe on one process: the largest difference of
a loss and of a weight of the saved model. Then it is killed with −9 behind its first step, started
again and must end with the bytes of the undisturbed run. A cell that is refused says why.
"""

from __future__ import annotations

import os
import tempfile
import time
from argparse import ArgumentParser, Namespace
from itertools import product
from pathlib import Path

import torch

from tests.training.matrix import METHODS, MODELS, SHARDINGS, Cells


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--sharding", nargs="+", default=SHARDINGS, choices=SHARDINGS)
    parser.add_argument("--model", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--method", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--tuning", nargs="+", default=("full", "lora"))
    parser.add_argument("--no-kill", action="store_true")


def main(options: Namespace) -> None:
    """Run the matrix and print it."""
    torch.set_num_threads(1)
    lines = [
        "| sharding | model | tuned | method | loss | weights | resumed |",
        "|---|---|---|---|---|---|---|",
    ]
    print(*lines, sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TORCH_EXTENSIONS_DIR", f"{folder}/extensions")
        cells = Cells(Path(folder))
        for sharding, model, tuned, method in product(
            options.sharding, options.model, options.tuning, options.method
        ):
            started = time.perf_counter()
            try:
                cell = cells.run(sharding, model, tuned == "lora", method, kill=not options.no_kill)
                resumed = "same bytes" if cell.resumed else "OTHER BYTES"
                if options.no_kill:
                    resumed = ""
                text = f"{cell.loss:.1e} | {cell.weight:.1e} | {resumed}"
            except AssertionError as error:
                error_lines = [line for line in str(error).splitlines() if "Error" in line]
                reason = error_lines[-1] if error_lines else str(error)[-1500:]
                text = f"{reason} | |"
            lines.append(f"| {sharding} | {model} | {tuned} | {method} | {text} |")
            print(lines[-1], f"{time.perf_counter() - started:.1f} s", flush=True)
