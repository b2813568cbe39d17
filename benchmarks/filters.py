"""The filters of what a text says: what they find, what they lose, what they cost.

    python benchmarks/filters.py [--shared ../shared] [--loops 100] [--repeats 5] [--write]

On real sets in a folder, on texts of them that were read (`repetition_labels.yaml`), on loops
planted into real texts, on honest kinds of repetition. `--write` replaces the tables in
docs/filters.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import filters_repetition as repetition
from benchmarks.filters_cost import costs
from posttrain.versions import package_versions

ROOT = Path(__file__).resolve().parents[1]
MARKS = ("<!-- filters: begin -->", "<!-- filters: end -->")
PAGE = ROOT / "docs" / "filters.md"
PACKAGES = ("numpy", "google-re2", "py3langid", *repetition.CODE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--loops", type=int, default=100, help="planted loops a cell")
    parser.add_argument("--repeats", type=int, default=5, help="runs, of which the best counts")
    parser.add_argument("--write", action="store_true", help="replace the tables in the guide")
    given = parser.parse_args()
    if not (given.shared / "data").is_dir():
        parser.error(f"no data/ in {given.shared}")
    lines = list[str]()
    for line in report(given.shared, given.loops, given.repeats):
        print(line, flush=True)
        lines.append(line)
    if given.write:
        write_into(PAGE, "\n".join(lines))


def report(shared: Path, loops: int, repeats: int) -> Iterator[str]:
    """All tables."""
    versions = ", ".join(f"{name} {v}" for name, v in package_versions(PACKAGES).items())
    machine = f"{os.cpu_count()} {platform.machine()} cores, Python {platform.python_version()}"
    yield f"{machine}, {versions}."
    sets, judged = repetition.by_set(shared)
    yield "\n### Real sets\n"
    yield from sets
    yield "\nDropped from the first four sets, which should hold honest texts:\n"
    yield from repetition.losses(judged)
    yield "\n### Texts that were read\n"
    yield from repetition.labelled(judged)
    yield "\n### Compression alone\n"
    yield from repetition.compression(judged)
    yield "\n### Planted loops\n"
    yield from repetition.made_up(shared, loops)
    yield "\nBy place, rounds of 3 to 100 words, 3 % drift, in prose:\n"
    yield from repetition.by_place(shared, loops)
    yield "\n### Honest kinds\n"
    yield from repetition.honest()
    yield "\n### The first pass\n"
    yield from repetition.first_pass(shared, judged)
    yield "\n### Cost\n"
    yield from costs(shared, repeats)


def write_into(page: Path, text: str) -> None:
    """Replace what stands between the marks."""
    begin, end = MARKS
    before, _, rest = page.read_text("utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        sys.exit(f"{page} has no {begin} … {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", "utf-8")


if __name__ == "__main__":
    main()
