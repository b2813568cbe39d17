"""Packing against TRL's: CPU seconds, peak memory, packs, fill, mixing, on the same lengths.

    python benchmarks/packing.py                       # simulated lengths, 18 million at the end
    python benchmarks/packing.py --lengths runs/mine/sft_data --capacity 8192
    python benchmarks/packing.py --lengths lengths.txt --capacity 16384 --rows 0 --big 0

Arms: `ours` is `pack_lengths`; `TRL` is the best fit decreasing of its `pack_dataset` on all rows
together, which is TRL at its best; `TRL, 1,000 rows` packs a thousand rows at a time, as its
trainer does. TRL copies the tokens as it packs: it gets one byte a token here. Mixing is the mean
variance of log-length inside packs over the variance of all: 1 when a pack looks like the data, 0
when all its sequences have one length. Memory is what the resident set grew by at its peak (Linux
only). Lengths come from a file of integers or from the index of an `sft_data` folder.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

# the part of `pack_dataset` that packs, without the reading and writing around it
from trl.data_utils import _pack_bfd

from posttrain.tokens import Packs, pack_lengths
from posttrain.versions import package_versions

Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of one arm on one set of lengths: CPU seconds, MiB at the peak, packs."""

    lengths: str
    rows: int
    distinct: int
    capacity: int
    arm: str
    seconds: float
    mebibytes: float | None
    packs: int
    fill: float
    mixing: float | None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lengths", type=Path, help="integers, or an sft_data folder")
    parser.add_argument("--capacity", type=int, default=8192, help="for --lengths")
    parser.add_argument("--rows", type=int, default=20_000, help="of each simulated shape")
    parser.add_argument("--big", type=int, default=18_000_000, help="log-normal rows, ours only")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    options = parser.parse_args()
    results = []
    print("| lengths | rows | distinct | capacity | arm | CPU s | MiB | packs | fill | mixing |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for result in measured(options):
        results.append(result)
        print(as_row(result), flush=True)
    versions = package_versions(("numpy", "pyarrow", "trl"))
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    if options.out:
        stats = {"versions": versions, "results": [asdict(r) for r in results]}
        options.out.write_text(json.dumps(stats, indent=1) + "\n")


def measured(options: argparse.Namespace) -> Iterator[Result]:
    """Results of all arms on all lengths that the options name."""
    if options.lengths:
        yield from compared(
            options.lengths.name, read_lengths(options.lengths), options.capacity, options.repeats
        )
    if options.rows:
        for name, (lengths, capacity) in shapes(options.rows).items():
            yield from compared(name, lengths, capacity, options.repeats)
    capacity = 262_144
    for rows in (options.big // 100, options.big // 10, options.big):
        if rows:
            lengths = log_normal(rows, 8.5, 1.3, 50, capacity)
            name = "log-normal, 50 … 262,144"
            yield measure(name, lengths, capacity, "ours", our_counts, options.repeats)


def read_lengths(path: Path) -> Lengths:
    """Integers of a text file, or the lengths of an artifact's training sequences."""
    if path.is_dir():
        files = sorted((path / "index").glob("train-*.parquet"))
        parts = [pq.read_table(f, columns=["length"])["length"].to_numpy() for f in files]
        return np.concatenate(parts).astype(np.int64)
    return np.array(path.read_text("utf-8").split(), np.int64)


def log_normal(rows: int, mean: float, deviation: float, low: int, high: int) -> Lengths:
    draws = np.random.default_rng(0).lognormal(mean, deviation, rows)
    return np.clip(draws, low, high).astype(np.int64)


def shapes(rows: int) -> dict[str, tuple[Lengths, int]]:
    """Simulated lengths and a capacity for each."""
    rng = np.random.default_rng(0)
    humps = np.append(rng.integers(80, 200, rows * 2 // 3), rng.integers(1500, 3000, rows // 3))
    return {
        "log-normal around 400": (log_normal(rows, 6, 1, 20, 4096), 4096),
        "log-normal around 5,000": (log_normal(rows, 8.5, 1.3, 50, 262_144), 262_144),
        "uniform, 1 … capacity": (rng.integers(1, 4097, rows), 4096),
        "a third to a half of the capacity": (rng.integers(1366, 2048, rows), 4096),
        "two humps: 80 – 200, 1,500 – 3,000": (humps, 8192),
        "normal around 170": (np.clip(rng.normal(170, 40, rows), 20, 1024).astype(np.int64), 1024),
        "50, 100 and 200": (np.repeat([50, 100, 200], rows // 3), 4096),
        "all equal": (np.full(rows, 130), 1024),
        "all just above half": (rng.integers(2049, 2400, rows), 4096),
        "40 rows": (log_normal(40, 6, 1, 20, 4096), 4096),
    }


def compared(name: str, lengths: Lengths, capacity: int, repeats: int) -> Iterator[Result]:
    yield measure(name, lengths, capacity, "ours", our_counts, repeats)
    for arm, batch in (("TRL", len(lengths)), ("TRL, 1,000 rows", 1000)):

        def run(lengths: Lengths, capacity: int, batch: int = batch) -> list[Lengths]:
            return trl_lengths(lengths, capacity, batch)

        yield measure(name, lengths, capacity, arm, run, 1)


# a packer for `measure`: lengths and capacity → the lengths in each pack, or packs of positions
Packer = Callable[[Lengths, int], "Packs | list[Lengths]"]


def our_counts(lengths: Lengths, capacity: int) -> Packs:
    return pack_lengths(lengths, capacity)


def trl_lengths(lengths: Lengths, capacity: int, batch: int) -> list[Lengths]:
    """Lengths in each of TRL's packs."""
    packs: list[Lengths] = []
    for start in range(0, len(lengths), batch):
        part = lengths[start : start + batch]
        offsets = pa.array(np.concatenate([[0], np.cumsum(part)]), pa.int64())
        lists = pa.LargeListArray.from_arrays(offsets, np.zeros(part.sum(), np.int8))
        table = _pack_bfd(pa.table({"input_ids": lists}), capacity)
        column = table["seq_lengths"].combine_chunks()
        packs += np.split(column.values.to_numpy(), column.offsets.to_numpy()[1:-1])
    return packs


def measure(
    name: str, lengths: Lengths, capacity: int, arm: str, run: Packer, repeats: int
) -> Result:
    """Run a packer several times. Returns the CPU seconds of the best run, and its packs."""
    seconds = float("inf")
    growth: float | None = None
    packs: Packs | list[Lengths] | None = None
    for _ in range(max(1, repeats)):
        packs = None  # the memory of the last run's packs must not count
        before = forget_peak()
        started = time.process_time()
        packs = run(lengths, capacity)
        seconds = min(seconds, time.process_time() - started)
        growth = None if before is None else memory("VmHWM") - before
    assert packs is not None
    if isinstance(packs, Packs):
        counts = np.diff(packs.offsets)
        packed_lengths = lengths[packs.positions]
    else:
        counts = np.array([len(pack) for pack in packs])
        packed_lengths = np.concatenate(packs)
    assert len(packed_lengths) == len(lengths)
    return Result(
        lengths=name,
        rows=len(lengths),
        distinct=len(np.unique(lengths)),
        capacity=capacity,
        arm=arm,
        seconds=seconds,
        mebibytes=growth,
        packs=len(counts),
        fill=int(packed_lengths.sum()) / (len(counts) * capacity),
        mixing=mixing(packed_lengths, counts),
    )


def mixing(lengths: Lengths, counts: Lengths) -> float | None:
    """Variance of log-length inside packs over the variance of all; packs of one do not count."""
    values = np.log(lengths)
    pack = np.repeat(np.arange(len(counts)), counts)
    deviations = values - (np.bincount(pack, weights=values) / counts)[pack]
    several = counts[pack] > 1
    if not several.any() or (lengths == lengths[0]).all():
        return None
    return float((deviations[several] ** 2).mean() / values.var())


def forget_peak() -> float | None:
    """Reset the peak of the resident set. Returns its size now in MiB, None off Linux."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return memory("VmRSS")


def memory(field: str) -> float:
    """Size in MiB that the kernel states under this name."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field + ":"))


def as_row(result: Result) -> str:
    memory = "–" if result.mebibytes is None else f"{result.mebibytes:,.0f}"
    mixed = "–" if result.mixing is None else f"{result.mixing:.2f}"
    return (
        f"| {result.lengths} | {result.rows:,} | {result.distinct:,} | {result.capacity:,} "
        f"| {result.arm} | {result.seconds:.3f} | {memory} | {result.packs:,} "
        f"| {result.fill:.3%} | {mixed} |"
    )


if __name__ == "__main__":
    main()
