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
from data_builders.synthesis.kinds import open_kind
from posttrain.config.backend import ChatBackend
from posttrain.config.load import validate
from posttrain.config.synthesize import SynthesizeConfig
from posttrain.runs import Manifest, open_run, read_artifact
from tests.sampling.scripted import Scripted

Row = dict[str, Any]


def server(name: str, **sampling: Any) -> Row:
    """A model of a server, which is a scripted one in `made`."""
    return {
        "name": name,
        "thinking": False,
        "backend": {"kind": "chat", "url": "http://127.0.0.1:1/v1", "model": name},
        "sampling": {"max_tokens": 2000, **sampling},
    }


def recipe_of(out: Path, make: Row, models: Mapping[str, Any], **others: Any) -> SynthesizeConfig:
    """A checked recipe, as one that was read from a file."""
    content = {"out": str(out), "make": make, "models": dict(models), **others}
    return validate(json.loads(json.dumps(content)), SynthesizeConfig, where="recipe")


def made(
    recipe: SynthesizeConfig,
    samplers: Mapping[str, Scripted],
    monkeypatch: pytest.MonkeyPatch,
    *,
    log: io.StringIO | None = None,
) -> tuple[list[Row], Manifest]:
    """Rows and manifest of the whole stage; `samplers` by the names of models."""

    @asynccontextmanager
    async def opened(backend: ChatBackend, **_: object):
        yield samplers[backend.model]

    monkeypatch.setattr(engine, "opened_sampler", opened)
    out = Path(recipe.out)
    kind = open_kind(recipe)
    console = Console(file=log or io.StringIO(), width=200)
    with open_run(out, kind=stage.KIND, config=recipe.owner_config()) as run:
        seed_set = stage.read_seeds(recipe, kind, work=out / "work")
        stage.build(run, recipe, kind, seed_set, console=console)
    return read_rows(out / stage.ROWS), read_artifact(out)


def read_rows(path: Path) -> list[Row]:
    """Rows of a file; none where it was not written."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def write_rows(path: Path, rows: list[Row]) -> Path:
    """A file of rows, one a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path
