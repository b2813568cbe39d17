"""Originals and variants are paired by question; what has one arm alone is left out."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from posttrain.evaluation.variants import variant_rows
from posttrain.pages.evaluation import variants
from posttrain.records import Message, Score
from posttrain.rollouts import Prompt


def record(question: str, arm: str, value: float | None, checkpoint: str = "sft"):
    metadata = json.dumps({"variant_of": question, "arm": arm} if arm else {})
    prompt = Prompt(f"{question}/{arm}", question, "plain", (Message("user", "?"),), thinking=False)
    prompt = replace(prompt, metadata=metadata)
    return SimpleNamespace(checkpoint=checkpoint, prompt=prompt, score=Score(value, None, ""))


def test_the_drop_is_paired_by_question():
    records = [record(f"q{k}", "original", 1.0) for k in range(10)]
    records += [record(f"q{k}", "variant", float(k < 6)) for k in range(10)]
    records += [record("q0", "variant", 0.0), record("alone", "original", 0.0)]
    records += [record("q1", "variant", None), record("other", "", 1.0)]
    [row] = variant_rows(records)  # pyright: ignore[reportArgumentType] - what is read of a record
    assert row["questions"] == 10
    assert row["original"] == 1.0
    assert row["variant"] == pytest.approx(0.55)  # of q0, one of two variants
    assert row["drop"]["value"] == pytest.approx(0.45)
    assert 0.0 < row["drop"]["low"] < 0.45 < row["drop"]["high"]
    assert "+45.0" in str(variants([row]))


def test_tasks_of_other_kinds_have_no_variants():
    assert variant_rows([record("q", "", 1.0), record("p", "", 0.0)]) == []  # pyright: ignore[reportArgumentType]
