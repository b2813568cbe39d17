"""Planned sequences in windows: an order that hangs on keys alone, and none lost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from data_builders.sft import windows as module
from data_builders.sft.windows import ENTRY, Entries, Windows


def entries(count: int) -> Entries:
    found = np.zeros(count, ENTRY)
    found["key"] = np.random.default_rng(0).integers(0, 2**64, count, np.uint64)
    found["at"] = np.arange(count)
    found["length"] = 10
    return found


def cut(found: Entries, sizes: list[int]) -> list[Entries]:
    """A stream's blocks; some are empty."""
    return np.split(found, np.cumsum(sizes))


def test_windows_hold_every_entry_once_in_the_order_of_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SEQUENCES", 100)
    found = entries(1234)
    made = Windows.write(tmp_path / "w", lambda: cut(found, [0, 7, 500, 0, 300]), capacity=20)
    assert len(made) == 1234
    windows = [window[np.argsort(window["key"])] for window in made]
    # 1,234 sequences of half a pack each: 617 packs
    assert len(windows) == 1
    monkeypatch.setattr(module, "_PACKS", 50)
    made = Windows.write(tmp_path / "w", lambda: cut(found, [0, 7, 500, 0, 300]), capacity=20)
    windows = [window[np.argsort(window["key"])] for window in made]
    assert len(windows) == 12
    assert all(60 <= len(window) <= 150 for window in windows)
    assert (np.concatenate(windows) == np.sort(found, order="key")).all()


def test_the_order_of_a_stream_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_SEQUENCES", 100)
    monkeypatch.setattr(module, "_PACKS", 1)
    found = entries(1000)
    shuffled = found[np.random.default_rng(1).permutation(1000)]
    one = Windows.write(tmp_path / "one", lambda: [found], capacity=20)
    other = Windows.write(tmp_path / "other", lambda: cut(shuffled, [100] * 7), capacity=20)
    assert one.edges == other.edges
    for a, b in zip(one, other, strict=True):
        assert (np.sort(a, order="key") == np.sort(b, order="key")).all()


def test_no_entries_are_one_empty_window(tmp_path):
    made = Windows.write(tmp_path / "w", list, capacity=20)
    assert [len(window) for window in made] == [0]


def test_a_stream_that_changes_is_noticed(tmp_path):
    streams: Iterator[list[Entries]] = iter([[entries(10)], [entries(9)]])
    with pytest.raises(AssertionError, match="the same twice"):
        Windows.write(tmp_path / "w", lambda: next(streams), capacity=20)
