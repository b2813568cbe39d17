"""Growth of an SFT build: memory with rows, speed with workers.

    python benchmarks/sft_scale.py                                # rows of the tiny world
    python benchmarks/sft_scale.py --tokenizer DIR --data traces.jsonl --data gsm8k.jsonl \
        [--rows 468 2532] [--times 1 4 16] [--workers 1 2] [--only memory|workers] [--repeat 3]

The given rows, up to `--rows` of each file, are written once, four and sixteen times, each copy
with its number in the first user turn so that no two are the same conversation. Each build is
`scripts/build_sft.py` as a user runs it, in a process of its own. What a build costs without rows
(imports, tokenizer, report) is measured with the first 32 of them and taken off where a column says
so. `others` is how many cores other work on the machine kept busy: wall times mean something where
it is next to nothing. Asserted: builds of the same rows have the same digest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from process_tree import Cost, Memory, measured

from data_builders.rows.read import read_examples
from posttrain.config.source import SourceConfig
from posttrain.records import Example, message_to_template
from posttrain.runs import read_artifact

ROOT = Path(__file__).resolve().parent.parent
_ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
_FEW = 32  # rows of a build that stands for one without rows
_BUILD_IN_PARTS = """
from data_builders.sft import build
from scripts.build_sft import main

build.PART_BYTES = {part_bytes}
main()
"""
_WORLD = ("maths", "lists", "logs", "steps", "lookups", "plans")
_WORLD_ROWS = 500  # of each


@dataclass(frozen=True, slots=True)
class Built:
    """Finished build: its cost, and the rows and tokens that it made."""

    cost: Cost
    rows: int
    tokens: int
    digest: str


@dataclass(frozen=True, slots=True)
class Setup:
    """Folder, recipe and rows that all builds share."""

    work: Path
    recipe: Path
    rows: Sequence[dict[str, Any]]


def main() -> None:
    options = _options()
    packages = ("numpy", "pyarrow", "tokenizers", "tiktoken", "transformers")
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, {', '.join(f'{p} {version(p)}' for p in packages)}\n"
    )
    work = Path(options.work or tempfile.mkdtemp())
    work.mkdir(parents=True, exist_ok=True)
    if not options.data:
        options.data, options.tokenizer = _tiny_world(work)
    rows = list(_rows(options.data, options.rows))
    recipe = _recipe(work, options.tokenizer, options.capacity)
    setup = Setup(work, recipe, rows)
    _build(setup, _write(setup, _FEW, 1), 1)  # reads libraries for the first time
    if options.only != "workers":
        _memory(setup, options.times, options.workers)
    if options.only != "memory":
        _speed(setup, max(options.times), options.workers, options.repeat)
    if not options.work:
        shutil.rmtree(work)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Growth of an SFT build.")
    parser.add_argument("--data", action="append", help="rows; without any, the tiny world's")
    parser.add_argument("--tokenizer", help="with --data: a tokenizer's directory")
    parser.add_argument("--rows", type=int, nargs="*", default=[], help="of each file; all")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", choices=("memory", "workers"))
    parser.add_argument("--repeat", type=int, default=3, help="of the builds that are timed")
    parser.add_argument("--capacity", type=int, default=32_768)
    parser.add_argument("--work", help="where to work; a temporary directory")
    options = parser.parse_args()
    if bool(options.data) != bool(options.tokenizer):
        parser.error("give both --data and --tokenizer, or neither")
    return options


def _tiny_world(work: Path) -> tuple[list[str], str]:
    """Generate the tiny world. Returns its files of training rows and its tokenizer."""
    world = work / "world"
    sizes = [f"families.{name}.train={_WORLD_ROWS}" for name in _WORLD]
    command = [sys.executable, "scripts/tiny_world.py", "--config", "recipes/tiny/world.yaml"]
    measured([*command, f"out={world}", *sizes], cwd=ROOT, env=_ENVIRONMENT)
    return [str(world / "train" / f"{name}.jsonl") for name in _WORLD], str(world / "tokenizer")


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
            tools = {} if example.tools is None else {"tools": json.loads(example.tools)}
            yield {"messages": messages, **tools}


def _write(setup: Setup, count: int, times: int) -> Path:
    """Write the first rows, `times` over, no two alike."""
    path = setup.work / f"rows-{count}x{times}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for copy in range(times):
            for row in setup.rows[:count]:
                messages = [dict(message) for message in row["messages"]]
                user = next(m for m in messages if m["role"] == "user")
                user["content"] = f"{user['content']} ({copy})"
                file.write(json.dumps({**row, "messages": messages}, ensure_ascii=False) + "\n")
    return path


def _recipe(work: Path, tokenizer: str, capacity: int) -> Path:
    path = work / "recipe.yaml"
    recipe = {
        "out": "given below",
        "tokenizer": {"path": str(Path(tokenizer).resolve()), "chat_template": "nemotron_3_nano"},
        "reasoning": {"strip": 0.10, "truncate": 0.03},
        "packing": {"max_length": capacity},
        "held_out": {"rate": 0.01},
        "sources": [{"name": "rows", "path": "given below", "license": "MIT"}],
    }
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


def _build(setup: Setup, rows: Path, workers: int, *, cut_small: bool = False) -> Built:
    """Run a build. `cut_small` cuts few rows into parts for every worker, so that all start."""
    out = setup.work / "out"
    shutil.rmtree(out, ignore_errors=True)
    script = ["scripts/build_sft.py"]
    if cut_small:
        part_bytes = max(rows.stat().st_size // (2 * workers), 1)
        script = ["-c", _BUILD_IN_PARTS.format(part_bytes=part_bytes)]
    keys = [f"out={out}", f"sources.0.path={rows}", f"workers={workers}"]
    command = [sys.executable, *script, "--config", str(setup.recipe), *keys]
    cost, _ = measured(command, cwd=ROOT, env=_ENVIRONMENT)
    artifact = read_artifact(out, verify=False)
    tokens = sum(split["tokens"] for split in artifact.stats["splits"].values())
    return Built(cost, artifact.counts.rows_in, tokens, artifact.digest)


def _memory(setup: Setup, times: Sequence[int], workers: Sequence[int]) -> None:
    print("| workers | rows | tokens | largest process: resident | anonymous ", end="")
    print("| all processes: resident | anonymous |\n|--:|--:|--:|--:|--:|--:|--:|")
    for count in workers:
        builds = [_build(setup, _write(setup, _FEW, 1), count, cut_small=True)]
        for copies in times:
            builds.append(_build(setup, _write(setup, len(setup.rows), copies), count))
        once = builds[1]
        for built in builds:
            print(
                f"| {count} | {built.rows:,} | {built.tokens:,} "
                f"| {_growth(built.cost.largest, once.cost.largest)} "
                f"| {_growth(built.cost.together, once.cost.together)} |",
                flush=True,
            )
    print()


def _growth(memory: Memory, reference: Memory) -> str:
    """Table cells of resident and anonymous memory, each with its growth over the reference."""
    resident_growth = memory.resident / reference.resident - 1
    anonymous_growth = memory.anonymous / reference.anonymous - 1
    return (
        f"{memory.resident / 1e6:,.0f} MB ({resident_growth:+.1%}) "
        f"| {memory.anonymous / 1e6:,.0f} MB ({anonymous_growth:+.1%})"
    )


def _speed(setup: Setup, times: int, workers: Sequence[int], repeat: int) -> None:
    """Print the best of several builds, less the cost of builds without rows."""
    paths = {"few": _write(setup, _FEW, 1), "all": _write(setup, len(setup.rows), times)}
    runs: dict[tuple[str, int], list[Built]] = {}
    for _ in range(repeat):
        for count in workers:
            for name, path in paths.items():
                built = _build(setup, path, count, cut_small=name == "few")
                runs.setdefault((name, count), []).append(built)
    for name in paths:
        digests = {run.digest for count in workers for run in runs[name, count]}
        assert len(digests) == 1, f"builds of the same rows differ: {digests}"
    print("| workers | wall s | CPU s | wall s without start | CPU s without start ", end="")
    print("| rows/s | times as fast | without start | others |\n" + "|--:" * 9 + "|")
    base: tuple[float, float] | None = None
    for count in workers:
        best = min(runs["all", count], key=lambda run: run.cost.wall)
        empty_costs = [run.cost for run in runs["few", count]]
        least_cpu = min(run.cost.cpu for run in runs["all", count])
        wall = best.cost.wall - min(cost.wall for cost in empty_costs)
        cpu = least_cpu - min(cost.cpu for cost in empty_costs)
        if min(wall, cpu) <= 0:
            sys.exit(f"too few rows to start {count} workers for: give more --times")
        base = base or (best.cost.wall, wall)
        print(
            f"| {count} | {best.cost.wall:.1f} | {best.cost.cpu:.1f} | {wall:.1f} | {cpu:.1f} "
            f"| {best.rows / wall:,.0f} | {base[0] / best.cost.wall:.2f} | {base[1] / wall:.2f} "
            f"| {best.cost.others:.2f} |"
        )
    built = runs["all", workers[0]][0]
    print(
        f"\n{built.rows:,} rows, {built.tokens:,} tokens, digest {built.digest[:16]} in all builds"
    )


if __name__ == "__main__":
    main()
