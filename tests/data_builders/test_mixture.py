"""The mixture: amounts met or refused, epochs, sub-sampling, and no dependence on order."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from data_builders.keyed import key64
from data_builders.mixture import Stock, plan_mixture
from posttrain.config.build_sft import BuildSftConfig
from posttrain.config.load import validate
from posttrain.errors import ConfigError, DataError


def recipe(sources: list[dict], **mixture) -> BuildSftConfig:
    raw = {
        "out": "out",
        "tokenizer": {"path": "tok"},
        "packing": {"capacity": 64},
        "mixture": mixture,
        "sources": [{"path": "x.jsonl", **source} for source in sources],
    }
    return validate(raw, BuildSftConfig, where="test")


def stock(name: str, rows: int, *, tokens: int = 10, prefix: str = "") -> Stock:
    keys = np.array([key64(0, "row", f"{prefix or name}{i}") for i in range(rows)], np.uint64)
    lengths = np.full(rows, tokens, np.int64)
    return Stock(name, keys, lengths, lengths // 2)


def test_shares_are_met_by_repeating_the_small_and_sampling_the_large():
    config = recipe(
        [{"name": "small", "share": 0.5}, {"name": "large", "share": 0.5}], total=20_000
    )
    small, large = plan_mixture([stock("small", 400), stock("large", 5000)], config)
    assert small.realised("tokens") == large.realised("tokens") == 10_000
    seen = Counter(small.records.tolist())
    assert set(seen.values()) == {2, 3}
    assert Counter(small.epochs.tolist()) == {0: 400, 1: 400, 2: 200}
    assert large.distinct == len(large.records) == 1000, "without replacement"
    assert small.trained == 5000


def test_every_epoch_has_an_order_of_its_own():
    [plan] = plan_mixture([stock("a", 50)], recipe([{"name": "a", "rows": 150}]))
    orders = [tuple(plan.records[plan.epochs == e]) for e in range(3)]
    assert len(set(orders)) == 3
    assert all(sorted(order) == list(range(50)) for order in orders)


def test_the_plan_does_not_depend_on_input_order():
    config = recipe([{"name": "a", "rows": 130}], tolerance=0.1)
    given = stock("a", 100)
    [plan] = plan_mixture([given], config)
    order = np.random.default_rng(0).permutation(100)
    shuffled = Stock("a", given.keys[order], given.tokens[order], given.trained[order])
    [again] = plan_mixture([shuffled], config)
    assert given.keys[plan.records].tolist() == shuffled.keys[again.records].tolist()


def test_without_a_total_the_first_source_to_reach_its_cap_decides():
    config = recipe(
        [{"name": "a", "share": 0.25, "max_epochs": 2}, {"name": "b", "share": 0.75}],
        max_epochs=4,
        unit="rows",
    )
    a, b = plan_mixture([stock("a", 100), stock("b", 1000)], config)
    assert a.realised("rows") == 200  # its cap: a total of 800
    assert b.realised("rows") == 600


def test_without_amounts_every_record_is_taken_once():
    plans = plan_mixture([stock("a", 7), stock("b", 11)], recipe([{"name": "a"}, {"name": "b"}]))
    assert [sorted(p.records.tolist()) for p in plans] == [list(range(7)), list(range(11))]
    assert all((p.epochs == 0).all() for p in plans)


def test_amounts_in_rows_and_tokens_come_beside_shares():
    config = recipe(
        [{"name": "a", "share": 1.0}, {"name": "b", "rows": 30}, {"name": "c", "tokens": 500}],
        total=1000,
    )
    a, b, c = plan_mixture([stock("a", 100), stock("b", 20), stock("c", 200)], config)
    assert (a.realised("tokens"), b.realised("rows"), c.realised("tokens")) == (1000, 30, 500)


def test_tokens_stop_at_the_nearest_record():
    lengths = np.array([7] * 40, np.int64)
    uneven = Stock("a", stock("a", 40).keys, lengths, lengths)
    [plan] = plan_mixture([uneven], recipe([{"name": "a", "tokens": 101}], tolerance=0.05))
    assert plan.realised("tokens") == 98  # 14 records; 15 would be 105


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
    ],
)
def test_an_amount_that_cannot_be_met_is_refused_with_what_to_change(sources, mixture, pattern):
    with pytest.raises(DataError, match=pattern):
        plan_mixture([stock("a", 100)], recipe(sources, **mixture))


def test_a_sharing_source_with_nothing_to_give_is_named():
    config = recipe([{"name": "a", "share": 0.5}, {"name": "b", "share": 0.5}])
    with pytest.raises(DataError, match=r"'b' has share 0\.5 and nothing to give"):
        plan_mixture([stock("a", 10), stock("b", 0)], config)


@pytest.mark.parametrize(
    ("sources", "mixture", "pattern"),
    [
        ([{"name": "a", "share": 0.5}, {"name": "b", "share": 0.4}], {}, "sum to 0.9"),
        ([{"name": "a", "share": 1.0}, {"name": "b"}], {}, "without share, rows or tokens: b"),
        ([{"name": "a", "rows": 1, "tokens": 1}], {}, "gives rows and tokens"),
        ([{"name": "a"}, {"name": "a"}], {}, "found twice: a"),
        ([{"name": "a/b"}], {}, "source name 'a/b'"),
        ([{"name": "a", "rows": 1}], {"total": 10}, "no source has a share"),
    ],
)
def test_impossible_mixtures_are_config_errors(sources, mixture, pattern):
    with pytest.raises(ConfigError, match=pattern):
        recipe(sources, **mixture)
