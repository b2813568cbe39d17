"""Builds that drop copies of records and what evaluation asks."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from posttrain.errors import ConfigError
from tests.data_builders.dedup.copies import sentence
from tests.data_builders.small_build import (
    build,
    dropped_lines,
    index,
    manifest,
    shard_bytes,
    source_of,
    write_recipe,
    write_rows,
)

BLOCKS = {"deduplication": {"prompt": True, "near": {}, "precedence": ["late"]}}


def _rows() -> dict[str, list[dict[str, Any]]]:
    """Forty texts; of another source, ten edited copies, five exact, five with other answers."""
    rng = random.Random(0)
    rows = [{"instruction": sentence(rng, 25), "output": sentence(rng, 35)} for _ in range(40)]
    near = [
        {**row, "output": f"{row['output'][:90]} xyz {row['output'][90:]}"} for row in rows[:10]
    ]
    exact = [{"output": r["output"], "instruction": f"  {r['instruction']}"} for r in rows[10:15]]
    asked = [{**row, "output": sentence(rng, 12)} for row in rows[15:20]]
    # the copy of a copy, in the same source
    return {"early": [*rows, rows[12]], "late": [*near, *exact, *asked]}


def _recipe(folder: Path, rows: dict[str, list[dict[str, Any]]], **keys: Any) -> Path:
    asked = [
        {"question": row["instruction"]} for row in rows["early"] if row in _rows()["early"][30:33]
    ]
    write_rows(folder / "eval.jsonl", sorted(asked, key=str))
    given: dict[str, Any] = {
        "sources": [source_of(folder, own, name) for name, own in rows.items()],
        "write_dropped": True,
        "held_out": {"rate": 0.2},
        "decontamination": {"files": [{"path": str(folder / "eval.jsonl")}]},
        **BLOCKS,
        **keys,
    }
    return write_recipe(folder, **given)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One build in this process, its parts kept beside it."""
    folder = tmp_path_factory.mktemp("world")
    build(_recipe(folder, _rows()), f"parts_dir={folder / 'parts'}", report=True)
    return folder


def test_every_row_is_kept_or_dropped_for_a_reason(world):
    sources = manifest(world / "out")["stats"]["sources"]
    assert sources["early"]["dropped"] == {
        "contaminated": 3,
        "duplicate": 6,
        "duplicate_prompt": 5,
        "near_duplicate": 10,
    }
    assert sources["late"]["dropped"] == {}
    counts = manifest(world / "out")["counts"]
    assert counts["in"] == 61 == counts["kept"] + sum(counts["dropped"].values())
    assert "near_duplicate" in (world / "out" / "report.html").read_text()
    files = [given["path"] for given in manifest(world / "out")["stats"]["inputs"]]
    assert "eval.jsonl" in files


def test_every_drop_names_what_was_kept(world):
    lines = dropped_lines(world / "out")
    assert Counter(line["reason"] for line in lines) == manifest(world / "out")["counts"]["dropped"]
    gone = {(line["source"], line["line"]) for line in lines}
    copies = {line["line"]: line for line in lines if "kept" in line}
    assert len(copies) == 21
    assert all((c["kept"]["source"], c["kept"]["line"]) not in gone for c in copies.values())
    near, exact, asked, again = copies[4], copies[12], copies[17], copies[41]
    assert (near["reason"], near["kept"]["source"], near["kept"]["line"]) == (
        "near_duplicate",
        "late",
        4,
    )
    assert 0.85 < near["kept"]["similarity"] < 1
    assert (exact["kept"]["line"], exact["kept"]["similarity"]) == (12, 1.0)
    assert (asked["kept"]["line"], asked["kept"]["similarity"]) == (17, None)
    assert again["kept"] == copies[13]["kept"]
    found = [line for line in lines if line["reason"] == "contaminated"]
    assert [line["line"] for line in found] == [31, 32, 33]
    assert all("eval.jsonl:" in line["detail"] for line in found)


def test_evaluation_has_no_copy_of_what_is_trained(world):
    gone = {
        line["record_id"] for line in dropped_lines(world / "out") if line["reason"] != "duplicate"
    }
    train = {row["record_id"] for row in index(world / "out")}
    held_out = {row["record_id"] for row in index(world / "out", "eval")}
    assert len(held_out) > 2
    assert not train & held_out
    assert not (train | held_out) & gone
    assert len(train | held_out) == 61 - 24


def test_parts_and_the_order_of_rows_change_nothing(world, tmp_path):
    build(world / "recipe.yaml", f"out={tmp_path / 'out'}", part_bytes=3000)
    assert manifest(tmp_path / "out")["digest"] == manifest(world / "out")["digest"]
    assert dropped_lines(tmp_path / "out") == dropped_lines(world / "out")
    build(_recipe(tmp_path / "b", {name: own[::-1] for name, own in _rows().items()}))
    assert shard_bytes(tmp_path / "b" / "out") == shard_bytes(world / "out")


def test_what_is_for_the_plan_prepares_no_row_again(world, tmp_path, monkeypatch):
    raw = yaml.safe_load((world / "recipe.yaml").read_text())
    raw["deduplication"] = {"near": {"threshold": 0.97}, "precedence": ["early"]}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(raw))
    monkeypatch.setattr("data_builders.sft.part.prepare", None)
    build(tmp_path / "recipe.yaml", f"out={tmp_path / 'out'}", f"parts_dir={world / 'parts'}")
    sources = manifest(tmp_path / "out")["stats"]["sources"]
    assert sources["late"]["dropped"] == {"duplicate": 5}
    assert sources["early"]["dropped"] == {"contaminated": 3, "duplicate": 1}


def test_refused_before_any_row_is_prepared(tmp_path):
    recipe = _recipe(tmp_path, _rows())
    with pytest.raises(ConfigError, match=r"precedence: .*no source 'lat' .did you mean 'late'"):
        build(recipe, "deduplication.precedence=[lat]")
    with pytest.raises(ConfigError, match=r"near.per_source: .*no source 'erly' .*'early'"):
        build(recipe, "deduplication.near.per_source.erly=0.9")
    missing = f"decontamination.files.0.path={tmp_path / 'evla.jsonl'}"
    with pytest.raises(ConfigError, match=r"evla.jsonl' does not exist; the nearest .*eval.jsonl"):
        build(recipe, missing)
    write_rows(tmp_path / "evals" / "a.jsonl", [{"question": "one two three four five six"}])
    write_rows(tmp_path / "evals" / "b.jsonl", [])
    with pytest.raises(ConfigError, match=r"evals/b.jsonl: no text to look for"):
        build(recipe, f"decontamination.files.0.path={tmp_path / 'evals' / '*.jsonl'}")


def test_a_finished_build_is_refused_when_evaluation_changed(tmp_path):
    """And what was not looked for is printed, and in the manifest and the report."""
    recipe = _recipe(tmp_path, _rows())
    questions = [{"question": row["instruction"]} for row in _rows()["early"][:3]]
    write_rows(tmp_path / "eval.jsonl", [*questions, {"answer": "of another field"}])
    build(recipe, "decontamination.files.0.fields=[question]", report=True)
    stats = manifest(tmp_path / "out")["stats"]
    (file,) = stats["decontamination"]
    assert [file[k] for k in ("file", "rows", "without_text", "inside")] == ["eval.jsonl", 4, 1, 3]
    warning = "decontamination: eval.jsonl: 1 of 4 rows lack text"
    assert warning in stats["warnings"]
    assert warning in (tmp_path / "out" / "report.html").read_text()
    write_rows(tmp_path / "eval.jsonl", questions)
    with pytest.raises(ConfigError, match=r"before its input changed \(eval.jsonl\)"):
        build(recipe, "decontamination.files.0.fields=[question]")
