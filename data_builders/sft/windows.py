"""Planned sequences in random order, in windows on disk: memory holds one window.

    windows = Windows.write(path, stream)       stream() → Entries, Entries, …
    for entries in windows: …                   to be put in the order of their keys

A sequence's place is its key, a hash of what it is; so neither input order nor parts change the
order. Sequences that are packed together share a window. The last pack of a window is part-filled,
so a window is large enough for some hundreds of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

ENTRY = np.dtype(
    [
        ("key", "<u8"),  # its place
        ("group", "<u8"),  # of the conversation: two of one group never share a pack
        ("at", "<u8"),  # in its part's tokens.bin
        ("text", "<u8"),  # in its part's texts.bin
        ("text_size", "<u4"),
        ("length", "<u4"),
        ("trained", "<u4"),
        ("edges", "<u4"),
        ("part", "<u4"),  # counted through all sources
        ("budget", "<i4"),
        ("turn", "<i2"),
        ("epoch", "<i2"),
        ("source", "<u2"),
        ("reasons", "?"),
        ("_", "V1"),
    ]
)
Entries = npt.NDArray[np.void]
Stream = Callable[[], Iterable[Entries]]
_SEQUENCES = 65_536  # of a window, at least
_PACKS = 500  # of a window, at least: half of one in a thousand then stays empty
_BITS = 16  # of a key, by which windows are cut


@dataclass(frozen=True, slots=True)
class Windows:
    """A scratch file of entries; window k is rows `edges[k]` to `edges[k + 1]`."""

    path: Path
    edges: tuple[int, ...]

    @classmethod
    def write(cls, path: Path, stream: Stream, capacity: int) -> Windows:
        """Go through the stream twice: once to cut windows, once to write them.

        Args:
            capacity: tokens a pack holds.
        """
        counts = np.zeros(1 << _BITS, np.int64)
        tokens = 0
        for entries in stream():
            counts += np.bincount(_bins(entries), minlength=len(counts))
            tokens += int(entries["length"].sum(dtype=np.int64))
        total = int(counts.sum())
        number = max(1, min(total // _SEQUENCES, tokens // (capacity * _PACKS)))
        # a bin belongs to the window in which its first sequence lies
        window_of = (np.cumsum(counts) - counts) * number // max(total, 1)
        window_of = np.minimum(window_of, number - 1)  # empty bins behind the last
        sizes = np.bincount(window_of, weights=counts, minlength=number).astype(np.int64)
        edges = np.concatenate([[0], np.cumsum(sizes)])
        free = edges[:-1].copy()
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            for entries in stream():
                _deal(handle, entries, window_of[_bins(entries)], free)
        finally:
            os.close(handle)
        assert (free == edges[1:]).all(), "the stream was the same twice"
        return cls(path, tuple(edges.tolist()))

    def __len__(self) -> int:
        """Sequences in all windows."""
        return self.edges[-1]

    def __iter__(self) -> Iterator[Entries]:
        """The windows in order; entries of one lie as they came."""
        with self.path.open("rb") as file:
            for start, stop in zip(self.edges, self.edges[1:], strict=False):
                yield np.fromfile(file, ENTRY, stop - start)


def _bins(entries: Entries) -> npt.NDArray[np.int64]:
    return (entries["key"] >> np.uint64(64 - _BITS)).astype(np.int64)


def _deal(
    handle: int, entries: Entries, windows: npt.NDArray[np.int64], free: npt.NDArray[np.int64]
) -> None:
    """Write entries to the free places of their windows."""
    if not len(entries):
        return
    order = np.argsort(windows, kind="stable")
    which, starts = np.unique(windows[order], return_index=True)
    for window, rows in zip(which.tolist(), np.split(order, starts[1:]), strict=True):
        data = entries[rows].tobytes()
        os.pwrite(handle, data, int(free[window]) * ENTRY.itemsize)
        free[window] += len(rows)
