"""A build killed with −9 at random moments and started again: the bytes of an undisturbed one.

    python benchmarks/sft_kills.py [--kills 20] [--workers 1 2] [--seed 0] [--markdown out.md]

Each kill has a directory of its own: the build is started, killed at a moment drawn between its
first finished part and its end, and finished by the same command. Moments are counted in CPU
seconds of all its processes, which other work on the machine does not move. Every second kill takes
only the main process, so that its workers have to end by themselves; the others the whole process
group. Asserted: the same digest, the same files with the same bytes, no process left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from process_tree import cpu_seconds

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.data_builders.small_build import (
    ROOT,
    manifest,
    plain_rows,
    reasoning_rows,
    write_recipe,
    write_rows,
)

# a build of few rows in many parts
_BUILD = """
from data_builders.sft import build
from scripts.build_sft import main

build.PART_BYTES = 40_000
main()
"""
_INTERVAL = 0.01  # seconds between looks at a build
_PATIENCE = 60.0  # seconds that workers get to notice that nobody waits for them


@dataclass(frozen=True)
class Kill:
    """Kill of a build: CPU seconds before it, state of its directory, processes that it ended."""

    workers: int
    seconds: float
    state: str
    whole_group: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20, help="for each number of workers")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", type=Path, help="write the table there too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = _recipe(folder, options.rows)
        lines = ["| workers | killed after CPU s | of | was there | killed |"]
        lines.append("|--:|--:|--:|---|---|")
        expected: dict[str, str] | None = None
        digest = ""
        for workers in options.workers:
            first_part, end, contents = _undisturbed(folder, recipe, workers)
            assert expected in (None, contents), "the number of workers changed the bytes"
            expected = contents
            rng = random.Random(f"{options.seed} {workers}")
            kills = attempts = 0
            while kills < options.kills:
                moment = rng.uniform(first_part, end)
                out = folder / f"killed-{workers}-{attempts}"
                kill = _killed(recipe, out, workers, moment, whole_group=kills % 2 == 0)
                attempts += 1
                if kill is None:  # quicker than the first: another moment
                    end = min(end, moment)
                    continue
                kills += 1
                assert _run(recipe, out, workers).wait() == 0
                assert _contents(out) == expected, f"other bytes after {kill}"
                digest = manifest(out)["digest"][:16]
                lines.append(_line(kill, end))
                print(lines[-1], flush=True)
        lines += ["", f"All {len(lines) - 2} ended with digest {digest}."]
        print(lines[-1])
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", "utf-8")


def _recipe(folder: Path, rows: int) -> Path:
    plain = plain_rows(rows)
    sources = [
        {"name": "reasoning", "path": str(write_rows(folder / "r.jsonl", reasoning_rows(rows)))},
        {"name": "plain", "path": str(write_rows(folder / "p.jsonl", [*plain, *plain[:9], {}]))},
    ]
    return write_recipe(folder, sources=sources, shards={"packs": 60}, write_dropped=True)


def _undisturbed(folder: Path, recipe: Path, workers: int) -> tuple[float, float, dict[str, str]]:
    """CPU seconds of a build to its first part and to its end, and the files that it wrote."""
    out = folder / f"whole-{workers}"
    process = _run(recipe, out, workers)
    first_part = seconds = 0.0
    while process.poll() is None:
        seconds = max(seconds, cpu_seconds(process.pid))
        if not first_part and any(out.glob("work/parts/*/*/counts.json")):
            first_part = seconds
        time.sleep(_INTERVAL)
    assert process.returncode == 0
    return first_part, seconds, _contents(out)


def _run(recipe: Path, out: Path, workers: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _BUILD, "--config", str(recipe)]
    return subprocess.Popen(
        [*command, f"out={out}", f"workers={workers}"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def _killed(
    recipe: Path, out: Path, workers: int, moment: float, *, whole_group: bool
) -> Kill | None:
    """Kill a build after some CPU seconds; None if all that counts was finished by then."""
    process = _run(recipe, out, workers)
    while process.poll() is None and cpu_seconds(process.pid) < moment:
        time.sleep(_INTERVAL)
    state = _state(out)
    if state == "finished":
        assert process.wait() == 0
        return None
    if whole_group:
        with contextlib.suppress(ProcessLookupError):  # it had just finished
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()
    _check_alone(process.pid)
    return Kill(workers, moment, state, whole_group)


def _check_alone(group: int) -> None:
    """Assert that no process of the killed build goes on for long."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError(f"processes of group {group} are still there")


def _state(out: Path) -> str:
    """Progress of a build, by the files in its directory."""
    if (out / "manifest.json").is_file():
        return "finished"
    if (out / "tokenizer").is_dir():
        return "shards written"
    if (out / "packed").is_dir():
        return f"{len(list((out / 'packed').iterdir()))} shards"
    done = len(list(out.glob("work/parts/*/*/counts.json")))
    return f"{done} parts prepared" if done else "nothing yet"


def _contents(out: Path) -> dict[str, str]:
    """Hash of the bytes of each file of a finished build, by path."""
    assert (out / "manifest.json").is_file(), f"{out} was not finished"
    assert json.loads((out / "manifest.json").read_text("utf-8"))["digest"]
    return {
        str(path.relative_to(out)): hashlib.sha256(_compared_bytes(path)).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


def _compared_bytes(path: Path) -> bytes:
    """Bytes of a file; a report is titled by its directory's name, which is not compared."""
    if path.name != "report.html":
        return path.read_bytes()
    return path.read_bytes().replace(path.parent.name.encode(), b"out")


def _line(kill: Kill, end: float) -> str:
    processes = "all processes" if kill.whole_group else "the main process"
    return f"| {kill.workers} | {kill.seconds:.1f} | {end:.1f} | {kill.state} | {processes} |"


if __name__ == "__main__":
    main()
