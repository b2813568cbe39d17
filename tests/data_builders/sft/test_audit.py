"""The audit that is part of a build: the figures of what is written, and limits that stop it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.audit.limits import violations
from posttrain.config.audit import SupervisionLimits
from posttrain.errors import DataError
from tests.data_builders.small_build import (
    build,
    index,
    manifest,
    plain_rows,
    reasoning_rows,
    script,
    source_of,
    write_recipe,
)


def sources(folder: Path, copies: int = 0) -> list[dict[str, Any]]:
    """Two sources that are taken once; the second repeats its first rows."""
    plain = plain_rows(60)
    return [
        source_of(folder, reasoning_rows(50), "reasoning"),
        source_of(folder, plain + plain[:copies], "plain"),
    ]


def rows_of(out: Path) -> list[dict[str, Any]]:
    lines = (out / "supervision.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build of both sources, of which seven rows are copies."""
    folder = tmp_path_factory.mktemp("audited")
    build(write_recipe(folder, sources=sources(folder, copies=7)), report=True)
    return folder / "out"


def test_the_builds_figures_are_those_of_its_shards(built):
    found = manifest(built)["stats"]["supervision"]
    rows = index(built) + index(built, "eval")
    for name, figures in found.items():
        own = [row for row in rows if row["source"] == name]
        lost = manifest(built)["stats"]["sources"][name]["dropped"].get("held_out_duplicate", 0)
        assert figures["sequences"] == len(own) + lost
        assert figures["longest"] == max(row["length"] for row in own)
        assert figures["end_trained"] == figures["sequences"]
        assert figures["prompt_trained"] == figures["turn_tokens"] == figures["clipped"] == 0
    assert found["plain"]["duplicated"] == 7
    (copies,) = violations("plain", found["plain"], SupervisionLimits(max_duplicated=0.05))
    assert "an exact copy of another sequence is present in 10.45% of 67" in copies
    assert found["plain"]["empty_think"] == found["plain"]["sequences"] == 67
    assert 0 < found["reasoning"]["cut_trace"] < found["reasoning"]["sequences"]


def test_an_audit_of_the_artifact_finds_what_the_build_counted(tmp_path):
    build(write_recipe(tmp_path, sources=sources(tmp_path), held_out={"rate": 0.3}))
    script("audit").main([str(tmp_path / "out"), f"out={tmp_path / 'audit'}"])
    counted = manifest(tmp_path / "out")["stats"]["supervision"]
    found = manifest(tmp_path / "audit")["stats"]["supervision"]
    # whether an end was clipped off cannot be seen from tokens
    assert found == {name: own | {"clipped": None} for name, own in counted.items()}
    assert [p["kind"] for p in manifest(tmp_path / "audit")["parents"]] == ["sft_data"]


def test_repeats_of_the_mixture_are_no_copies(world, tmp_path):
    assert max(row["epoch"] for row in index(world / "out")) > 0
    script("audit").main([str(world / "out"), f"out={tmp_path / 'audit'}"])
    found = manifest(tmp_path / "audit")["stats"]["supervision"]
    assert {figures["duplicated"] for figures in found.values()} == {0}


def test_the_report_shows_figures_and_the_worst(built):
    page = (built / "report.html").read_text("utf-8")
    assert "Worst offenders" in page
    assert "exact copies" in page
    rows = rows_of(built)
    assert {row["kind"] for row in rows} == {"longest", "least_trained", "empty_think", "repeated"}
    worst = {row["kind"]: row for row in reversed(rows) if row["source"] == "plain"}
    shown = "".join(text for _, _, text in worst["longest"]["segments"])
    assert "<|im_start|>user\nSay" in shown
    trained = "".join(text for _, trained, text in worst["longest"]["segments"] if trained)
    assert trained.endswith("<|im_end|>\n")
    every = [row for row in index(built) + index(built, "eval") if row["source"] == "plain"]
    assert worst["longest"]["about"].split()[0] in {row["record_id"] for row in every}
    least = worst["least_trained"]
    assert least["trained"] / least["tokens"] == min(r["trained"] / r["length"] for r in every)


def test_clipped_answers_that_lost_their_end_stop_the_build(tmp_path):
    recipe = write_recipe(
        tmp_path,
        sources=sources(tmp_path)[:1],
        packing={"max_length": 1200, "overlong": "truncate"},
        reasoning={"strip": 0.0, "truncate": 0.0},
        limits={"nothing_trained": 1.0},
    )
    with pytest.raises(DataError, match=r"end token is trained in .* limits.min_end_trained"):
        build(recipe)
    assert not (tmp_path / "out" / "manifest.json").exists()
    build(recipe, "limits.min_end_trained=0.0")
    found = manifest(tmp_path / "out")["stats"]["supervision"]["reasoning"]
    assert found["clipped"] == found["no_end"] > 0
    assert "no_end" in {row["kind"] for row in rows_of(tmp_path / "out")}
