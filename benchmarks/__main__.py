"""The one command line of all measurements; only the module of the chosen one is imported.

A measurement is a module with `add_arguments(parser)` and `main(options)`, whose status is that of
the command. The first line of its docstring stands in `python -m benchmarks --help`, the whole in
its own help. The other modules are helpers.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def docstrings() -> dict[str, str]:
    """Docstring of every measurement by name, read as text."""
    found: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*.py")):
        source = path.read_text("utf-8")
        if "\ndef add_arguments(" in source:
            found[path.stem] = source.split('"""')[1]
    return found


def main() -> int | None:
    """Run the measurement that the first argument names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    commands = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    chosen = None
    for name, docstring in docstrings().items():
        command = commands.add_parser(
            name,
            help=docstring.partition("\n")[0].replace("%", "%%"),
            description=docstring,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if sys.argv[1:2] == [name]:
            chosen = importlib.import_module(f"benchmarks.{name}")
            chosen.add_arguments(command)
    options = parser.parse_args()
    assert chosen is not None  # every other command line has ended with help or an error
    return chosen.main(options)


if __name__ == "__main__":
    sys.exit(main())
