"""One finished build that the tests of this folder look at, and none of them changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data_builders.small_build import build, write_recipe


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished build in `out`, its recipe beside it."""
    folder = tmp_path_factory.mktemp("world")
    build(write_recipe(folder, shards={"packs": 7}))
    return folder
