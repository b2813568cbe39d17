"""Killed and repeated builds: the same bytes, or a refusal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.errors import ConfigError
from tests.data_builders.small_build import (
    ROOT,
    build,
    manifest,
    plain_rows,
    shard_bytes,
    write_recipe,
    write_rows,
)

KILLER = """
import os, sys
sys.path.insert(0, {root!r})
import data_builders.sft.part as source
import data_builders.sft.shards as shards
calls = 0
def kill_at(original, number):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == number:
            os._exit(9)
        return original(*args, **kwargs)
    return call
{patch}
from tests.data_builders.small_build import build
from pathlib import Path
build(Path({recipe!r}), "out=" + {out!r}, {part!r})
"""
PART = "part_bytes=8000"


def test_killed_twice_and_resumed_gives_the_same_bytes(world, tmp_path, monkeypatch):
    recipe, out = str(world / "recipe.yaml"), str(tmp_path / "killed")
    patches = [
        # in the third part of the first source
        "source.prepare = kill_at(source.prepare, 3)",
        "shards._batch = kill_at(shards._batch, 2)",  # in the second shard
    ]
    prepared: list[int] = []
    for patch in patches:
        code = KILLER.format(root=str(ROOT), patch=patch, recipe=recipe, out=out, part=PART)
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
        assert done.returncode == 9, done.stderr.decode()[-2000:]
        assert not (Path(out) / "manifest.json").exists()
        prepared.append(len(list(Path(out).glob("work/parts/*/*/counts.json"))))
    assert prepared[0] == 2, "finished parts are kept"
    assert prepared[1] > 6
    # all parts were there before the second kill: no row is prepared again
    monkeypatch.setattr("data_builders.sft.part.prepare", None)
    build(Path(recipe), f"out={out}", PART)
    assert manifest(Path(out))["digest"] == manifest(world / "out")["digest"]
    assert shard_bytes(Path(out)) == shard_bytes(world / "out")


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
