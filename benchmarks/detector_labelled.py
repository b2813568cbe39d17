"""Recall, false alarms and speed of the tool-call detector on a labelled set of real data.

python -m benchmarks detector_labelled --shared ../shared

The set is made anew each time from the data in the folder: real calls in every notation and in text
of others; real chat, reasoning, code, documents and talk about tools without calls. Every miss and
every false alarm is listed.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace

from benchmarks.options import add_shared
from tests.chat.detect.labelled import negatives, positives
from tests.chat.detect.test_labelled import judge


def add_arguments(parser: ArgumentParser) -> None:
    add_shared(parser)


def main(options: Namespace) -> None:
    shared = options.shared
    for label, cases in (("calls", list(positives(shared))), ("others", list(negatives(shared)))):
        size = sum(len(case.answer) + len(case.reasoning or "") for case in cases) / 1e6
        started = time.process_time()
        forms, wrong = judge(cases)
        seconds = time.process_time() - started
        print(f"{label}: {forms.total()} texts in {len(forms)} forms, {len(wrong)} wrong")
        print(f"  {size:.1f} million characters, {size / seconds:.1f} million a second")
        for case in wrong:
            print(f"  {case.form} {case.id}: {case.answer[:160]!r}")
