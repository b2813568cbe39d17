"""Damaged rows of every dialect: each is kept or dropped with a reason that says where.

    python benchmarks/mutated_rows.py [--rows 10000] [--big 20] [--markdown out.md]

10,000 seeded rows a dialect, damaged in one of fifteen ways, and messages of 5 MB, are read,
filtered, rendered, tokenised and masked one by one; then all files are built into one data set by
the script, with two workers. Asserted: no exception, every row kept or dropped, every drop names a
place in its row, `strict` stops at the first unreadable row with file, line and reason, manifest
and `dropped.jsonl` count the same rows. Printed: reasons by damage, and the row that took longest.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.data_builders.rows.mutated_runs import Run, build_all, preparer_for, run
from tests.data_builders.rows.mutations import MUTATIONS, ROWS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000, help="rows of each dialect")
    parser.add_argument("--big", type=int, default=20, help="how many of them hold 5 MB")
    parser.add_argument("--markdown", type=Path, help="write the tables there too")
    options = parser.parse_args()
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        preparer = preparer_for(folder)
        outcomes = dict[str, Run]()
        for dialect in ROWS:
            started = time.process_time()
            result = run(dialect, folder, rows=options.rows, big=options.big, preparer=preparer)
            seconds = time.process_time() - started
            outcomes[dialect] = result
            assert not result.nameless, result.nameless[:5]
            heading = f"**{dialect}**, {options.rows:,} rows, {seconds:.0f} s"
            section = [heading, "", *_table(result), ""]
            print("\n".join(section), flush=True)
            lines += section
        lines += _build_lines(build_all(folder, outcomes))
        print("\n".join(lines[-2:]))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", "utf-8")


def _table(result: Run) -> list[str]:
    """Lines of a table of outcomes by damage, as Markdown, with the number of each reason."""
    rows = ["| damage | rows | kept | dropped |", "|---|--:|--:|---|"]
    for damage in (*MUTATIONS, "big_message"):
        counts = Counter[str]()
        for (outcome_damage, reason), count in result.outcomes.items():
            if outcome_damage == damage:
                counts[reason] += count
        kept = counts.pop("kept", 0)
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.most_common())
        rows.append(f"| {damage} | {kept + counts.total():,} | {kept:,} | {reasons} |")
    seconds, damage, line = result.slowest
    rows += ["", f"Slowest: {1000 * seconds:.0f} ms of CPU time ({damage}, line {line})."]
    return rows


def _build_lines(manifest: dict[str, Any]) -> list[str]:
    counts = manifest["counts"]
    dropped = sum(counts["dropped"].values())
    reasons = json.dumps(counts["dropped"])
    return [
        f"Built whole: {counts['in']:,} rows in = {counts['kept']:,} kept + {dropped:,} dropped.",
        f"Reasons: {reasons}.",
    ]


if __name__ == "__main__":
    main()
