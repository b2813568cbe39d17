"""Whatever stands in a row, it becomes a pair or a drop with a name, and never an exception."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from data_builders.dialects import RowProblem
from data_builders.judging.build import refuse
from data_builders.judging.dialects import read_pair
from data_builders.judging.pair import PreferencePair
from posttrain.config.build_genrm import PreferenceSource
from posttrain.config.load import validate
from reward.judge.verdict import HIGHEST_RANKING, LOWEST_RANKING
from tests.data_builders.judging.small import ROWS

JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 7, 1e308, float("nan"), float("inf"), "", " ", "[", "[]", '["a"]', "\ud800",
    [], [[]], [None], {}, {"role": "user"}, {"role": "assistant", "content": "x"}, b"x", [1, "a"],
    [{"role": "user", "content": "x"}], "model_a", "<think>", 10**400,
)  # fmt: skip


def mutated(row: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """One to three values anywhere in the row replaced, removed or doubled."""
    row = copy.deepcopy(row)
    for _ in range(rng.randint(1, 3)):
        node: Any = row
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.6:
                node = node[key]
                continue
            if rng.random() < 0.2:
                del node[key]
            else:
                node[key] = copy.deepcopy(rng.choice(JUNK))
            break
    return row


@pytest.mark.parametrize("dialect", ROWS)
@pytest.mark.parametrize("named", [False, True])
def test_mutated_rows(dialect: str, named: bool):
    rng = random.Random(f"{dialect} {named}")
    raw = {"name": "s", "path": "s.jsonl", "dialect": dialect if named else None, "ties": "middle"}
    source = validate(raw, PreferenceSource, where="source")
    kept, reasons = 0, set[str]()
    for _ in range(600):
        row = mutated(ROWS[dialect], rng)
        try:
            _, pair = read_pair(row, source)
            refuse(pair)
        except RowProblem as problem:
            reasons.add(problem.reason)
            continue
        kept += 1
        check(pair)
    assert 0 < kept < 600
    assert all(reason.isidentifier() for reason in reasons)


def check(pair: PreferencePair) -> None:
    """What every pair holds."""
    assert pair.response_1.strip() != pair.response_2.strip()
    assert LOWEST_RANKING <= pair.gold.ranking <= HIGHEST_RANKING
    assert (pair.gold.score_1 is None) == (pair.gold.score_2 is None)
    assert pair.swapped().swapped() == pair
    assert pair.key == pair.swapped().key
    assert pair.frame is not None or pair.history[-1].role in ("user", "tool")
