"""One finished build that the tests of this folder look at, and none of them changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data_builders.small_build import (
    build,
    plain_rows,
    reasoning_rows,
    source_of,
    write_recipe,
)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished build in `out`, its recipe beside it; some rows are dropped as they are read."""
    folder = tmp_path_factory.mktemp("world")
    traces = reasoning_rows(120)
    traces[17] = {"level": 2, "nothing": "to read"}
    traces[42]["messages"] = traces[42]["messages"][:1]
    where = {"level": [0, 2]}
    sources = [
        source_of(folder, traces, "reasoning", metadata=["level"], where=where, share=0.8),
        source_of(folder, plain_rows(300), "plain", share=0.2),
    ]
    build(write_recipe(folder, sources=sources, shards={"packs": 7}, write_dropped=True))
    return folder
