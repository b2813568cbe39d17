"""Killed and repeated builds: the same bytes, or a refusal."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

from data_builders.sft import part, shards
from posttrain.errors import ConfigError
from tests.data_builders.small_build import (
    build,
    manifest,
    plain_rows,
    shard_bytes,
    write_recipe,
    write_rows,
)
from tests.training.forks import forked

PART = "part_bytes=8000"


def kill_at(number: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that ends its process when it is called for the `number`th time."""
    calls = itertools.count(1)
    return lambda *args: os._exit(9) if next(calls) == number else original(*args)


def test_killed_twice_and_resumed_gives_the_same_bytes(world, tmp_path, monkeypatch):
    recipe, out = world / "recipe.yaml", tmp_path / "killed"
    prepared: list[int] = []
    # in the third part of the first source; in the second shard
    for module, name, number in ((part, "prepare", 3), (shards, "_batch", 2)):

        def killed(module=module, name=name, number=number) -> None:
            setattr(module, name, kill_at(number, getattr(module, name)))
            build(recipe, f"out={out}", PART)

        ended = forked(killed, check=False)
        assert ended.codes == [9], ended.text[-2000:]
        assert not (out / "manifest.json").exists()
        prepared.append(len(list(out.glob("work/parts/*/*/counts.json"))))
    assert prepared[0] == 2, "finished parts are kept"
    assert prepared[1] > 6
    # all parts were there before the second kill: no row is prepared again
    monkeypatch.setattr("data_builders.sft.part.prepare", None)
    build(recipe, f"out={out}", PART)
    assert manifest(out)["digest"] == manifest(world / "out")["digest"]
    assert shard_bytes(out) == shard_bytes(world / "out")


def test_a_finished_build_is_left_alone_until_its_input_changes(tmp_path, capsys):
    recipe = write_recipe(tmp_path)
    build(recipe)
    # blocks that are not given leave no trace in a digest
    assert not {"deduplication", "decontamination"} & manifest(tmp_path / "out")["config"].keys()
    before = (tmp_path / "out" / "manifest.json").stat().st_mtime_ns
    build(recipe)
    assert "nothing to do" in capsys.readouterr().out
    assert (tmp_path / "out" / "manifest.json").stat().st_mtime_ns == before
    write_rows(tmp_path / "plain.jsonl", plain_rows(299))
    with pytest.raises(ConfigError, match=r"before its input changed \(plain.jsonl\)"):
        build(recipe)
