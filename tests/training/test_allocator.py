"""What is freed between blocks that stay goes back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from posttrain.training.plan import return_freed_memory

# the first round teaches glibc that blocks of this size come and go: it keeps them from then on
SCRIPT = """
import sys
import psutil
if sys.argv[1] == "returned":
    from posttrain.training.plan import return_freed_memory
    assert return_freed_memory(int(sys.argv[2]), {})
def blocks():
    size = int(sys.argv[3])
    return [bytearray(b"x") * size for _ in range((120 << 20) // size)]
blocks()
before = psutil.Process().memory_info().rss
kept = blocks()[::2]
print((psutil.Process().memory_info().rss - before) >> 20)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="no glibc")
@pytest.mark.parametrize(
    ("parameters", "block"),
    [
        (1_000_000, 2 << 20),
        # activations of a short pack
        (100_000_000, 800 << 10),
    ],
)
def test_what_is_freed_between_others_goes_back(parameters: int, block: int):
    held: dict[str, int] = {}
    for mode in ("as it is", "returned"):
        command = [sys.executable, "-c", SCRIPT, mode, str(parameters), str(block)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={})
        held[mode] = int(done.stdout)
    assert held["returned"] <= 62  # every second block: 60 MiB
    assert held["as it is"] > 90


def test_the_users_own_settings_stay():
    assert not return_freed_memory(0, {"MALLOC_MMAP_THRESHOLD_": "131072"})
