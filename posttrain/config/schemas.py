"""Schemas of all stages that take a recipe, found in the files of this folder."""

import functools
import importlib
from pathlib import Path

from pydantic import BaseModel

from posttrain.config.base import STAGES


@functools.cache
def stage_schemas() -> dict[str, type[BaseModel]]:
    """Name of each stage → schema of its recipe."""
    # a schema registers itself when its file is imported
    for file in sorted(Path(__file__).parent.glob("[!_]*.py")):
        importlib.import_module(f"posttrain.config.{file.stem}")
    return dict(sorted(STAGES.items()))
