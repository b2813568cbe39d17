"""Fixtures that every test may use."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.metadata import Distribution, DistributionFinder, MetadataPathFinder
from pathlib import Path
from typing import Any

import pytest

from posttrain.report import html

# what the tests import is never garbage: no collection has to walk it while it grows
gc.disable()


class ParsedOnce(Distribution):
    """An installed package whose metadata are parsed once."""

    def __init__(self, distribution: Distribution) -> None:
        self._distribution = distribution

    def read_text(self, filename: str) -> str | None:
        return self._distribution.read_text(filename)

    def locate_file(self, path: Any) -> Any:
        return self._distribution.locate_file(path)

    @cached_property
    def metadata(self) -> Any:
        return self._distribution.metadata


class ParsedOnceFinder(DistributionFinder):
    """Finder of installed packages that looks for each once.

    accelerate parses the metadata of DeepSpeed several times a step, to learn whether it is there.
    """

    def __init__(self) -> None:
        self._distributions: dict[str, list[ParsedOnce]] = {}

    def find_spec(self, *_: Any) -> None:
        """No module is found here."""

    def find_distributions(self, context: Any) -> Sequence[Distribution]:
        if context.name is None or context.path is not sys.path:
            return []
        if context.name not in self._distributions:
            found = MetadataPathFinder.find_distributions(context)
            self._distributions[context.name] = [ParsedOnce(package) for package in found]
        return self._distributions[context.name]


sys.meta_path.insert(0, ParsedOnceFinder())


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
