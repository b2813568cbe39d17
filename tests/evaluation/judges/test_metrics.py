"""Figures of judges on judgements that are few enough to count by hand."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.evaluation.judges.metrics import Judged, both_orders, judge_cells, judge_differences

FAIR = {"readable": True, "truncated": False, "reward": -1.0, "tokens": 10}


def judged(pair: str, *, swapped: bool, prefers: int | None, **keys: Any) -> Judged:
    """Response 1 is the better one, as it came."""
    wanted = 2 if swapped else 1
    given: dict[str, Any] = {
        "checkpoint": "a",
        "source": "s",
        "question": pair,
        "pair": pair,
        "index": 0,
        "swapped": swapped,
        "prefers": prefers,
        "wanted": wanted,
        "right": 0.0 if prefers is None else {0: 0.5, wanted: 1.0}.get(prefers, 0.0),
        "same_scores": None if prefers is None else prefers == 0,
        "score_error": None if prefers is None else 1.0,
        "ranking_error": None if prefers is None else 2.0,
        **FAIR,
        "readable": prefers is not None,
        **keys,
    }
    return Judged(**given)


def pairs(*both: tuple[int | None, int | None], **keys: Any) -> list[Judged]:
    """What is preferred in the given and in the other order, pair by pair."""
    return [
        judged(f"p{n}", swapped=swapped, prefers=prefers, **keys)
        for n, orders in enumerate(both)
        for swapped, prefers in zip((False, True), orders, strict=True)
    ]


def cell(found: list[Judged]) -> dict[str, Any]:
    (row,) = judge_cells(found, seed=0)
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


def test_a_judge_that_sees_the_position_alone_is_at_chance_and_never_consistent():
    row = cell(pairs(*[(1, 1)] * 40))
    assert row["pairwise_accuracy"]["value"] == 0.5
    assert row["position_consistency"]["value"] == 0.0
    assert row["prefers_first"]["value"] == 1.0
    assert row["position_consistency"]["high"] > 0


def test_a_judge_that_prefers_neither_is_consistent_and_half_right():
    row = cell(pairs((0, 0), (0, 0)))
    assert row["pairwise_accuracy"]["value"] == 0.5
    assert row["position_consistency"]["value"] == 1.0
    assert row["prefers_neither"]["value"] == 1.0
    assert row["prefers_first"] is None
    assert row["right_in_both_orders"]["value"] == 0.0


def test_a_gold_without_a_winner_has_no_right_order():
    row = cell(pairs((1, 2), wanted=0, right=None))
    assert row["pairwise_accuracy"] is None
    assert row["right_in_both_orders"] is None
    assert row["position_consistency"]["value"] == 1.0


def test_pairs_of_one_question_count_as_one():
    alone = cell(pairs(*[(1, 2)] * 30, *[(2, 1)] * 10))["pairwise_accuracy"]
    same = cell(pairs(*[(1, 2)] * 30, *[(2, 1)] * 10, question="one"))["pairwise_accuracy"]
    assert (alone["questions"], same["questions"]) == (40, 1)
    assert same["high"] - same["low"] > 2 * (alone["high"] - alone["low"])


def test_samples_stand_beside_those_of_the_same_index():
    found = [
        judged("p", swapped=swapped, prefers=prefers, index=index)
        for index, orders in enumerate([(1, 2), (2, 1)])
        for swapped, prefers in zip((False, True), orders, strict=True)
    ]
    assert [(a.index, b.index, b.swapped) for a, b in both_orders(found[::-1])] == [
        (1, 1, True),
        (0, 0, True),
    ]
    assert cell(found)["position_consistency"]["value"] == 1.0


def test_every_source_and_all_of_them():
    found = [*pairs((1, 2)), *pairs((2, 1), (2, 1), source="t")]
    rows = {row["source"]: row for row in judge_cells(found, seed=0)}
    assert {name: row["pairwise_accuracy"]["value"] for name, row in rows.items()} == {
        "s": 1.0,
        "t": 0.0,
        # p0 of both sources would be one question: the names differ in real data
        "all": pytest.approx(1 / 4),
    }


def test_differences_are_against_the_first_judge_question_by_question():
    before = pairs(*[(1, 1)] * 30)
    after = pairs(*[(1, 2)] * 24, *[(1, 1)] * 6, checkpoint="b", reward=-0.5)
    (row,) = judge_differences([*before, *after], seed=0)
    assert (row["a"], row["b"], row["source"]) == ("a", "b", "s")
    assert row["pairwise_accuracy"]["difference"] == pytest.approx(0.4)
    assert row["position_consistency"]["difference"] == pytest.approx(0.8)
    assert row["position_consistency"]["p"] < 1e-4
    assert row["reward"]["difference"] == pytest.approx(0.5)
    assert judge_differences(before, seed=0) == []
