"""Fixtures that every test may use."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from posttrain.hashing import digest_of
from posttrain.report import charts


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the repository; tests that need it skip without it."""
    folder = Path(__file__).resolve().parent.parent.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder.name}/ is not beside the repository")
    return folder


@pytest.fixture(scope="module", autouse=True)
def drawn_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Charts that differ in their digits alone are drawn once, for this worker and its forks: half of
    the time of a tiny run is its page's. tests/report draws each."""
    folder, drawn = tmp_path_factory.getbasetemp() / "charts", charts._drawn
    folder.mkdir(exist_ok=True)

    def once(draw: Callable[..., None], data: object, **options: Any) -> str:
        shape = re.sub(r"\d[\d.]*(?:e[+-]?\d+)?", "0", repr(data))
        path = folder / digest_of([draw.__name__, shape, repr(options)])
        if not path.exists():
            own = path.with_suffix(f".{os.getpid()}")
            own.write_text(drawn(draw, data, **options))
            own.replace(path)
        return path.read_text()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charts, "_drawn", once)
        yield


def pytest_collection_finish() -> None:
    """What was imported stays to the end: no collection has to walk it."""
    gc.collect()
    gc.freeze()
