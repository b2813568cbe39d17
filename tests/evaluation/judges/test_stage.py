"""The judge's evaluation: built pairs, a scripted judge, figures known beforehand, no repeats."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from posttrain.errors import ConfigError, DataError
from posttrain.runs import read_artifact
from posttrain.sampling.sampler import Request
from tests.data_builders.judging.small import numbered
from tests.sampling.scripted import END, Scripted

ROOT = Path(__file__).resolve().parents[3]
_SHOWN = re.compile(r"\[A1\](\d+)\[/A1\]\n\[A2\](\d+)\[/A2\]")


def script(name: str) -> ModuleType:
    """A stage as a module."""
    spec = spec_from_file_location(f"scripts_{name}", ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # dataclasses look their module up
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def verdict(score_1: int, score_2: int, ranking: int) -> str:
    return json.dumps({"score_1": score_1, "score_2": score_2, "ranking": ranking})


def knows(request: Request, rng: random.Random) -> str:
    """The chosen is the even number."""
    first = int(_SHOWN.findall(request.messages[-1].content)[-1][0])
    return f"Hm.</think>{verdict(5, 1, 2) if first % 2 == 0 else verdict(1, 5, 5)}{END}"


def first(request: Request, rng: random.Random) -> str:
    """The first is the better one, and sometimes there is no verdict."""
    return f"Hm.</think>{'The first.' if rng.random() < 0.1 else verdict(4, 2, 2)}{END}"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Pairs of 40 questions, 20 or so held out, and a recipe of two judges."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in numbered(40)))
    raw: dict[str, Any] = {
        "out": str(tmp_path / "data"),
        "layout": "compact",
        "held_out": 0.5,
        "sources": [{"name": "sums", "path": str(tmp_path / "rows.jsonl")}],
    }
    (tmp_path / "build.yaml").write_text(yaml.safe_dump(raw))
    script("build_genrm").main(["--config", str(tmp_path / "build.yaml")])
    raw = {
        "out": str(tmp_path / "out"),
        "data": str(tmp_path / "data"),
        "checkpoints": {"first": str(tmp_path / "first"), "knows": str(tmp_path / "knows")},
        "backend": {"kind": "transformers"},
        "sampling": {"temperature": 0.0, "max_tokens": 200},
        "chunk": 16,
    }
    path = tmp_path / "eval.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def evaluate(recipe: Path, *overrides: str, **judges: Scripted) -> dict[str, Scripted]:
    """`python scripts/eval_genrm.py --config recipe …` with these judges behind the paths."""
    found = {"first": Scripted(first), "knows": Scripted(knows)} | judges
    module = script("eval_genrm")

    @asynccontextmanager
    async def opened(_: object, *, checkpoint: str, parts: bool) -> AsyncIterator[Scripted]:
        yield found[Path(checkpoint).name]

    with patch("posttrain.evaluation.judges.stage.opened_sampler", opened):
        module.main(["--config", str(recipe), *overrides])
    return found


def metrics(out: Path) -> dict[str, Any]:
    return json.loads((out / "metrics.json").read_text())


def test_two_judges_are_told_apart(recipe: Path, tmp_path: Path):
    evaluate(recipe)
    cells = {cell["checkpoint"]: cell for cell in metrics(tmp_path / "out")["cells"]}
    knows_it, by_place = cells["knows"], cells["first"]
    assert (
        knows_it["pairwise_accuracy"]["value"] == knows_it["position_consistency"]["value"] == 1.0
    )
    assert knows_it["ranking_error"]["value"] == 0.0
    assert knows_it["score_error"] is None  # chosen and rejected have no scores
    assert by_place["pairwise_accuracy"]["value"] < 0.6
    assert by_place["position_consistency"]["value"] == 0.0
    assert by_place["prefers_first"]["value"] == 1.0
    assert 0.6 < by_place["format"]["value"] < 1.0
    (row,) = metrics(tmp_path / "out")["differences"]
    assert row["pairwise_accuracy"]["low"] > 0.2
    manifest = read_artifact(tmp_path / "out", kind="genrm_evaluation")
    files = {f.path: f.rows for f in manifest.files}
    assert files["records/knows.jsonl"] == files["prompts.jsonl"] == 2 * knows_it["pairs"]
    assert manifest.counts.kept == knows_it["pairs"]
    assert manifest.stats["samplers"]["knows"] == {"backend": "scripted"}
    assert not (tmp_path / "out/work").exists()
    page = (tmp_path / "out/report.html").read_text()
    assert "position consistency" in page
    assert "first → knows" in page
    data_page = (tmp_path / "data/report.html").read_text()
    assert "Gold rankings" in data_page
    assert "chosen_rejected" in data_page


def test_records_can_be_read_again(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    evaluate(recipe)
    capsys.readouterr()
    script("eval_genrm").main(["rescore", str(tmp_path / "out")])
    assert "unchanged" in capsys.readouterr().out
    shown = [json.loads(line) for line in (tmp_path / "out/examples.jsonl").open()]
    kinds = {(e["checkpoint"], e["right"]) for e in shown}
    assert kinds == {("first", 0.0), ("first", 1.0), ("knows", 1.0)}


def test_an_interrupted_run_goes_on_where_it_was(recipe: Path, tmp_path: Path):
    whole = evaluate(recipe, f"out={tmp_path}/whole")

    class Fails(Scripted):
        async def sample(self, requests, *, progress=None):
            if len(self.calls) == 1:
                raise KeyboardInterrupt
            return await super().sample(requests, progress=progress)

    with pytest.raises(KeyboardInterrupt):
        evaluate(recipe, knows=Fails(knows))
    again = evaluate(recipe)
    assert [len(calls) for calls in again["first"].calls] == []
    made = [len(calls) for calls in whole["knows"].calls]
    assert [len(calls) for calls in again["knows"].calls] == made[1:]
    left, right = (tmp_path / name / "metrics.json" for name in ("whole", "out"))
    assert left.read_bytes() == right.read_bytes()


def test_fewer_pairs_keep_both_orders(recipe: Path, tmp_path: Path):
    evaluate(recipe, "pairs=3")
    (cell, _) = metrics(tmp_path / "out")["cells"]
    assert (cell["pairs"], cell["judgements"]) == (3, 6)
    manifest = read_artifact(tmp_path / "out")
    assert manifest.counts.kept == 3
    assert manifest.counts.dropped["not_selected"] == manifest.counts.rows_in - 3


def test_a_dry_run_asks_nobody(recipe: Path, tmp_path: Path):
    found = evaluate(recipe, "--dry-run")
    assert not (tmp_path / "out").exists()
    assert found["first"].calls == []


def test_what_cannot_be_evaluated(recipe: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="no backend"):
        evaluate(recipe, "backend=null")
    with pytest.raises(ConfigError, match="checkpoint name"):
        evaluate(recipe, 'checkpoints={"a/b": "x"}')
    build = tmp_path / "build.yaml"
    script("build_genrm").main(["--config", str(build), f"out={tmp_path}/none", "held_out=0"])
    with pytest.raises(DataError, match="held nothing out"):
        evaluate(recipe, f"data={tmp_path}/none")


def test_data_stage_resumes_and_refuses_changes(recipe: Path, tmp_path: Path):
    build = script("build_genrm")
    before = read_artifact(tmp_path / "data").digest
    build.main(["--config", str(tmp_path / "build.yaml")])
    (tmp_path / "data/manifest.json").unlink()
    build.main(["--config", str(tmp_path / "build.yaml")])
    assert read_artifact(tmp_path / "data").digest == before
    with (tmp_path / "rows.jsonl").open("a") as rows:
        rows.write(json.dumps(numbered(41)[-1]) + "\n")
    with pytest.raises(ConfigError, match=r"rows\.jsonl"):
        build.main(["--config", str(tmp_path / "build.yaml")])
