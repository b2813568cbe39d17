"""The command line that every stage has: `--config FILE [--dry-run] [key.path=value …]`.

recipe, options = parse_recipe(recipe_parser("Train a model."), SftConfig, argv)
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from posttrain.config.load import load_recipe
from posttrain.errors import PosttrainError

Schema = TypeVar("Schema", bound=BaseModel)
_INTERRUPTED = 130  # the shell's code for a process that Ctrl-C ended


def recipe_parser(description: str) -> argparse.ArgumentParser:
    """The options of every stage; a stage adds its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--config", required=True, help="the recipe, a YAML file")
    parser.add_argument("--dry-run", action="store_true", help="check and plan, write nothing")
    parser.add_argument(
        "overrides", nargs="*", metavar="key.path=value", help="keys of the recipe; out=DIR is one"
    )
    return parser


def parse_recipe(
    parser: argparse.ArgumentParser, schema: type[Schema], argv: Sequence[str] | None
) -> tuple[Schema, argparse.Namespace]:
    """The validated recipe and the options; overrides may stand before, between and after options.

    Args:
        argv: without the program's name; None: the process's own.

    Raises:
        ConfigError: as `load_recipe`.
    """
    options = parser.parse_intermixed_args(argv)
    return load_recipe(options.config, schema, options.overrides), options


def run_command(main: Callable[[], None]) -> None:
    """Run a script's main; the user's mistakes and Ctrl-C end it without a traceback."""
    # trl sends telemetry by default; the libraries look here when they are imported
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        main()
    except PosttrainError as error:
        message = f"{type(error).__name__}: {error}"
        # torchrun closes with a report of its own, in which this file's message stands
        if report := os.environ.get("TORCHELASTIC_ERROR_FILE"):
            entry = {"message": message, "timestamp": int(time.time())}
            Path(report).write_text(json.dumps(entry), "utf-8")
            try:  # attempt_0/RANK/error.json: the first process of a machine prints for all
                (Path(report).parents[1] / "printed").touch(exist_ok=False)
            except FileExistsError:
                sys.exit(1)
        sys.exit(message)
    except KeyboardInterrupt:
        print("interrupted; the same command takes it up again", file=sys.stderr)
        sys.exit(_INTERRUPTED)
