"""Fixtures that every test may use."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the repository; tests that need it skip without it."""
    folder = Path(__file__).resolve().parent.parent.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder.name}/ is not beside the repository")
    return folder


def pytest_collection_finish() -> None:
    """What was imported stays to the end: no collection has to walk it.

    Beside it little is old, so that the defaults would walk all the rest every 70,000 objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
