"""How an SFT build grows: memory with rows, speed with workers.

    python benchmarks/sft_scale.py --tokenizer DIR --data traces.jsonl --data gsm8k.jsonl \
        [--rows 2532 …] [--times 1 4 16] [--workers 1 2] [--repeat 3] [--work DIR]

The given rows, up to `--rows` of each file, are written once, four and sixteen times, each copy
with its number in the first user turn so that no two are the same conversation. Each build is a
process of its own, `scripts/build_sft.py` as a user runs it, started anew. Peak memory is of its
largest process: resident (what the kernel counts, files that are mapped included) and anonymous
(what the process itself asked for, sampled 50 times a second). CPU is of all its processes. What a
build costs without rows, imports above all, is measured with the first 32 of them and taken off.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from data_builders.reading import read_examples
from posttrain.artifacts import read_artifact
from posttrain.config.source import SourceConfig
from posttrain.records import Example, message_to_template

ROOT = Path(__file__).resolve().parent.parent
_FEW = 32


@dataclass(frozen=True)
class Cost:
    """One build: seconds, bytes of its largest process, and what it made."""

    wall: float
    cpu: float
    resident: int
    anonymous: int
    rows: int
    tokens: int
    digest: str


def main() -> None:
    parser = argparse.ArgumentParser(description="Growth of an SFT build.")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--data", action="append", required=True)
    parser.add_argument("--rows", type=int, nargs="*", default=[], help="of each file; all")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=3, help="of the builds with workers")
    parser.add_argument("--capacity", type=int, default=32_768)
    parser.add_argument("--part-bytes", type=int, default=4_000_000, help="with workers")
    parser.add_argument("--work", help="where to work; a temporary directory")
    options = parser.parse_args()
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.2f}, Python {platform.python_version()}"
    )
    work = Path(options.work or tempfile.mkdtemp())
    work.mkdir(parents=True, exist_ok=True)
    rows = list(_rows(options.data, options.rows))
    recipe = _recipe(work, options.tokenizer, options.capacity)
    few = _build(work, recipe, _write(work, rows[:_FEW], 1))
    print(f"the first {_FEW} rows alone: {few.wall:.1f} s, {few.cpu:.1f} CPU s\n")
    _growth(work, recipe, rows, options.times, few)
    if options.workers:
        parts = f"part_bytes={options.part_bytes}"
        _speed(work, recipe, rows, max(options.times), options.workers, options.repeat, parts)
    if not options.work:
        shutil.rmtree(work)


def _rows(files: Sequence[str], counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    for k, file in enumerate(files):
        with open(file, encoding="utf-8") as handle:
            first = json.loads(handle.readline())
        fields: Any = {"prompt": "question", "completion": "answer"} if "question" in first else {}
        source = SourceConfig(name="rows", path=str(Path(file).resolve()), fields=fields)
        examples = [e for e in read_examples(source, Path(".")) if isinstance(e, Example)]
        for example in examples[: counts[k] if k < len(counts) else None]:
            messages = [message_to_template(message) for message in example.messages]
            for message in messages:
                message.pop("thinking", None)  # the trace under its second name
            yield {"messages": messages}


def _write(work: Path, rows: Sequence[dict[str, Any]], times: int) -> Path:
    """The rows, `times` over, no two alike."""
    path = work / f"rows-{len(rows)}x{times}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for copy in range(times):
            for row in rows:
                messages = [dict(message) for message in row["messages"]]
                user = next(m for m in messages if m["role"] == "user")
                user["content"] = f"{user['content']} ({copy})"
                file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    return path


def _recipe(work: Path, tokenizer: str, capacity: int) -> Path:
    path = work / "recipe.yaml"
    recipe = {
        "out": "given below",
        "tokenizer": {"path": str(Path(tokenizer).resolve())},
        "packing": {"capacity": capacity},
        "held_out": {"rate": 0.01},
        "sources": [{"name": "rows", "path": "given below", "licence": "MIT"}],
    }
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


def _build(work: Path, recipe: Path, rows: Path, *overrides: str) -> Cost:
    out = work / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, str(ROOT / "scripts" / "build_sft.py"), "--config", str(recipe)]
    command += [f"out={out}", f"sources.0.path={rows}", *overrides]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    watch = _Watch(process.pid)
    said, _ = process.communicate()
    resident, anonymous = watch.peak()
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - started
    if process.returncode:
        sys.exit(said)
    found = read_artifact(out, verify=False)
    tokens = sum(split["tokens"] for split in found.facts["splits"].values())
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, cpu, resident, anonymous, found.counts.rows_in, tokens, found.digest)


class _Watch:
    """The largest resident and anonymous memory among a process and its children."""

    def __init__(self, pid: int) -> None:
        self._pid, self._peak, self._over = pid, (0, 0), threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def peak(self) -> tuple[int, int]:
        self._over.set()
        self._thread.join()
        return self._peak

    def _look(self) -> None:
        while not self._over.wait(0.02):
            for pid in (self._pid, *_children(self._pid)):
                found = _memory(pid)
                self._peak = max(self._peak[0], found[0]), max(self._peak[1], found[1])


def _children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _memory(pid: int) -> tuple[int, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    values = dict(line.split(":", 1) for line in lines)
    kib = [int(values.get(name, "0").split()[0]) for name in ("VmHWM", "RssAnon")]
    return kib[0] << 10, kib[1] << 10


def _growth(work: Path, recipe: Path, rows: Sequence[Any], times: Sequence[int], few: Cost) -> None:
    print(
        "| rows | tokens | CPU s | CPU s without starting | rows/s of CPU | resident | anonymous |"
    )
    print("|---|---|---|---|---|---|---|")
    first: Cost | None = None
    for count in times:
        cost = _build(work, recipe, _write(work, rows, count))
        first = first or cost
        own = cost.cpu - few.cpu
        print(
            f"| {cost.rows:,} | {cost.tokens:,} | {cost.cpu:.1f} | {own:.1f} "
            f"| {cost.rows / own:,.0f} | {cost.resident / 1e6:,.0f} MB "
            f"({cost.resident / first.resident - 1:+.1%}) | {cost.anonymous / 1e6:,.0f} MB "
            f"({cost.anonymous / first.anonymous - 1:+.1%}) |",
            flush=True,
        )
    print()


def _speed(
    work: Path,
    recipe: Path,
    rows: Sequence[Any],
    times: int,
    workers: Sequence[int],
    repeat: int,
    parts: str,
) -> None:
    path = _write(work, rows, times)
    best: dict[int, Cost] = {}
    for _ in range(repeat):
        for count in workers:
            cost = _build(work, recipe, path, f"workers={count}", parts)
            if count not in best or cost.wall < best[count].wall:
                best[count] = cost
    print(f"| workers | wall s, best of {repeat} | times as fast | CPU s | rows/s | digest |")
    print("|---|---|---|---|---|---|")
    for count, cost in best.items():
        print(
            f"| {count} | {cost.wall:.1f} | {best[workers[0]].wall / cost.wall:.2f} "
            f"| {cost.cpu:.1f} | {cost.rows / cost.wall:,.0f} | {cost.digest[:12]} |"
        )
    print(f"\nload at the end {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
