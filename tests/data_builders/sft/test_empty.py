"""Builds of which nothing is left to train on say where the rows went, and leave no data set."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError
from tests.data_builders.dedup.copies import sentence
from tests.data_builders.small_build import build, manifest, write_recipe, write_rows


def _rows(count: int) -> list[dict[str, Any]]:
    rng = random.Random(0)
    return [{"instruction": sentence(rng, 20), "output": sentence(rng, 9)} for _ in range(count)]


def _recipe(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> Path:
    source = {"name": "a", "path": str(write_rows(folder / "a.jsonl", rows)), "license": "MIT"}
    return write_recipe(folder, sources=[source], **keys)


def _evaluation(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    path = write_rows(folder / "e.jsonl", rows)
    return {"files": [{"path": str(path), "fields": ["instruction"]}]}


def test_all_rows_are_contaminated(tmp_path):
    recipe = _recipe(tmp_path, _rows(10), decontamination=_evaluation(tmp_path, _rows(10)))
    with pytest.raises(DataError, match=r"train on, of 10 rows: 10 contaminated$"):
        build(recipe)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_all_rows_are_held_out_or_there_are_none(tmp_path):
    with pytest.raises(DataError, match=r"train on, of 10 rows: 10 held out$"):
        build(_recipe(tmp_path / "a", _rows(10), held_out={"rows": 10}))
    with pytest.raises(DataError, match=r"train on, of 0 rows"):
        build(_recipe(tmp_path / "b", []))


def test_what_was_not_looked_for_is_in_the_manifest_and_printed(tmp_path, capsys):
    asked = [*_rows(3), {"question": "another name of the field"}]
    build(_recipe(tmp_path, _rows(40), decontamination=_evaluation(tmp_path, asked)))
    stats = manifest(tmp_path / "out")["stats"]
    (book,) = stats["decontamination"]
    assert (book["file"], book["rows"], book["without_text"], book["inside"]) == (
        "e.jsonl",
        4,
        1,
        3,
    )
    warning = "decontamination: e.jsonl: 1 of 4 rows lack text"
    assert warning in stats["warnings"]
    assert warning in capsys.readouterr().out
    assert warning in (tmp_path / "out" / "report.html").read_text()
    assert stats["sources"]["a"]["dropped"]["contaminated"] == 3
