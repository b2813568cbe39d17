"""Shares, totals and length matching over all prompts."""

from __future__ import annotations

from collections import Counter

import pytest

from data_builders.pairs.candidates import CandidatePair, Selection, select
from data_builders.pairs.grading import Graded
from data_builders.pairs.stats import lengths, used_completions
from posttrain.errors import DataError


def side(index: int, length: int) -> Graded:
    return Graded(index, 1.0, 0, "stop", length, length, 0, 0, f"{index}", f"{index}")


def pair(prompt, category="no_tools", rank=0, thinking=True, longer=0) -> CandidatePair:
    key = (prompt * 7919 + rank) % 1009
    chosen, rejected = side(2 * rank, 20 + longer), side(2 * rank + 1, 20)
    return CandidatePair(prompt, key, thinking, category, rank, chosen, rejected, 0.5)


def some(category: str, prompts: int, ranks: int = 1, **more) -> list[CandidatePair]:
    return [pair(p, category, r, **more) for p in range(prompts) for r in range(ranks)]


def take(candidates, shares, **more) -> Selection:
    how = {"total": None, "thinking_on": None, "match_length": False} | more
    return select(candidates, shares=shares, **how)


def test_shares_hold_and_every_pair_is_counted():
    candidates = some("no_tools", 50) + some("with_tools", 50) + some("hallucination_penalty", 50)
    shares = {"no_tools": 0.25, "with_tools": 0.25, "hallucination_penalty": 0.5}
    found = take(candidates, shares, total=80)
    by_category = Counter(p.category for p in found.pairs)
    assert by_category == {"no_tools": 20, "with_tools": 20, "hallucination_penalty": 40}
    assert found.dropped == {"not_drawn": 70}
    assert found.limited_by is None


def test_a_short_category_shrinks_the_others_and_is_named():
    candidates = some("no_tools", 100) + some("hallucination_penalty", 10)
    for total in (200, None):
        found = take(candidates, {"no_tools": 2 / 3, "hallucination_penalty": 1 / 3}, total=total)
        by_category = Counter(p.category for p in found.pairs)
        assert by_category == {"no_tools": 20, "hallucination_penalty": 10}
        assert found.limited_by == "hallucination_penalty"


def test_reasoning_modes_keep_their_share_in_every_category():
    candidates = some("no_tools", 40) + some("no_tools", 40, thinking=False)
    found = take(candidates, {"no_tools": 1.0}, total=40, thinking_on=0.75)
    assert Counter(p.thinking for p in found.pairs) == {True: 30, False: 10}
    only = take(candidates, {"no_tools": 1.0}, total=40, thinking_on=1.0)
    assert {p.thinking for p in only.pairs} == {True}


def test_every_prompt_gives_its_first_pair_before_any_gives_its_second():
    found = take(some("no_tools", 20, ranks=5), {"no_tools": 1.0}, total=30)
    assert Counter(p.rank for p in found.pairs) == {0: 20, 1: 10}
    assert len(used_completions(found.pairs)) == 60


def test_a_category_without_pairs_is_an_error_that_names_it():
    with pytest.raises(DataError, match=r"no pairs of with_tools"):
        take(some("no_tools", 3), {"no_tools": 0.5, "with_tools": 0.5})
    with pytest.raises(DataError, match=r"no_tools \(reasoning off\)"):
        take(some("no_tools", 3), {"no_tools": 1.0}, thinking_on=0.5)


def test_length_matching_makes_both_directions_alike():
    candidates = [pair(k, longer=(k % 9) - 2) for k in range(400)]
    plain = lengths(take(candidates, {"no_tools": 1.0}).pairs)["all"]
    assert plain["chosen_mean"] - plain["rejected_mean"] > 1.9
    found = take(candidates, {"no_tools": 1.0}, match_length=True)
    matched = lengths(found.pairs)["all"]
    assert matched["chosen_longer"] == matched["rejected_longer"]
    assert abs(matched["chosen_mean"] - matched["rejected_mean"]) < 0.3
    assert found.dropped["length_unmatched"] == 400 - len(found.pairs)
