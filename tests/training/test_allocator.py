"""What is freed between blocks that stay goes back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

# the first round teaches glibc that blocks of this size come and go: it keeps them from then on
SCRIPT = """
import sys
import psutil
from posttrain.training.output import ReturnFreedMemory
callback = ReturnFreedMemory()
def blocks():
    size = 800 << 10  # activations of a short pack
    return [bytearray(b"x") * size for _ in range((120 << 20) // size)]
blocks()
callback.on_step_end()
before = psutil.Process().memory_info().rss
kept = blocks()[::2]
if sys.argv[1] != "none":
    getattr(callback, sys.argv[1])()
print((psutil.Process().memory_info().rss - before) >> 20)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="no glibc")
@pytest.mark.parametrize(
    ("event", "least", "most"),
    [("on_substep_end", 0, 62), ("on_prediction_step", 0, 62), ("none", 90, 140)],
)
def test_what_is_freed_between_others_goes_back(event: str, least: int, most: int):
    command = [sys.executable, "-c", SCRIPT, event]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={})
    # every second block stays: 60 MiB
    assert least <= int(done.stdout) <= most
