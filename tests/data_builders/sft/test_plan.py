"""The plan's table: every sequence as often as its record is taken, found again by its number."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data_builders.sft.pack import cut_shards, pack_split
from data_builders.sft.plan import BuildPlan, plan_build
from data_builders.sft.prepared import RECORD, SEQUENCE, PreparedSource, Reader
from data_builders.sft.shards import SplitFiles
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.load import validate

CAPACITY = 64


def prepared(folder: Path, name: str, sizes: list[int]) -> PreparedSource:
    """Parts of so many records, with one to three sequences each; ids are distinct."""
    random = np.random.default_rng(len(name))
    for number, count in enumerate(sizes):
        part = folder / name / f"{number:03d}"
        part.mkdir(parents=True)
        records = np.zeros(count, RECORD)
        records["id64"] = records["row64"] = random.integers(0, 2**64, count, np.uint64)
        records["sequences"] = random.integers(1, 4, count)
        records["first"] = np.cumsum(records["sequences"]) - records["sequences"]
        records["text"] = np.arange(count)
        owners = np.repeat(np.arange(count), records["sequences"])
        sequences = np.zeros(len(owners), SEQUENCE)
        sequences["record"] = owners
        sequences["key"] = random.integers(0, 2**64, len(owners), np.uint64)
        sequences["at"], sequences["budget"] = np.arange(len(owners)), -1
        sequences["length"] = random.integers(1, CAPACITY, len(owners))
        sequences["trained"] = 1
        np.add.at(records["tokens"], owners, sequences["length"].astype(np.uint64))
        records.tofile(part / "records.bin")
        sequences.tofile(part / "sequences.bin")
    return PreparedSource(name, {"dropped": {}}, tuple(sorted((folder / name).iterdir())))


@pytest.fixture
def sources(tmp_path: Path) -> list[PreparedSource]:
    return [prepared(tmp_path, "a", [0, 200, 0, 100]), prepared(tmp_path, "bb", [50, 0])]


def recipe(**keys) -> BuildSftConfig:
    raw = {
        "out": "out",
        "tokenizer": {"path": "tok"},
        "packing": {"max_length": CAPACITY},
        "held_out": {"rate": 0.1},
        "sources": [
            {"name": "a", "path": "x", "rows": 100},
            {"name": "bb", "path": "x", "rows": 110, "max_epochs": 4},
        ],
        **keys,
    }
    return validate(raw, BuildSftConfig, where="test")


def split_files(plan: BuildPlan, sources: list[PreparedSource]) -> SplitFiles:
    return SplitFiles(
        numbers="",
        packs="",
        sources=[
            (s.name, [str(f) for f in s.folders], s.sequence_starts().tolist()) for s in sources
        ],
        passes=[(one.source, one.epoch, one.first) for one in plan.passes],
        groups=None,
    )


def test_every_sequence_is_planned_as_often_as_its_record_is_taken(sources):
    plan = plan_build(sources, recipe())
    assert [p.total.rows for p in plan.mixture] == [100, 110]
    files = split_files(plan, sources)
    with Reader(files.folders) as reader:
        entries = files.entries(plan.train.table["number"], reader)
    assert (entries["length"] == plan.train.table["length"]).all()
    times = Counter(zip(*(entries[n].tolist() for n in ("part", "text", "at")), strict=True))
    assert sum(times.values()) == sum(p.total.sequences for p in plan.mixture)
    assert {times[place] for place in times if place[0] < 4} == {1}
    assert {times[place] for place in times if place[0] >= 4} == {2, 3}
    of_record = Counter((part, record) for part, record, _ in times)
    for (part, record), count in of_record.items():
        own = np.fromfile(files.folders[part] / "records.bin", RECORD)[record]
        assert count == own["sequences"], "all sequences of a record, or none"


def test_held_out_conversations_are_in_evaluation_alone(sources):
    plan = plan_build(sources, recipe())
    held_out = set()
    for group in plan.evaluation.values():
        held_out |= set(plan.conversations(group.table["number"], sources).tolist())
    trained = set(plan.conversations(plan.train.table["number"], sources).tolist())
    assert len(held_out) == sum(plan.held_out) > 5
    assert not held_out & trained


def test_packs_hold_every_planned_sequence_once_and_no_conversation_twice(sources):
    config = recipe(shards={"packs": 7})
    plan = plan_build(sources, config)
    packed = pack_split("train", {"": plan.train}, plan, sources, config)
    assert sorted(packed.numbers.tolist()) == sorted(plan.train.table["number"].tolist())
    length = dict(plan.train.table[["number", "length"]].tolist())
    conversations = dict(
        zip(
            plan.train.table["number"].tolist(),
            plan.conversations(plan.train.table["number"], sources).tolist(),
            strict=True,
        )
    )
    packs = np.split(packed.numbers, packed.packs["stop"][:-1].astype(np.int64))
    for numbers, tokens in zip(packs, packed.packs["tokens"].tolist(), strict=True):
        assert sum(length[n] for n in numbers.tolist()) == tokens <= CAPACITY
        assert len({conversations[n] for n in numbers.tolist()}) == len(numbers)
    shards = cut_shards(packed, config.shards)
    assert shards[-1].packs[1] == len(packed.packs)
    assert shards[-1].sequences[1] == len(packed.numbers)
    assert plan.train.stats.packs == len(packed.packs)


def test_the_order_of_parts_changes_no_pack(sources):
    turned = [PreparedSource(s.name, s.stats, s.folders[::-1]) for s in sources]
    found = []
    for own in (sources, turned):
        plan = plan_build(own, recipe())
        packed = pack_split("train", {"": plan.train}, plan, own, recipe())
        files = split_files(plan, own)
        with Reader(files.folders) as reader:
            entries = files.entries(packed.numbers, reader)
        names = [str(files.folders[k]) for k in entries["part"].tolist()]
        found.append((list(zip(names, entries["at"].tolist(), strict=True)), packed.packs.tolist()))
    assert found[0] == found[1]
