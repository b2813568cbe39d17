"""A recipe of synthesis over scripted models, and what its stage makes of it."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from data_builders.synthesis import build as stage
from data_builders.synthesis import engine
from posttrain.config.load import validate
from posttrain.config.synthesize import SynthesizeConfig
from posttrain.runs import Manifest, open_run, read_artifact
from tests.sampling.scripted import Scripted

Row = dict[str, Any]


def server(name: str, **sampling: Any) -> Row:
    """A model that is reached as the name of its checkpoint says, in `made`."""
    return {
        "name": name,
        "thinking": False,
        "checkpoint": name,
        "backend": {"kind": "completions", "url": "http://127.0.0.1:1/v1", "model": name},
        "sampling": {"max_tokens": 2000, **sampling},
    }


def recipe_of(out: Path, make: Row, models: Mapping[str, Any], **others: Any) -> SynthesizeConfig:
    """A checked recipe, as one that was read from a file."""
    content = {"out": str(out), "make": make, "models": dict(models), **others}
    return validate(json.loads(json.dumps(content)), SynthesizeConfig, where="recipe")


def made(
    recipe: SynthesizeConfig, samplers: Mapping[str, Scripted], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Row], Manifest]:
    """Rows and manifest of the whole stage; `samplers` by checkpoint."""

    @asynccontextmanager
    async def opened(*_: object, checkpoint: str, **__: object):
        yield samplers[checkpoint]

    monkeypatch.setattr(engine, "opened_sampler", opened)
    out = Path(recipe.out)
    templates = stage.load_templates(recipe)
    kind = stage.open_kind(recipe, templates)
    console = Console(file=io.StringIO())
    with open_run(out, kind=stage.KIND, config=recipe.owner_config()) as run:
        seed_set = stage.read_seeds(recipe, templates, out=out, work=out / "work")
        stage.build(run, recipe, kind, seed_set, console=console)
    rows = [json.loads(line) for line in (out / stage.ROWS).read_text("utf-8").splitlines()]
    return rows, read_artifact(out)


def write_rows(path: Path, rows: list[Row]) -> Path:
    """A file of rows, one a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path
