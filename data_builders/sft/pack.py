"""A split's packs on disk, in the order they are trained in, before their tokens are moved.

packed = pack_split(folder, "train", {"": stream}, recipe)
folder/train.entries    an ENTRY a sequence, pack after pack
folder/train.packs      a PACK a pack: where its entries end, its tokens, its group
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from data_builders.keyed import key64
from data_builders.sft.windows import Entries, Stream, Windows
from posttrain.config.build_sft import BuildSftConfig, ShardConfig
from posttrain.tokens import pack_lengths

PACK = np.dtype([("stop", "<u8"), ("tokens", "<u4"), ("group", "<i4")])
_ROWS = 65_536  # entries or packs handled at a time


@dataclass
class PackStats:
    """What the packs of one group add up to, growing as they are made. `bins` are powers of two.

    `reasoning` and `truncated` count sequences.
    """

    capacity: int
    packs: int = 0
    sequences: int = 0
    reasoning: int = 0
    truncated: int = 0
    longest: int = 0
    bins: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((64, 3), np.int64))
    fills: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(101, np.int64))

    def add(self, entries: Entries, pack_tokens: npt.NDArray[np.int64]) -> None:
        """Count the packs of some entries."""
        length, trained = entries["length"].astype(np.int64), entries["trained"].astype(np.int64)
        self.packs += len(pack_tokens)
        self.sequences += len(entries)
        self.reasoning += int(entries["reasons"].sum())
        self.truncated += int((entries["budget"] >= 0).sum())
        self.longest = max(self.longest, int(length.max(initial=0)))
        place = np.ceil(np.log2(np.maximum(length, 1))).astype(np.int64)
        np.add.at(self.bins[:, 0], place, 1)
        np.add.at(self.bins[:, 1], place, trained)
        np.add.at(self.bins[:, 2], place, length - trained)
        self.fills += np.bincount(pack_tokens * 100 // self.capacity, minlength=101)

    def join(self, other: PackStats) -> None:
        """Count another group's packs too."""
        for name in ("packs", "sequences", "reasoning", "truncated"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.longest = max(self.longest, other.longest)
        self.bins += other.bins
        self.fills += other.fills

    def stats(self) -> dict[str, Any]:
        """For the manifest."""
        trained, tokens = int(self.bins[:, 1].sum()), int(self.bins[:, 1:].sum())
        return {
            "packs": self.packs,
            "sequences": self.sequences,
            "tokens": tokens,
            "trained": trained,
            "reasoning": self.reasoning,
            "truncated": self.truncated,
            "longest": self.longest,
            "fill": tokens / (self.packs * self.capacity) if self.packs else 0.0,
            "sequences_per_pack": self.sequences / self.packs if self.packs else 0.0,
        }

    def lengths(self) -> list[dict[str, int]]:
        """Sequences, trained and untrained tokens by length; empty bins are left out."""
        return [
            {"up_to": 1 << k, "sequences": count, "trained": trained, "untrained": untrained}
            for k, (count, trained, untrained) in enumerate(self.bins.tolist())
            if count
        ]


@dataclass(frozen=True, slots=True)
class PackedSplit:
    """A split's packs on disk, and what each of its groups adds up to."""

    split: str
    entries: Path
    packs: Path
    stats: Mapping[str, PackStats]

    def pack_blocks(self) -> Iterator[npt.NDArray[np.void]]:
        """All PACK rows in order, a block at a time."""
        with self.packs.open("rb") as file:
            while len(rows := np.fromfile(file, PACK, _ROWS)):
                yield rows


def pack_split(
    folder: Path, split: str, groups: Mapping[str, Stream], recipe: BuildSftConfig
) -> PackedSplit:
    """Put every group's sequences in random order and into packs; no pack holds two groups.

    Args:
        groups: by label, in the order in which they are written.
    """
    packed = PackedSplit(
        split, folder / f"{split}.entries", folder / f"{split}.packs", dict[str, PackStats]()
    )
    stats: dict[str, PackStats] = {}
    done = 0
    with packed.entries.open("wb") as entries, packed.packs.open("wb") as packs:
        for number, (label, stream) in enumerate(groups.items()):
            own = stats[label] = PackStats(recipe.packing.max_length)
            windows = Windows.write(folder / f"{split}.windows", stream, own.capacity)
            for k, window in enumerate(windows):
                seed = key64(recipe.seed, "pack", split, label, k)
                done = _pack_window(window, seed, own, entries, packs, done=done, group=number)
            windows.path.unlink()
    return PackedSplit(split, packed.entries, packed.packs, stats)


def _pack_window(
    window: Entries,
    seed: int,
    stats: PackStats,
    entries: BinaryIO,
    packs: BinaryIO,
    *,
    done: int,
    group: int,
) -> int:
    """Pack one window and write it; returns how many entries are written by now."""
    order = np.argsort(window["key"], kind="stable")
    lengths = window["length"][order]
    found = pack_lengths(lengths, stats.capacity, seed=seed, groups=window["group"][order])
    rows = np.zeros(len(found), PACK)
    rows["stop"] = done + found.offsets[1:]
    rows["tokens"] = found.fills(lengths)
    rows["group"] = group
    packs.write(rows.tobytes())
    none = np.empty(0, np.int64)
    stats.add(window[:0], rows["tokens"].astype(np.int64))
    for start in range(0, len(window), _ROWS):
        some = window[order[found.positions[start : start + _ROWS]]]
        entries.write(some.tobytes())
        stats.add(some, none)
    return done + len(window)


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard: its packs and entries, each from the first up to the one behind the last."""

    number: int
    packs: tuple[int, int]
    entries: tuple[int, int]


def cut_shards(packed: PackedSplit, config: ShardConfig) -> list[ShardPlan]:
    """A shard closes with the pack that reaches the number of packs or of bytes."""
    shards: list[ShardPlan] = []
    pack = size = first_pack = first_entry = stop = 0
    for rows in packed.pack_blocks():
        for stop, tokens in zip(rows["stop"].tolist(), rows["tokens"].tolist(), strict=True):
            pack += 1
            size += 8 * tokens  # an id and a label
            if pack - first_pack == config.packs or size >= config.bytes:
                shards.append(ShardPlan(len(shards), (first_pack, pack), (first_entry, stop)))
                first_pack, first_entry, size = pack, stop, 0
    if pack > first_pack:
        shards.append(ShardPlan(len(shards), (first_pack, pack), (first_entry, stop)))
    return shards
