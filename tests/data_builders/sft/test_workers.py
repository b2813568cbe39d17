"""However rows are cut into files and parts, and whoever prepares them: the same bytes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from data_builders.sft import part
from posttrain.errors import ConfigError
from tests.data_builders.small_build import (
    build,
    manifest,
    plain_rows,
    reasoning_rows,
    shard_bytes,
    write_recipe,
    write_rows,
)

PART = "part_bytes=4000"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One build of whole files in this process, and its recipe."""
    folder = tmp_path_factory.mktemp("world")
    build(_recipe(folder))
    return folder


def _recipe(folder: Path, **keys: Any) -> Path:
    sources = [
        {
            "name": "reasoning",
            "path": str(write_rows(folder / "traces.jsonl", _rows())),
            "license": "MIT",
            "metadata": ["level"],
            "where": {"level": [0, 2]},
            "share": 0.7,
        },
        {
            "name": "plain",
            "path": str(write_rows(folder / "short.jsonl", plain_rows(150))),
            "license": "CC0-1.0",
            "share": 0.3,
        },
    ]
    given = {"sources": sources, "shards": {"packs": 7}, "write_dropped": True, **keys}
    return write_recipe(folder, **given)


def _rows() -> list[dict[str, Any]]:
    rows = reasoning_rows(90)
    rows[17] = {"level": 2, "nothing": "to read"}
    rows[40]["messages"] = rows[40]["messages"][:1]
    return rows


def _digest(out: Path) -> str:
    return manifest(out)["digest"]


@pytest.mark.parametrize("overrides", [(PART,), (PART, "workers=2")])
def test_parts_and_workers_change_nothing(world, tmp_path, overrides):
    build(world / "recipe.yaml", f"out={tmp_path / 'out'}", *overrides)
    assert _digest(tmp_path / "out") == _digest(world / "out")
    assert shard_bytes(tmp_path / "out") == shard_bytes(world / "out")
    dropped = [(f / "dropped.jsonl").read_text() for f in (tmp_path / "out", world / "out")]
    assert dropped[0] == dropped[1]
    assert not (tmp_path / "out" / "work").exists()


def _seven(folder: Path, rows: list[dict[str, Any]]) -> str:
    for k in range(7):
        write_rows(folder / f"part{k}.jsonl", rows[len(rows) * k // 7 : len(rows) * (k + 1) // 7])
    return str(folder / "part*.jsonl")


def _gz(folder: Path, rows: list[dict[str, Any]]) -> str:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    return str(folder / "rows.jsonl.gz")


def _array(folder: Path, rows: list[dict[str, Any]]) -> str:
    (folder / "rows.json").write_text(json.dumps(rows))
    return str(folder / "rows.json")


def _parquet(folder: Path, rows: list[dict[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet", row_group_size=40)
    return str(folder / "rows.parquet")


def _saved(folder: Path, rows: list[dict[str, Any]]) -> str:
    Dataset.from_list(rows).save_to_disk(str(folder / "saved"))
    return str(folder / "saved")


def test_the_same_rows_in_other_files_give_the_same_shards(tmp_path):
    """Parts differ, file names differ; `packed/` and `index/` do not."""
    made: dict[str, dict[str, bytes]] = {}
    for name, write in {
        "one": lambda folder, rows: str(write_rows(folder / "rows.jsonl", rows)),
        "seven": _seven,
        "gz": _gz,
        "array": _array,
        "parquet": _parquet,
        "saved": _saved,
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        source = {"name": "plain", "path": write(folder, plain_rows(150)), "license": "MIT"}
        build(write_recipe(folder, sources=[source]), "part_bytes=3000")
        made[name] = shard_bytes(folder / "out")
        assert manifest(folder / "out")["counts"]["in"] == 150
    assert all(files == made["one"] for files in made.values())


def test_a_where_that_no_part_meets_is_refused(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", plain_rows(60))
    source = {"name": "a", "path": str(path), "where": {"inputt": ""}}
    with pytest.raises(ConfigError, match=r"'inputt', which none of 60 rows has.*'input'"):
        build(write_recipe(tmp_path, sources=[source]), "part_bytes=1000")


def test_only_the_parts_that_changed_are_prepared_again(world, tmp_path, monkeypatch):
    """Kept parts: more rows at the end of a file leave its earlier parts as they are."""
    prepared: list[int] = []
    original = part.prepare

    def counting(examples: Any, preparer: Any) -> Any:
        prepared.append(len(examples))
        return original(examples, preparer)

    monkeypatch.setattr(part, "prepare", counting)
    recipe = _recipe(tmp_path, write_dropped=False)
    keep = f"parts_dir={tmp_path / 'parts'}"
    build(recipe, f"out={tmp_path / 'a'}", PART, keep)
    everything = sum(prepared)
    prepared.clear()
    build(
        recipe, f"out={tmp_path / 'b'}", PART, keep, "mixture.total=30000", "mixture.tolerance=0.1"
    )
    assert sum(prepared) == 0, "another mixture of the same rows"

    write_rows(tmp_path / "short.jsonl", plain_rows(170))
    build(recipe, f"out={tmp_path / 'c'}", PART, keep)
    assert 0 < sum(prepared) < everything / 3
    build(recipe, f"out={tmp_path / 'fresh'}")
    assert _digest(tmp_path / "fresh") == _digest(tmp_path / "c")


def test_a_ray_pipeline_gives_the_same_bytes(world, tmp_path):
    """On a Ray that is started here, with one actor, and ended with the build."""
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    build(world / "recipe.yaml", f"out={tmp_path / 'out'}", PART, "executor=ray")
    assert not ray.is_initialized()
    assert _digest(tmp_path / "out") == _digest(world / "out")
    assert shard_bytes(tmp_path / "out") == shard_bytes(world / "out")
