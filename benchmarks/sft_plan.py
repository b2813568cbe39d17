"""The plan of millions of rows: memory, time and disk of all that happens between rows and shards.

    python benchmarks/sft_plan.py [--rows 1_000_000 18_000_000] [--capacity 262144] [--work DIR]

For each number of rows two prepared sources are written as a build leaves it (columns only:
lengths log-normal, 50 to the capacity, the shape of long-reasoning data; tokens are holes in the
file) and taken through what a build does next: held out, mixture with shares of 0.7 and 0.3, random
order, packs, shards; and the audit of supervision. Each step runs in a process of its own. Its
memory is the kernel's highest resident set, everything counted: columns, order, packing arrays,
keys. A row's part is what exceeds the same step on a thousand rows. Disk is the most that lay there
at once beside the parts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from data_builders.sft.audit import audit_sources
from data_builders.sft.plan import plan_build
from data_builders.sft.prepared import RECORD, SEQUENCE, PreparedSource
from data_builders.sft.shards import cut_shards, pack_split
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.load import validate
from posttrain.tokens.supervision import NO_MARKS, Flag

_PART_ROWS = 500_000
_NAMES = ("long", "short")
_TEXT = json.dumps(["0" * 32, "MIT", "openai", "{}"]).encode()
_INTERVAL = 0.2  # seconds between looks at the disk


def main() -> None:
    parser = argparse.ArgumentParser(description="The plan of an SFT build, by rows.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 18_000_000])
    parser.add_argument("--capacity", type=int, default=262_144)
    parser.add_argument("--work", help="where to work; a temporary directory")
    options = parser.parse_args()
    base: dict[str, int] = {}
    print("| rows | step | CPU s | highest memory | bytes a row | disk, bytes a row | made |")
    print("|--:|---|--:|--:|--:|--:|---|")
    for rows in (1000, *options.rows):
        work = Path(options.work or tempfile.mkdtemp()) / str(rows)
        shutil.rmtree(work, ignore_errors=True)
        _in_a_process(_write, work, rows, options.capacity)
        for name, step in (("plan", _plan), ("audit", _audit)):
            result = _in_a_process(step, work, options.capacity)
            base.setdefault(name, result["memory"])
            print(
                f"| {rows:,} | {name} | {result['cpu']:.1f} | {result['memory'] / 1e6:,.0f} MB "
                f"| {(result['memory'] - base[name]) / rows:.1f} | {result['disk'] / rows:.0f} "
                f"| {result['summary']} |",
                flush=True,
            )
        shutil.rmtree(work)


def _in_a_process(step: Callable[..., Any], work: Path, *arguments: int) -> dict[str, Any]:
    """Run a step in a process of its own, whose memory is the step's. Returns its result.

    `disk` is the largest size of its scratch folder in bytes.
    """
    process = multiprocessing.get_context("spawn").Process(target=step, args=(work, *arguments))
    process.start()
    disk = 0
    while process.exitcode is None:
        process.join(_INTERVAL)
        disk = max(disk, _size(_scratch(work, step)))
    assert process.exitcode == 0, f"it ended with {process.exitcode}"
    result = work / "result.json"
    return {**json.loads(result.read_text()), "disk": disk} if result.is_file() else {}


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # removed meanwhile
    return total


def _write(work: Path, rows: int, capacity: int) -> None:
    random = np.random.default_rng(0)
    for source, share in zip(_NAMES, (0.6, 0.4), strict=True):
        source_rows = int(rows * share)
        for part, start in enumerate(range(0, source_rows, _PART_ROWS)):
            count = min(source_rows - start, _PART_ROWS)
            _write_part(work / source / f"{part:06d}", count, capacity, random)


def _write_part(folder: Path, count: int, capacity: int, random: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    records = np.zeros(count, RECORD)
    sequences = np.zeros(count, SEQUENCE)
    sequences["length"] = np.clip(random.lognormal(7.5, 1.6, count), 50, capacity)
    sequences["trained"] = sequences["length"] // 2
    sequences["budget"] = -1
    sequences["flags"] = np.where(random.random(count) < 0.99, Flag.TRAINED | Flag.END_TRAINED, 0)
    sequences["at"] = np.cumsum(sequences["length"], dtype=np.int64) - sequences["length"]
    sequences["key"] = random.integers(0, 2**64, count, np.uint64)
    records["id64"] = records["row64"] = random.integers(0, 2**64, count, np.uint64)
    records["tokens"] = sequences["length"]
    records["trained"] = sequences["trained"]
    records["first"] = np.arange(count)
    records["sequences"] = 1
    sequences["record"] = np.arange(count)
    records["text_size"] = len(_TEXT)
    records.tofile(folder / "records.bin")
    sequences.tofile(folder / "sequences.bin")
    (folder / "texts.bin").write_bytes(_TEXT)  # one for all
    with (folder / "tokens.bin").open("wb") as file:
        file.truncate(4 * int(sequences["length"].sum(dtype=np.int64)))


def _sources(work: Path) -> list[PreparedSource]:
    stats = {"dropped": Counter[str]()}
    return [PreparedSource(name, stats, tuple(sorted((work / name).iterdir()))) for name in _NAMES]


def _scratch(work: Path, step: Callable[..., Any]) -> Path:
    return work / f"scratch{step.__name__}"


def _plan(work: Path, capacity: int) -> None:
    recipe = _recipe(capacity)
    started = time.process_time()
    scratch = _scratch(work, _plan)
    scratch.mkdir()
    sources = _sources(work)
    plan = plan_build(sources, recipe)
    _, packs = pack_split("train", {"": plan.train}, plan, sources, recipe)
    shards = cut_shards(packs, recipe.shards)
    stats = plan.train.stats.stats()
    summary = (
        f"{stats['sequences']:,} sequences in {stats['packs']:,} packs, {stats['fill']:.3%} full, "
        f"{len(shards):,} shards"
    )
    _report(work, started, summary)


def _audit(work: Path, capacity: int) -> None:
    del capacity
    started = time.process_time()
    audit = audit_sources(_sources(work), None, NO_MARKS)
    sequences = sum(figures.sequences for figures in audit.figures.values())
    _report(work, started, f"figures of {sequences:,} sequences")


def _report(work: Path, started: float, summary: str) -> None:
    """Write the CPU seconds and the peak memory of this process, with a summary of the result."""
    cpu = time.process_time() - started
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    memory = int(status["VmHWM"].split()[0]) << 10
    result = {"cpu": cpu, "memory": memory, "summary": summary}
    (work / "result.json").write_text(json.dumps(result))


def _recipe(capacity: int) -> BuildSftConfig:
    sources = [
        {"name": name, "path": "x", "share": share, "max_epochs": 2}
        for name, share in zip(_NAMES, (0.7, 0.3), strict=True)
    ]
    raw = {
        "out": "x",
        "tokenizer": {"path": "x"},
        "packing": {"max_length": capacity},
        "held_out": {"rate": 0.01},
        "sources": sources,
    }
    return validate(raw, BuildSftConfig, where="benchmark")


if __name__ == "__main__":
    main()
