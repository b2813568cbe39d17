"""Versions of the packages that shape results, for manifests and model cards.

package_versions()  →  {"torch": "2.13.0+cpu", "transformers": "5.23.0", …}
"""

from __future__ import annotations

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
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
