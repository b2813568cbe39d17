"""Every stage leaves a report beside its artifact; started again, it leaves the one that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.runs import read_artifact
from tests.data_builders.small_build import script

WORLD = """
out: world
families: {maths: {train: 20, heldout: 4, difficulties: [1]}}
tokenizer: {vocab_size: 400}
"""
DATA = """
out: sft_data
tokenizer: {path: world/tokenizer, chat_template: nemotron_3_nano}
packing: {max_length: 512}
sources: [{name: maths, path: world/train/maths.jsonl}]
"""


def check_started_again(out: Path, start) -> None:
    """The manifest stays, a report that is there stays, one that is gone comes back the same."""
    manifest, report = out / "manifest.json", out / "report.html"
    before, page = manifest.read_bytes(), report.read_bytes()
    assert "report.html" not in {entry.path for entry in read_artifact(out).files}
    report.unlink()
    start()
    assert report.read_bytes() == page
    report.write_text("with accuracy")
    start()
    assert report.read_text() == "with accuracy"
    assert manifest.read_bytes() == before


def test_world_and_data_have_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "world.yaml").write_text(WORLD)
    world = ["--config", "world.yaml"]
    script("tiny_world").main(world)
    assert "<h2>Counts</h2>" in (tmp_path / "world" / "report.html").read_text()
    check_started_again(tmp_path / "world", lambda: script("tiny_world").main(world))
    (tmp_path / "data.yaml").write_text(DATA)
    data = ["--config", "data.yaml"]
    script("build_sft").main(data)
    assert "<h2>Mixture</h2>" in (tmp_path / "sft_data" / "report.html").read_text()
    check_started_again(tmp_path / "sft_data", lambda: script("build_sft").main(data))
