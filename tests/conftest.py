"""Fixtures that every test may use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.report import html

# what the tests import is never garbage: no collection has to walk it while it grows
gc.disable()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the repository; tests that need it skip without it."""
    folder = Path(__file__).resolve().parent.parent.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder.name}/ is not beside the repository")
    return folder


@pytest.fixture(scope="module")
def charts_not_drawn() -> Iterator[None]:
    """Pages without charts, which take as long to draw as the rest of a small stage."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(html._template().environment.filters, "svg", lambda _: "")
        yield


def pytest_collection_finish() -> None:
    """What was imported stays to the end: no collection has to walk it.

    Beside it little is old, so that the defaults would walk all the rest every 70,000 objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()
