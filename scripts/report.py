"""Write report.html for an artifact, for a chain of them, or one page about several runs.

posttrain report runs/tiny/sft [--out report.html]
posttrain report runs/tiny                                   a folder of artifacts: their chain
posttrain report runs/a/sft runs/b/sft [--out overlay.html]

The page of a chain shows what its stages changed, which is printed too, and leads to their pages. A
training run that has not finished has a page: its curves so far, and whether it is at work.
"""

import argparse
from pathlib import Path

from posttrain.config.command import run_command


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the report of artifacts.")
    parser.add_argument(
        "runs", type=Path, nargs="+", help="output directories of stages, or a folder that has some"
    )
    parser.add_argument("--out", type=Path, help="default: RUN/report.html, or overlay.html")
    options = parser.parse_args(argv)

    from posttrain.pages.chain import is_chain, show_chain
    from posttrain.pages.overlay import write_overlay
    from posttrain.pages.write import write_report
    from posttrain.report.console import open_console
    from posttrain.runs import refusing_full_disk

    chain = any(is_chain(run) for run in options.runs)
    overlay = len(options.runs) > 1 and not chain
    usual_out = Path("overlay.html") if overlay else options.runs[0] / "report.html"
    out: Path = options.out or usual_out
    with refusing_full_disk(out):
        if chain:
            show_chain(open_console(), options.runs, out=out)
        elif overlay:
            print(write_overlay(options.runs, out=out))
        else:
            print(write_report(options.runs[0], out=out))


if __name__ == "__main__":
    run_command(main)
