"""Versions of the packages that shape results, for manifests and model cards."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable

VERSIONED = (
    "torch", "transformers", "trl", "tokenizers", "datasets", "accelerate", "peft", "pyarrow"
)  # fmt: skip


def package_versions(names: Iterable[str] = VERSIONED) -> dict[str, str]:
    """{"torch": "2.13.0+cpu", …} of those that are installed."""
    return {name: version for name in names if (version := _version(name)) is not None}


@functools.cache  # a build asks for every part of its input, and each answer reads a file
def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
