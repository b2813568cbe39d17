"""Write report.html for an artifact and everything it was made from, or one page about several.

posttrain report runs/tiny/sft [--out report.html]
posttrain report runs/a/sft runs/b/sft [--out overlay.html]

A training run that has not finished has a page too: its curves so far, and whether it is at work.
"""

import argparse
from pathlib import Path

from posttrain.config.command import run_command


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the report of one artifact, or of several.")
    parser.add_argument("artifacts", type=Path, nargs="+", help="output directories of stages")
    parser.add_argument("--out", type=Path, help="default: DIR/report.html, or overlay.html")
    options = parser.parse_args(argv)

    from posttrain.report.overlay import write_overlay
    from posttrain.report.write import write_report
    from posttrain.runs import refusing_full_disk

    first, *others = options.artifacts
    out: Path = options.out or (Path("overlay.html") if others else first / "report.html")
    with refusing_full_disk(out):
        print(write_overlay([first, *others], out=out) if others else write_report(first, out=out))


if __name__ == "__main__":
    run_command(main)
