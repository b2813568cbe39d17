"""Rows, families and effects of `make real`, by the rule of recipes/real/README.md.

    python -m benchmarks real rows DATA OUT/data
    python -m benchmarks real families runs/real     # writes runs/real/chain.yaml
    python -m benchmarks real table runs/real

What DATA has to hold stands in tests/real_chain/rows.py, which tests use as well.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from posttrain.config.stages import CHAIN
from posttrain.errors import ConfigError
from tests.real_chain.effects import chosen_families, pass_rates, table, write_chain
from tests.real_chain.rows import write_data


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("part", choices=("rows", "families", "table"))
    parser.add_argument("folder", type=Path, help="of rows the public files, else the chain's runs")
    parser.add_argument("out", type=Path, nargs="?", default=Path("data"), help="of rows")


def main(options: Namespace) -> None:
    match options.part:
        case "rows":
            try:
                write_data(options.folder, options.out)
            except ConfigError as error:
                sys.exit(str(error))
        case "families":
            chosen = chosen_families(pass_rates(options.folder / "profile" / "pass_rates.jsonl"))
            write_chain(options.folder / CHAIN, chosen)
            print(f"RLVR trains on {' and '.join(chosen)}")
        case _:
            print("\n".join(table(options.folder)))
