"""Every stage leaves a report beside its artifact; started again, it leaves the one that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.runs import read_artifact
from tests.data_builders.small_build import script

WORLD = """
out: world
families: {maths: {train: 60, heldout: 8, difficulties: [1]}}
tokenizer: {vocab_size: 400}
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


def test_world_and_data_have_reports(tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "world.yaml").write_text(WORLD)
    world = ["--config", "world.yaml"]
    script("tiny_world").main(world)
    assert "<h2>Tiny world</h2>" in (tmp_path / "world" / "report.html").read_text()
    check_started_again(tmp_path / "world", lambda: script("tiny_world").main(world))
    # built by the script, in a process of its own
    data = ["--config", "recipe.yaml"]
    monkeypatch.chdir(built)
    assert "<h2>Mixture</h2>" in (built / "sft_data" / "report.html").read_text()
    check_started_again(built / "sft_data", lambda: script("build_sft").main(data))
