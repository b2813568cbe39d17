"""What is freed between blocks that stay goes back to the system."""

from __future__ import annotations

import ctypes

import psutil
import pytest

from posttrain.training.output import ReturnFreedMemory
from tests.training.forks import forked


def blocks() -> list[bytearray]:
    """120 MiB in blocks of the size that activations of a short pack have."""
    size = 800 << 10
    return [bytearray(b"x") * size for _ in range((120 << 20) // size)]


def own_memory() -> int:
    """Bytes of the process without pages of files, which the system drops when memory is short."""
    memory = psutil.Process().memory_info()
    return memory.rss - memory.shared


def growth(event: str) -> int:
    """MiB by which a process grows that keeps every second block, 60 MiB."""
    callback = ReturnFreedMemory()
    # the first round teaches glibc that blocks of this size come and go: it keeps them from then on
    blocks()
    callback.on_step_end()
    before = own_memory()
    kept = blocks()[::2]
    if event != "none":
        getattr(callback, event)()
    after = own_memory()
    assert kept
    return (after - before) >> 20


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="no glibc")
@pytest.mark.parametrize(
    ("event", "least", "most"),
    [("on_substep_end", 0, 62), ("on_prediction_step", 0, 62), ("none", 90, 140)],
)
def test_what_is_freed_between_others_goes_back(event: str, least: int, most: int):
    ended = forked(lambda: print(growth(event)))
    assert least <= int(ended.text.split()[-1]) <= most
