"""Versions of the packages that shape results, for manifests and model cards.

package_versions()  →  {"torch": "2.13.0+cpu", "transformers": "5.23.0", …}
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable

VERSIONED = (
    "torch",
    "transformers",
    "trl",
    "tokenizers",
    "datasets",
    "accelerate",
    "peft",
    "pyarrow",
)


def package_versions(names: Iterable[str] = VERSIONED) -> dict[str, str]:
    """Installed versions of the packages that shape results; absent ones are left out."""
    versions = {name: _version(name) for name in names}
    return {name: version for name, version in versions.items() if version is not None}


@functools.cache  # a build asks for every part of its input, and each answer reads a file
def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
