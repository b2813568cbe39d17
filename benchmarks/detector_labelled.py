"""Recall and false alarms of the tool-call detector on a labelled set of real data.

python benchmarks/detector_labelled.py --shared ../shared

The set is made anew each time from the data in the folder: real calls in every notation and in text
of others; real chat, reasoning, code, documents and talk about tools without calls. Every miss and
every false alarm is listed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.chat.detect.figures import tally
from tests.chat.detect.labelled_negatives import negatives
from tests.chat.detect.labelled_positives import positives

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    shared: Path = parser.parse_args().shared
    if not (shared / "data").is_dir():
        parser.error(f"no data/ in {shared}")
    started = time.perf_counter()
    figures = tally(itertools.chain(positives(shared), negatives(shared)))
    print("\n".join(figures.lines()))
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
