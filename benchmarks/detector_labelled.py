"""Recall, false alarms and speed of the tool-call detector on a labelled set of real data.

python benchmarks/detector_labelled.py --shared ../shared

The set is made anew each time from the data in the folder: real calls in every notation and in text
of others; real chat, reasoning, code, documents and talk about tools without calls. Every miss and
every false alarm is listed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.chat.detect.labelled import negatives, positives
from tests.chat.detect.test_labelled import judge

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    shared: Path = parser.parse_args().shared
    if not (shared / "data").is_dir():
        parser.error(f"no data/ in {shared}")
    for label, cases in (("calls", list(positives(shared))), ("others", list(negatives(shared)))):
        size = sum(len(case.answer) + len(case.reasoning or "") for case in cases) / 1e6
        started = time.process_time()
        forms, wrong = judge(cases)
        seconds = time.process_time() - started
        print(f"{label}: {forms.total()} texts in {len(forms)} forms, {len(wrong)} wrong")
        print(f"  {size:.1f} million characters, {size / seconds:.1f} million a second")
        for case in wrong:
            print(f"  {case.form} {case.id}: {case.answer[:160]!r}")


if __name__ == "__main__":
    main()
