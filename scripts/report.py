"""Write report.html for an artifact and everything it was made from.

posttrain report runs/tiny/sft [--out report.html]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from posttrain.config.command import run_command


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Write the report of an artifact.")
    parser.add_argument("artifact", type=Path, metavar="DIR", help="a stage's finished output")
    parser.add_argument("--out", type=Path, help="default: DIR/report.html")
    options = parser.parse_args(arguments)

    from posttrain.report import write_report

    print(write_report(options.artifact, out=options.out))


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
