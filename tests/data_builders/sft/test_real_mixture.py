"""Thirteen real files, six dialects, a 100k-vocabulary tokenizer: the recipe beside this test."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.data_builders.small_build import build, manifest, packs

RECIPE = Path(__file__).parents[1] / "real_mixture.yaml"
ROWS = 60  # of each file: enough to meet every dialect, quick enough for every day


@pytest.fixture(scope="module")
def out(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe on the first rows of every file."""
    folder = tmp_path_factory.mktemp("real")
    recipe = yaml.safe_load(RECIPE.read_text())
    for source in recipe["sources"]:
        lines = (shared / "data" / Path(source["path"]).name).open(encoding="utf-8")
        with lines:
            head = [line for _, line in zip(range(ROWS), lines, strict=False)]
        source["path"] = str(folder / Path(source["path"]).name)
        Path(source["path"]).write_text("".join(head), "utf-8")
        for unit in ("rows", "tokens"):
            if unit in source:
                source[unit] = {"rows": 60, "tokens": 9_000}[unit]
    recipe["tokenizer"]["path"] = str(shared / "tokenizers" / "cl100k_chatml")
    recipe["mixture"] = {"total": 600_000, "tolerance": 0.15, "max_epochs": 30}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    build(path, f"out={folder / 'out'}")
    return folder / "out"


def test_counts_balance(out):
    body = manifest(out)
    counts = body["counts"]
    assert counts["in"] == counts["kept"] + sum(counts["dropped"].values()) == 13 * ROWS
    sources = body["stats"]["sources"]
    dialects = {d for source in sources.values() for d in source["dialects"]}
    assert len(dialects) >= 6
    for name, source in sources.items():
        assert source["in"] == source["kept"] + sum(source["dropped"].values()), name
        assert abs(source["requested"]["difference"]) <= 0.15, name
    named = [json.loads(line) for line in (out / "dropped.jsonl").read_text().splitlines()]
    assert Counter(row["reason"] for row in named) == counts["dropped"]
    assert all(row["file"] and row["line"] and row["reason"] for row in named)


def test_packs_are_full_of_the_tokenizers_ids(out):
    assert manifest(out)["stats"]["splits"]["train"]["fill"] > 0.97
    assert max(max(pack["input_ids"]) for pack in packs(out)) <= 100_276
