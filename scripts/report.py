"""Write report.html for an artifact and everything it was made from.

python scripts/report.py runs/tiny/sft [--accuracy accuracy.json] [--out report.html]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from posttrain.errors import PosttrainError
from posttrain.report import write_report


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("artifact", type=Path, metavar="DIR", help="a stage's finished output")
    parser.add_argument("--accuracy", type=Path, help="what benchmarks/tiny_accuracy.py wrote")
    parser.add_argument("--out", type=Path, help="default: DIR/report.html")
    given = parser.parse_args(argv)
    print(write_report(given.artifact, out=given.out, accuracy=given.accuracy))


if __name__ == "__main__":
    try:
        main()
    except PosttrainError as error:
        sys.exit(f"{type(error).__name__}: {error}")
