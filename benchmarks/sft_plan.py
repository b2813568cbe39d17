"""The plan of millions of rows: memory and time of mixture, order and packs, without any token.

    python benchmarks/sft_plan.py [--rows 1_000_000 18_000_000] [--capacity 262144] [--work DIR]

For each number of rows a spool of two sources with made-up columns is written (lengths log-normal,
50 to the capacity, the shape of long-reasoning data) and planned as a build does it: held out,
mixture with a share of 0.7 and 0.3, random order, packs, shards. Peak memory is of that process, a
row's part of it what exceeds the peak with a thousand rows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from data_builders.packed import cut_shards, pack_split
from data_builders.sft_plan import plan_build
from data_builders.sft_spool import RECORD, SEQUENCE, Spool
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.load import validate

_PART = 500_000
_NAMES = ("long", "short")


def main() -> None:
    parser = argparse.ArgumentParser(description="The plan of an SFT build, by rows.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 18_000_000])
    parser.add_argument("--capacity", type=int, default=262_144)
    parser.add_argument("--work", help="where to work; a temporary directory")
    options = parser.parse_args()
    base = 0
    print("| rows | CPU s | peak | bytes a row | scratch a row | packs | fill | shards |")
    print("|---|---|---|---|---|---|---|---|")
    for rows in (1000, *options.rows):
        work = Path(options.work or tempfile.mkdtemp()) / str(rows)
        shutil.rmtree(work, ignore_errors=True)
        _in_a_process(_write, work, rows, options.capacity)
        found = _in_a_process(_plan, work, options.capacity)
        base = base or found["peak"]
        print(
            f"| {rows:,} | {found['cpu']:.1f} | {found['peak'] / 1e6:,.0f} MB "
            f"| {(found['peak'] - base) / rows:.1f} | {found['scratch'] / rows:.0f} "
            f"| {found['packs']:,} | {found['fill']:.3%} | {found['shards']:,} |",
            flush=True,
        )
        shutil.rmtree(work)


def _in_a_process(function, work: Path, *arguments) -> dict:
    """Anew, so that its peak is its own."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=(work, *arguments))
    process.start()
    process.join()
    assert process.exitcode == 0, f"it ended with {process.exitcode}"
    result = work / "result.json"
    return json.loads(result.read_text()) if result.is_file() else {}


def _write(work: Path, rows: int, capacity: int) -> None:
    random = np.random.default_rng(0)
    for source, share in zip(_NAMES, (0.6, 0.4), strict=True):
        left, part = int(rows * share), 0
        while left:
            count = min(left, _PART)
            _write_part(work / source / f"{part:06d}", count, capacity, random)
            left, part = left - count, part + 1


def _write_part(folder: Path, count: int, capacity: int, random: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    records, sequences = np.zeros(count, RECORD), np.zeros(count, SEQUENCE)
    sequences["length"] = np.clip(random.lognormal(7.5, 1.6, count), 50, capacity)
    sequences["trained"] = sequences["length"] // 2
    sequences["budget"] = -1
    records["id64"] = records["row64"] = random.integers(0, 2**64, count, np.uint64)
    records["tokens"], records["trained"] = sequences["length"], sequences["trained"]
    records["first"], records["sequences"] = np.arange(count), 1
    records.tofile(folder / "records.bin")
    sequences.tofile(folder / "sequences.bin")


def _plan(work: Path, capacity: int) -> None:
    spools = [
        Spool(name, {"dropped": Counter[str]()}, tuple(sorted((work / name).iterdir())))
        for name in _NAMES
    ]
    sources = [
        {"name": name, "path": "x", "share": share, "max_epochs": 2}
        for name, share in zip(_NAMES, (0.7, 0.3), strict=True)
    ]
    raw = {
        "out": "x",
        "tokenizer": {"path": "x"},
        "packing": {"capacity": capacity},
        "held_out": {"rate": 0.001},
        "mixture": {"max_epochs": 1},
        "sources": sources,
    }
    recipe = validate(raw, BuildSftConfig, where="benchmark")
    scratch = work / "plan"
    scratch.mkdir()
    started = time.process_time()
    plan = plan_build(spools, recipe)
    train = pack_split(scratch, "train", {"": plan.train}, recipe)
    shards = cut_shards(train, recipe.shards)
    facts = train.tallies[""].facts()
    result = {
        "cpu": time.process_time() - started,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        "scratch": sum(path.stat().st_size for path in scratch.iterdir()),
        "packs": facts["packs"],
        "fill": facts["fill"],
        "shards": len(shards),
    }
    (work / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
