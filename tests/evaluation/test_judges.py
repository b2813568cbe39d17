"""The judge's evaluation: built pairs, a scripted judge, figures known beforehand, no repeats."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from posttrain.errors import ConfigError, DataError
from posttrain.evaluation.judges import Judged, judge_cells, judge_differences
from posttrain.runs import read_artifact
from posttrain.sampling.sampler import Request
from tests.data_builders.judging.small import numbered
from tests.data_builders.small_build import script
from tests.sampling.scripted import END, Scripted, opening

_SHOWN = re.compile(r"\[A1\](\d+)\[/A1\]\n\[A2\](\d+)\[/A2\]")


def verdict(score_1: int, score_2: int, ranking: int) -> str:
    return json.dumps({"score_1": score_1, "score_2": score_2, "ranking": ranking})


def knows(request: Request, rng: random.Random) -> str:
    """The chosen is the even number."""
    first = int(_SHOWN.findall(request.messages[-1].content)[-1][0])
    return f"Hm.</think>{verdict(5, 1, 2) if first % 2 == 0 else verdict(1, 5, 5)}{END}"


def first(request: Request, rng: random.Random) -> str:
    """The first is the better one, and sometimes there is no verdict."""
    return f"Hm.</think>{'The first.' if rng.random() < 0.1 else verdict(4, 2, 2)}{END}"


Judges = dict[str, Scripted]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Judges]:
    """A folder with pairs of 40 questions, 20 or so held out, and two judges evaluated on them."""
    tmp_path = tmp_path_factory.mktemp("judges")
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
    (tmp_path / "eval.yaml").write_text(yaml.safe_dump(raw))
    return tmp_path, evaluate(tmp_path, tmp_path / "out")


@pytest.fixture
def recipe(run: tuple[Path, Judges]) -> Path:
    return run[0]


def evaluate(folder: Path, out: Path, *overrides: str, **judges: Scripted) -> Judges:
    """`python scripts/eval_genrm.py --config …` with these judges behind the paths."""
    found = {"first": Scripted(first), "knows": Scripted(knows)} | judges
    module = script("eval_genrm")

    opened = opening(lambda path: found[Path(path).name])
    with patch("posttrain.evaluation.judges.opened_sampler", opened):
        module.main(["--config", str(folder / "eval.yaml"), f"out={out}", *overrides])
    return found


def metrics(out: Path) -> dict[str, Any]:
    return json.loads((out / "metrics.json").read_text())


def test_two_judges_are_told_apart(recipe: Path):
    tmp_path = recipe
    cells = {cell["checkpoint"]: cell for cell in metrics(tmp_path / "out")["cells"]}
    knows_it, by_place = cells["knows"], cells["first"]
    assert (
        knows_it["pairwise_accuracy"]["value"] == knows_it["position_consistency"]["value"] == 1.0
    )
    assert knows_it["ranking_error"]["value"] == 0.0
    assert knows_it["score_error"] is None  # chosen and rejected have no scores
    assert by_place["pairwise_accuracy"]["value"] < 0.6
    assert by_place["position_consistency"]["value"] == 0.0
    assert 0.6 < by_place["format"]["value"] < 1.0
    (row,) = metrics(tmp_path / "out")["differences"]
    assert row["pairwise_accuracy"]["low"] > 0.2
    manifest = read_artifact(tmp_path / "out", kind="genrm_evaluation")
    files = {f.path: f.rows for f in manifest.files}
    assert files["records/knows.jsonl"] == files["prompts.jsonl"] == 2 * knows_it["pairs"]
    assert manifest.counts.kept == knows_it["pairs"]
    assert not (tmp_path / "out/work").exists()
    assert "first → knows" in (tmp_path / "out/report.html").read_text()
    shown = [json.loads(line) for line in (tmp_path / "out/examples.jsonl").open()]
    kinds = {(e["checkpoint"], e["right"]) for e in shown}
    assert kinds == {("first", 0.0), ("first", 1.0), ("knows", 1.0)}


def test_an_interrupted_run_goes_on_where_it_was(run: tuple[Path, Judges], tmp_path: Path):
    recipe, whole = run

    class Fails(Scripted):
        async def sample(self, requests, *, progress=None):
            if len(self.calls) == 1:
                raise KeyboardInterrupt
            return await super().sample(requests, progress=progress)

    with pytest.raises(KeyboardInterrupt):
        evaluate(recipe, tmp_path, knows=Fails(knows))
    again = evaluate(recipe, tmp_path)
    assert [len(calls) for calls in again["first"].calls] == []
    made = [len(calls) for calls in whole["knows"].calls]
    assert [len(calls) for calls in again["knows"].calls] == made[1:]
    left, right = (folder / "metrics.json" for folder in (recipe / "out", tmp_path))
    assert left.read_bytes() == right.read_bytes()


def test_the_dry_run_has_a_time_for_each_judge(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    evaluate(recipe, tmp_path / "out", "--dry-run")
    shown = capsys.readouterr().out
    for name in ("first", "knows"):
        assert f"time of {name}: not measured: {recipe / name} is not in a directory" in shown


def test_what_cannot_be_evaluated(recipe: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="no backend"):
        evaluate(recipe, tmp_path, "backend=null")
    with pytest.raises(ConfigError, match="checkpoint name"):
        evaluate(recipe, tmp_path, 'checkpoints={"a/b": "x"}')
    build = recipe / "build.yaml"
    script("build_genrm").main(["--config", str(build), f"out={tmp_path}/none", "held_out=0"])
    with pytest.raises(DataError, match="held nothing out"):
        evaluate(recipe, tmp_path, f"data={tmp_path}/none")


# -- figures of judgements that are few enough to count by hand ------------------------------------


def judged(pair: str, *, swapped: bool, prefers: int | None, **keys: Any) -> Judged:
    """Response 1 is the better one, as it came."""
    wanted = 2 if swapped else 1
    right = 0.0 if prefers is None else {0: 0.5, wanted: 1.0}.get(prefers, 0.0)
    figures: dict[str, float | None] = {
        "pairwise_accuracy": keys.pop("right", right),
        "pairwise_accuracy_readable": None if prefers is None else right,
        "format": float(prefers is not None),
        "prefers_first": float(prefers == 1) if prefers else None,
        "prefers_neither": None if prefers is None else float(prefers == 0),
        "score_error": None if prefers is None else 1.0,
        "reward": keys.pop("reward", -1.0),
    }
    place = {"checkpoint": "a", "source": "s", "question": pair, "index": 0} | keys
    return Judged(pair=pair, swapped=swapped, prefers=prefers, figures=figures, **place)


def pairs(*both: tuple[int | None, int | None], **keys: Any) -> list[Judged]:
    """What is preferred in the given and in the other order, pair by pair."""
    return [
        judged(f"p{n}", swapped=swapped, prefers=prefers, **keys)
        for n, orders in enumerate(both)
        for swapped, prefers in zip((False, True), orders, strict=True)
    ]


def cell(found: list[Judged]) -> dict[str, Any]:
    (row,) = judge_cells(found)
    return row


def test_right_order_consistency_and_position_by_hand():
    # right twice; always the first; wrong twice; unreadable once
    row = cell(pairs((1, 2), (1, 1), (2, 1), (1, None)))
    assert (row["pairs"], row["judgements"]) == (4, 8)
    assert row["pairwise_accuracy"]["value"] == pytest.approx((2 + 1 + 0 + 1) / 8)
    # over pairs: 1, ½, 0 and, of the one verdict that can be read, 1
    assert row["pairwise_accuracy_readable"]["value"] == pytest.approx(2.5 / 4)
    assert row["right_in_both_orders"]["value"] == pytest.approx(1 / 4)
    assert row["position_consistency"]["value"] == pytest.approx(2 / 3)
    assert row["position_consistency"]["questions"] == 3
    assert row["format"]["value"] == pytest.approx(7 / 8)
    assert row["prefers_first"]["value"] == pytest.approx((0.5 + 1 + 0.5 + 1) / 4)
    assert row["score_error"]["value"] == 1.0


def test_a_judge_that_prefers_neither_is_consistent_and_half_right():
    row = cell(pairs((0, 0), (0, 0)))
    assert row["pairwise_accuracy"]["value"] == 0.5
    assert row["position_consistency"]["value"] == 1.0
    assert row["prefers_neither"]["value"] == 1.0
    assert row["prefers_first"] is None
    assert row["right_in_both_orders"]["value"] == 0.0
    # a gold without a winner has no right order
    row = cell(pairs((1, 2), right=None))
    assert (row["pairwise_accuracy"], row["right_in_both_orders"]) == (None, None)
    assert row["position_consistency"]["value"] == 1.0


def test_every_source_and_all_of_them():
    found = [*pairs((1, 2)), *pairs((2, 1), (2, 1), source="t")]
    rows = {row["source"]: row for row in judge_cells(found)}
    assert {name: row["pairwise_accuracy"]["value"] for name, row in rows.items()} == {
        "s": 1.0,
        "t": 0.0,
        # p0 of both sources would be one question: the names differ in real data
        "all": pytest.approx(1 / 4),
    }


def test_differences_are_against_the_first_judge_question_by_question():
    before = pairs(*[(1, 1)] * 30)
    after = pairs(*[(1, 2)] * 24, *[(1, 1)] * 6, checkpoint="b", reward=-0.5)
    (row,) = judge_differences([*before, *after])
    assert (row["a"], row["b"], row["source"]) == ("a", "b", "s")
    assert row["pairwise_accuracy"]["difference"] == pytest.approx(0.4)
    assert row["position_consistency"]["difference"] == pytest.approx(0.8)
    assert row["position_consistency"]["p"] < 1e-4
    assert row["reward"]["difference"] == pytest.approx(0.5)
    assert judge_differences(before) == []
