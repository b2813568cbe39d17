"""The audit that is part of a build: the figures of what is written, and limits that stop it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError
from tests.data_builders.small_build import (
    build,
    index,
    manifest,
    plain_rows,
    reasoning_rows,
    script,
    write_recipe,
    write_rows,
)


def sources(folder: Path, copies: int = 0) -> list[dict[str, Any]]:
    """Two sources that are taken once; the second repeats its first rows."""
    plain = plain_rows(60)
    return [
        {"name": "reasoning", "path": str(write_rows(folder / "r.jsonl", reasoning_rows(50)))},
        {"name": "plain", "path": str(write_rows(folder / "p.jsonl", plain + plain[:copies]))},
    ]


def rows_of(out: Path) -> list[dict[str, Any]]:
    lines = (out / "supervision.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_the_builds_figures_are_those_of_its_shards(tmp_path):
    build(write_recipe(tmp_path, sources=sources(tmp_path, copies=7)))
    out = tmp_path / "out"
    built = manifest(out)["stats"]["supervision"]
    rows = index(out) + index(out, "eval")
    for name, figures in built.items():
        own = [row for row in rows if row["source"] == name]
        lost = manifest(out)["stats"]["sources"][name]["dropped"].get("held_out_duplicate", 0)
        assert figures["sequences"] == len(own) + lost
        assert figures["longest"] == max(row["length"] for row in own)
        assert figures["end_trained"] == figures["sequences"]
        assert figures["prompt_trained"] == figures["turn_tokens"] == figures["clipped"] == 0
    assert built["plain"]["duplicated"] == 7
    assert built["plain"]["empty_think"] == built["plain"]["sequences"] == 67
    assert 0 < built["reasoning"]["cut_trace"] < built["reasoning"]["sequences"]


def test_an_audit_of_the_artifact_finds_what_the_build_counted(tmp_path):
    build(write_recipe(tmp_path, sources=sources(tmp_path), held_out={"rate": 0.3}))
    script("audit").main([str(tmp_path / "out"), f"out={tmp_path / 'audit'}"])
    built = manifest(tmp_path / "out")["stats"]["supervision"]
    found = manifest(tmp_path / "audit")["stats"]["supervision"]
    # whether an end was clipped off cannot be seen from tokens
    clipped = {name: {"clipped": None} for name in built}
    assert found == {name: built[name] | clipped[name] for name in sorted(built, reverse=True)}
    assert [p["kind"] for p in manifest(tmp_path / "audit")["parents"]] == ["sft_data"]


def test_repeats_of_the_mixture_are_no_copies(tmp_path):
    build(write_recipe(tmp_path))
    assert max(row["epoch"] for row in index(tmp_path / "out")) > 0
    script("audit").main([str(tmp_path / "out"), f"out={tmp_path / 'audit'}"])
    found = manifest(tmp_path / "audit")["stats"]["supervision"]
    assert {figures["duplicated"] for figures in found.values()} == {0}


def test_the_report_shows_figures_and_the_worst(tmp_path):
    build(write_recipe(tmp_path, sources=sources(tmp_path, copies=2)))
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "Worst offenders" in page
    assert "Exact copies" in page
    rows = rows_of(tmp_path / "out")
    assert {row["kind"] for row in rows} == {"longest", "least_trained", "empty_think", "repeated"}
    longest = next(row for row in rows if (row["source"], row["kind"]) == ("plain", "longest"))
    shown = "".join(text for _, _, text in longest["segments"])
    assert "<|im_start|>user\nSay" in shown
    trained = "".join(text for _, trained, text in longest["segments"] if trained)
    assert trained.endswith("<|im_end|>\n")
    assert longest["about"].split()[0] in {r["record_id"] for r in index(tmp_path / "out")}


def test_crossed_limits_stop_the_build_until_they_are_raised(tmp_path):
    recipe = write_recipe(tmp_path, sources=sources(tmp_path, copies=7))
    limits = ["min_trained=0.9", "max_duplicated=0.05", "max_empty_think=0.5"]
    with pytest.raises(DataError) as error:
        build(recipe, *(f"limits.{limit}" for limit in limits))
    for pattern in (
        r"source 'plain': the loss is taken in [\d.]+% of [\d,]+ tokens",
        r"source 'plain': an exact copy .* in 10.45% of 67 sequences \(7\)",
        r"source 'plain': .* empty trace in 100.00% of 67",
    ):
        assert re.search(pattern, str(error.value))
    assert not (tmp_path / "out" / "manifest.json").exists()
    build(recipe)


def test_clipped_answers_that_lost_their_end_stop_the_build(tmp_path):
    keys = {"max_length": 400, "overlong": "truncate"}
    reasoning = {"strip": 0.0, "truncate": 0.0}
    recipe = write_recipe(
        tmp_path, sources=sources(tmp_path)[:1], packing=keys, reasoning=reasoning
    )
    with pytest.raises(DataError, match=r"end token is trained in .* limits.min_end_trained"):
        build(recipe, "packing.max_length=1200", "limits.nothing_trained=1.0")
    build(
        recipe,
        "packing.max_length=1200",
        "limits.nothing_trained=1.0",
        "limits.min_end_trained=0.0",
    )
    found = manifest(tmp_path / "out")["stats"]["supervision"]["reasoning"]
    assert found["clipped"] == found["no_end"] > 0
    kinds = {row["kind"] for row in rows_of(tmp_path / "out")}
    assert "no_end" in kinds
