"""Work that makes many objects and few cycles, with Python's collector looking rarely.

with collected_rarely():
    …  # gc.get_threshold() == (200_000, 50, 1000)
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

# beside the libraries that are loaded anyway, every look costs as much as a batch of records
_RARELY = (200_000, 50, 1000)


@contextlib.contextmanager
def collected_rarely() -> Iterator[None]:
    """Objects without cycles go as they always do; cycles wait longer."""
    before = gc.get_threshold()
    gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)
