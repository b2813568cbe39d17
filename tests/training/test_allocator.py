"""What is freed between blocks that stay goes back to the system."""

from __future__ import annotations

import ctypes

import pytest

from posttrain.training.output import ReturnFreedMemory
from tests.training.forks import forked

PAGE = 4096
M_MMAP_THRESHOLD = -3  # of malloc.h
SIZE = 800 << 10  # of a block, such as activations of a short pack have


def addresses(blocks: list[bytearray]) -> list[int]:
    """Address of the first whole page of each block."""
    starts = (ctypes.addressof((ctypes.c_char * SIZE).from_buffer(block)) for block in blocks)
    return [-(-start // PAGE) * PAGE for start in starts]


def resident_pages(start: int) -> int:
    """Pages of a freed block that still take memory; 0 where its address is mapped no more."""
    pages = (ctypes.c_ubyte * (SIZE // PAGE - 1))()
    ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(pages) * PAGE), pages)
    return sum(page & 1 for page in pages)


def print_what_stays(event: str) -> None:
    """Free every second block of many, and print how many pages stay, before and after the event."""
    callback = ReturnFreedMemory()
    # glibc maps large blocks apart until some have been freed: these lie in its heap whatever came before
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 32 << 20)
    blocks = [bytearray(b"x") * SIZE for _ in range(24)]
    freed = addresses(blocks)[1:-1:2]
    kept = blocks[::2]
    del blocks
    before = sum(map(resident_pages, freed))
    getattr(callback, event)()
    print(before, sum(map(resident_pages, freed)))
    assert all(block == b"x" * SIZE for block in kept)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="no glibc")
@pytest.mark.parametrize("event", ["on_substep_end", "on_step_end", "on_prediction_step"])
def test_what_is_freed_between_others_goes_back(event: str):
    ended = forked(lambda: print_what_stays(event))
    before, after = map(int, ended.text.split()[-2:])
    assert before > 1000
    # small objects may lie there by now
    assert after < 50
