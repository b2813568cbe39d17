"""Artifacts: finished or refused, and bound to their content."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.artifacts import Counts, StageDir, parent_of, read_artifact
from posttrain.errors import ConfigError, DataError


def make(path: Path, config: dict, text: str = "row\n", **extra):
    stage = StageDir.open(path, kind="toy", config=config)
    (path / "rows.txt").write_text(text)
    return stage.finish(counts=Counts(2, 1, {"empty": 1}), files={"rows.txt": 1}, **extra)


def test_round_trip_and_json_names(tmp_path):
    made = make(tmp_path / "a", {"x": 1}, seed=3, stats={"fill": 0.5})
    assert read_artifact(tmp_path / "a", kind="toy") == made
    body = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert body["counts"] == {"in": 2, "kept": 1, "dropped": {"empty": 1}}


def test_the_books_must_balance():
    with pytest.raises(AssertionError, match="1 rows neither kept nor dropped"):
        Counts(3, 1, {"empty": 1})


def test_digest_depends_on_content_and_lineage_and_not_on_place(tmp_path):
    parent = make(tmp_path / "p", {})
    near = parent_of(tmp_path / "p", relative_to=tmp_path / "a", manifest=parent)
    far = parent_of(tmp_path / "p", relative_to=tmp_path / "deep" / "b", manifest=parent)
    a = make(tmp_path / "a", {"x": 1}, parents=[near])
    b = make(tmp_path / "deep" / "b", {"x": 1}, parents=[far])
    c = make(tmp_path / "c", {"x": 1}, text="other\n", parents=[near])
    assert near.path != far.path
    assert a.digest == b.digest != c.digest


def test_another_config_is_refused_by_name_and_the_same_one_resumes(tmp_path):
    StageDir.open(tmp_path / "a", kind="toy", config={"x": 1, "in": {"y": 2}})
    assert not StageDir.open(tmp_path / "a", kind="toy", config={"x": 1, "in": {"y": 2}}).complete
    with pytest.raises(ConfigError, match=r"they differ in: in\.y"):
        StageDir.open(tmp_path / "a", kind="toy", config={"x": 1, "in": {"y": 3}})
    with pytest.raises(ConfigError, match="holds a 'toy' artifact"):
        StageDir.open(tmp_path / "a", kind="sft_data", config={"x": 1, "in": {"y": 2}})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="not made by a stage of ours"):
        StageDir.open(tmp_path / "mine", kind="toy", config={})


def test_unfinished_tampered_and_foreign_inputs_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such directory"):
        read_artifact(tmp_path / "none")
    StageDir.open(tmp_path / "half", kind="toy", config={})
    with pytest.raises(DataError, match="has not finished"):
        read_artifact(tmp_path / "half")
    make(tmp_path / "a", {})
    with pytest.raises(DataError, match="'sft_data' is needed here"):
        read_artifact(tmp_path / "a", kind="sft_data")
    (tmp_path / "a" / "rows.txt").write_text("rwo\n")
    with pytest.raises(DataError, match="has changed since"):
        read_artifact(tmp_path / "a")
    make(tmp_path / "b", {})
    manifest = tmp_path / "b" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(DataError, match="was edited"):
        read_artifact(tmp_path / "b")
    manifest.write_text(manifest.read_text()[:100])
    with pytest.raises(DataError, match="is damaged"):
        read_artifact(tmp_path / "b")
