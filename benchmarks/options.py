"""Options that several measurements take."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path

from benchmarks import ROOT


def add_figures_file(parser: ArgumentParser) -> None:
    """Add `--out`, a file for the figures."""
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")


def add_shared(parser: ArgumentParser) -> None:
    """Add `--shared`, the folder whose `data/` holds real sets."""
    # a text, so that the default is checked as well
    default = str(ROOT.parent / "shared")
    parser.add_argument("--shared", type=_shared_folder, default=default, help=default)


def add_sets(parser: ArgumentParser) -> None:
    """Add `--data`, the folder of the real sets themselves, and `--half` of their rows."""
    parser.add_argument("--data", type=Path, required=True, help="the folder of the sets")
    parser.add_argument("--half", type=int, choices=(0, 1), default=1, help="even or odd rows")


def _shared_folder(text: str) -> Path:
    if not Path(text, "data").is_dir():
        raise ArgumentTypeError(f"no data/ in {text}")
    return Path(text)
