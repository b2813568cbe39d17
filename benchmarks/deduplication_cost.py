"""What deduplication costs: CPU a row, bytes a row, memory.

    python benchmarks/deduplication_cost.py --data ../shared/data [--rows 200_000 1_600_000]

First what is computed for every record, on real sets, one thread: keys alone, and keys with
signatures, in rows and megabytes of text a CPU second. Then the search over all records, on
made-up columns of `--rows` records of which one in fifty has a copy, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.dedup_sets import sets_in
from data_builders.dedup.columns import COLUMN_ROW, DedupColumns, column_batch
from data_builders.dedup.duplicates import find_duplicates, order_of
from data_builders.dedup.signature import BANDS
from data_builders.keyed import shuffled_keys
from posttrain.config.deduplication import DeduplicationConfig, NearConfig
from posttrain.records import Example
from tests.data_builders.dedup.copies import chat, sentence

EXACT = DeduplicationConfig()
NEAR = DeduplicationConfig(near=NearConfig())
_BATCH = 128
_TIMES = 3
_COPIES = 50  # one record in so many is another's copy
_PART = 100_000
_TEXTS = 1000  # different ones in the made-up columns


def main() -> None:
    parser = argparse.ArgumentParser(description="What deduplication costs.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the sets")
    parser.add_argument("--rows", type=int, nargs="*", default=[200_000, 1_600_000])
    parser.add_argument("--work", help="where the made-up columns go; a temporary directory")
    options = parser.parse_args()
    columns(sets_in(options.data))
    print("\n| records | search | CPU s | µs a record | memory above the start |")
    print("|---|---|---|---|---|")
    for rows in options.rows:
        for near in (False, True):
            work = Path(options.work or tempfile.mkdtemp()) / f"{rows}-{near}"
            in_a_process(make_up, work, rows, near)
            result = in_a_process(search, work, near)
            # some more meet by chance and have one of the few texts in common
            assert 1 <= result["found"] / (rows // _COPIES) < 1.01, result
            print(
                f"| {rows:,} | {'exact and near' if near else 'exact'} | {result['cpu']:.1f} "
                f"| {result['cpu'] / rows * 1e6:.1f} "
                f"| {(result['peak'] - result['before']) / 1e6:,.0f} MB |",
                flush=True,
            )
            shutil.rmtree(work)


def columns(sets: dict[str, list[Example]]) -> None:
    """What is computed and written for every record."""
    print("| set | records | MB of text | exact, rows/s | with near, rows/s | MB/s | bytes a row |")
    print("|---|---|---|---|---|---|---|")
    for name, examples in sets.items():
        size = sum(len(m.content) + len(m.reasoning or "") for e in examples for m in e.messages)
        exact, near = quickest(examples, EXACT), quickest(examples, NEAR)
        written = sum(
            len(b.rows) * COLUMN_ROW.itemsize + b.bands.nbytes + len(b.texts)
            for b in batches(examples, NEAR)
        )
        count = len(examples)
        print(
            f"| {name} | {count:,} | {size / 1e6:.1f} | {count / exact:,.0f} | {count / near:,.0f} "
            f"| {size / near / 1e6:.1f} | {written / count:,.0f} |",
            flush=True,
        )


def batches(examples: list[Example], config: DeduplicationConfig):
    return (
        column_batch(examples[k : k + _BATCH], config, None)
        for k in range(0, len(examples), _BATCH)
        for k in range(0, len(examples), _BATCH)
    )


def quickest(examples: list[Example], config: DeduplicationConfig) -> float:
    """CPU seconds for all records, the least of several times."""
    spent: list[float] = []
    for _ in range(_TIMES):
        started = time.process_time()
        for _ in batches(examples, config):
            pass
        spent.append(time.process_time() - started)
    return min(spent)


def in_a_process(function, work: Path, *arguments) -> dict:
    """Anew, so that its peak is its own."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=(work, *arguments))
    process.start()
    process.join()
    assert process.exitcode == 0, f"it ended with {process.exitcode}"
    result = work / "result.json"
    return json.loads(result.read_text()) if result.is_file() else {}


def make_up(work: Path, rows: int, near: bool) -> None:
    """Columns as of so many records, in parts; the last of them say what the first said, with
    another key where they are to be found as near-duplicates."""
    rng = random.Random(0)
    some = [chat(sentence(rng, 20), sentence(rng, 60)) for _ in range(_TEXTS)]
    packed = column_batch(some, NEAR, None)
    original = rows - rows // _COPIES
    for first in range(0, rows, _PART):
        folder = work / f"{first:09d}"
        folder.mkdir(parents=True)
        row = np.arange(first, min(first + _PART, rows)).astype(np.uint64)
        text = np.where(row < original, row, row - np.uint64(original))
        said = packed.rows[text % np.uint64(_TEXTS)]
        for salt, name in enumerate(("conversation", "prompt", "id64", "rest64")):
            copied = name == "conversation" and not near
            said[name] = shuffled_keys(text if copied else row, salt)
        keys = text[:, None] * np.uint64(BANDS) + np.arange(BANDS, dtype=np.uint64)
        bands = (shuffled_keys(keys, 9) >> np.uint64(32)).astype(np.uint32)
        said.tofile(folder / "dedup.bin")
        bands.tofile(folder / "dedup_bands.bin")
        (folder / "dedup_texts.bin").write_bytes(packed.texts)


def peak() -> int:
    """Bytes; of this process alone, unlike `ru_maxrss`, which begins with its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) << 10


def search(work: Path, near: bool) -> None:
    """Find the copies, with a watch on processor and memory."""
    said = DedupColumns(sorted(path for path in work.iterdir() if path.is_dir()))
    config = NEAR if near else EXACT
    before = peak()
    started = time.process_time()
    found = find_duplicates(order_of([said], ["made up"], config), config, work / "index")
    result = {
        "cpu": time.process_time() - started,
        "before": before,
        "peak": peak(),
        "found": len(found.row),
    }
    (work / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
