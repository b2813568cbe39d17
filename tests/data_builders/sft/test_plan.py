"""The mixture: amounts met or refused, epochs, sub-sampling, and no dependence on order."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from data_builders.keyed import key64
from data_builders.sft.plan import (
    Available,
    Total,
    epochs_question,
    plan_mixture,
    total_of,
)
from data_builders.sft.prepared import RECORD
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.load import validate
from posttrain.errors import ConfigError, DataError


def recipe(sources: list[dict], **mixture) -> BuildSftConfig:
    raw = {
        "out": "out",
        "tokenizer": {"path": "tok"},
        "packing": {"max_length": 64},
        "mixture": mixture,
        "sources": [{"path": "x.jsonl", **source} for source in sources],
    }
    return validate(raw, BuildSftConfig, where="test")


def records(name: str, rows: int, *, tokens: int = 10) -> np.ndarray:
    found = np.zeros(rows, RECORD)
    found["row64"] = [key64(0, "row", f"{name}{i}") for i in range(rows)]
    found["tokens"], found["trained"], found["sequences"] = tokens, tokens // 2, 1
    return found


def available(name: str, rows: int | np.ndarray, *, tokens: int = 10) -> Available:
    found = records(name, rows, tokens=tokens) if isinstance(rows, int) else rows
    return Available(name, lambda: found, total_of(found))


def test_shares_are_met_by_repeating_the_small_and_sampling_the_large():
    config = recipe(
        [{"name": "small", "share": 0.5}, {"name": "large", "share": 0.5}], total=20_000
    )
    small, large = plan_mixture([available("small", 400), available("large", 5000)], config)
    assert small.total.tokens == large.total.tokens == 10_000
    assert Counter(small.times().tolist()) == {2: 200, 3: 200}
    assert Counter(large.times().tolist()) == {0: 4000, 1: 1000}, "without replacement"
    assert large.distinct == large.total.rows == 1000
    assert (small.distinct, small.total.rows, small.total.trained) == (400, 1000, 5000)


def test_every_last_epoch_is_another_choice_whatever_the_order_of_rows():
    chosen = set[tuple]()
    for rows in (25, 75, 125):
        [plan] = plan_mixture([available("a", 50)], recipe([{"name": "a", "rows": rows}]))
        chosen.add(tuple(plan.times() > plan.times().min()))
    assert len(chosen) == 3
    config = recipe([{"name": "a", "rows": 130}], tolerance=0.1)
    given = records("a", 100)
    [plan] = plan_mixture([available("a", given)], config)
    order = np.random.default_rng(0).permutation(100)
    [again] = plan_mixture([available("a", given[order])], config)
    assert plan.times()[order].tolist() == again.times().tolist()


def test_copies_of_a_row_count_as_rows():
    """Their keys are equal: where the amount ends among them, so many of them are taken."""
    given = records("a", 10)
    given = np.concatenate([given] * 30)
    for rows in (7, 100, 299):
        [plan] = plan_mixture([available("a", given)], recipe([{"name": "a", "rows": rows}]))
        assert plan.times().sum() == plan.total.rows == rows
        assert plan.total.tokens == 10 * rows


@pytest.mark.parametrize(
    ("sources", "mixture", "rows"),
    [
        # its cap of 200 rows makes a total of 800
        ({"a": {"share": 0.25, "max_epochs": 2}, "b": {"share": 0.75}}, {"max_epochs": 4, "unit": "rows"},
         {"a": 200, "b": 600}),
        ({"a": {}, "b": {}}, {}, {"a": 100, "b": 1000}),
        ({"a": {"share": 1.0}, "b": {"rows": 30}, "c": {"tokens": 500}}, {"total": 1000},
         {"a": 100, "b": 30, "c": 50}),
        ({"c": {"tokens": 101}}, {"tolerance": 0.2}, {"c": 10}),  # the nearest record
    ],
)  # fmt: skip
def test_amounts_in_every_unit(sources, mixture, rows):
    sizes = {"a": 100, "b": 1000, "c": 200}
    config = recipe([{"name": name, **own} for name, own in sources.items()], **mixture)
    plans = plan_mixture([available(name, sizes[name]) for name in sources], config)
    assert {plan.name: plan.total.rows for plan in plans} == rows
    assert all(plan.times().sum() == plan.total.rows for plan in plans)


@pytest.mark.parametrize(
    ("sources", "mixture", "pattern"),
    [
        ([{"name": "a", "rows": 1000}], {}, r"'a': 1,000 rows requested, 400 realised.*max_epochs"),
        (
            [{"name": "a", "share": 1.0}],
            {"total": 10_000},
            r"Raise its max_epochs to 10.00, lower its share, or set mixture.total to at most 4,000",
        ),
        ([{"name": "a", "tokens": 25}], {}, r"too large for the amount.*tolerance or the amount"),
        (
            [{"name": "a", "share": 0.5}, {"name": "none", "share": 0.5}],
            {},
            r"'none' has share 0\.5 and nothing to give",
        ),
    ],
)
def test_an_amount_that_cannot_be_met_is_refused_with_what_to_change(sources, mixture, pattern):
    with pytest.raises(DataError, match=pattern):
        plan_mixture(
            [available(own["name"], 100 if own["name"] == "a" else 0) for own in sources],
            recipe(sources, **mixture),
        )


@pytest.mark.parametrize(
    ("sources", "mixture", "pattern"),
    [
        ([{"name": "a", "share": 0.5}, {"name": "b", "share": 0.4}], {}, "sum to 0.9"),
        ([{"name": "a", "share": 1.0}, {"name": "b"}], {}, "without share, rows or tokens: b"),
        ([{"name": "a", "rows": 1, "tokens": 1}], {}, "gives rows and tokens"),
        ([{"name": "a"}, {"name": "a"}], {}, "found twice: a"),
        ([{"name": "a/b"}], {}, "'a/b' is no name"),
        ([{"name": "a", "rows": 1}], {"total": 10}, "no source has a share"),
    ],
)
def test_impossible_mixtures_are_config_errors(sources, mixture, pattern):
    with pytest.raises(ConfigError, match=pattern):
        recipe(sources, **mixture)


def test_shares_without_a_total_ask_how_often_a_record_may_be_seen():
    sources = [{"name": "few", "share": 0.5}, {"name": "many", "share": 0.5}]
    counted = [Available("few", None, Total(4, 100)), Available("many", None, Total(40, 1000))]
    asked = epochs_question(counted, recipe(sources))
    assert "max_epochs=1 takes 200 tokens: few 1.0 times, many 0.1 times" in asked
    assert "max_epochs=4 takes 800 tokens: few 4.0 times, many 0.4 times" in asked
    assert epochs_question(counted, recipe(sources, max_epochs=2)) is None
    assert epochs_question(counted, recipe(sources, total=400)) is None
    natural = [{"name": "few", "share": 1 / 11}, {"name": "many", "share": 10 / 11}]
    assert epochs_question(counted, recipe(natural)) is None
    assert [plan.epochs for plan in plan_mixture(counted, recipe(natural))] == [1, 1]
