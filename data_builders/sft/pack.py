"""A plan's sequences → packs, in the order they are trained in, before their tokens are moved.

packed = pack_split("train", {"": plan.train}, plan, sources, recipe)
packed.numbers    numbers of sequences, pack after pack
packed.packs      a PACK a pack: where its numbers end, its tokens, its group
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data_builders.keyed import key64
from data_builders.sft.plan import BuildPlan, Group, Numbers
from data_builders.sft.prepared import PreparedSource
from posttrain.config.build_sft import BuildSftConfig, ShardConfig
from posttrain.tokens import pack_lengths

PACK = np.dtype([("stop", "<u8"), ("tokens", "<u4"), ("group", "<i4")])
Packs = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class PackedSplit:
    """A split's packs; `group` of a pack indexes `groups`."""

    split: str
    groups: tuple[str, ...]
    numbers: Numbers
    packs: Packs


def pack_split(
    split: str,
    groups: Mapping[str, Group],
    plan: BuildPlan,
    sources: Sequence[PreparedSource],
    recipe: BuildSftConfig,
) -> PackedSplit:
    """Put every group's sequences in the order of their keys and into packs.

    No pack holds two groups, or two sequences of one conversation. The groups' stats get their
    packs.

    Args:
        groups: by label, in the order in which they are written.
    """
    numbers, packs = [np.empty(0, np.uint32)], [np.empty(0, PACK)]
    done = 0
    for k, (label, group) in enumerate(groups.items()):
        order = np.argsort(group.table["key"], kind="stable")
        lengths, in_order = group.table["length"][order], group.table["number"][order]
        del order
        found = pack_lengths(
            lengths,
            recipe.packing.max_length,
            seed=key64(recipe.seed, "pack", split, label, 0),
            groups=plan.conversations(in_order, sources),
        )
        own = np.zeros(len(found), PACK)
        own["stop"] = done + found.offsets[1:]
        own["tokens"] = found.fills(lengths)
        own["group"] = k
        group.stats.add_packs(own["tokens"].astype(np.int64))
        numbers.append(in_order[found.positions])
        packs.append(own)
        done += len(in_order)
    return PackedSplit(split, tuple(groups), np.concatenate(numbers), np.concatenate(packs))


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard: its packs and sequences, each from the first up to the one behind the last."""

    number: int
    packs: tuple[int, int]
    sequences: tuple[int, int]


def cut_shards(packed: PackedSplit, config: ShardConfig) -> list[ShardPlan]:
    """A shard closes with the pack that reaches the number of packs or of bytes."""
    shards: list[ShardPlan] = []
    pack = size = first_pack = first = stop = 0
    columns = packed.packs["stop"].tolist(), packed.packs["tokens"].tolist()
    for stop, tokens in zip(*columns, strict=True):
        pack += 1
        size += 8 * tokens  # an id and a label
        if pack - first_pack == config.packs or size >= config.bytes:
            shards.append(ShardPlan(len(shards), (first_pack, pack), (first, stop)))
            first_pack, first, size = pack, stop, 0
    if pack > first_pack:
        shards.append(ShardPlan(len(shards), (first_pack, pack), (first, stop)))
    return shards
