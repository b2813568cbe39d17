"""A small tiny world, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evaluation.small_world import make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    """A `tiny_world` artifact with every family."""
    return make_world(tmp_path_factory.mktemp("worlds") / "world")
