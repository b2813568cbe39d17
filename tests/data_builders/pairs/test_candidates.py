"""Who may be chosen, who is rejected, why the others are in no pair, and which pairs are taken."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_builders.pairs.candidates import (
    CandidatePair,
    Candidates,
    Selection,
    pair_indices,
    propose_pairs,
    select_pairs,
)
from data_builders.pairs.grading import GradedCompletion
from data_builders.pairs.stats import lengths, used_completions
from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.errors import DataError
from posttrain.records import Message
from posttrain.rollouts import Finish, Prompt

ALL = frozenset({"no_tools", "with_tools", "hallucination_penalty"})


def one(
    index: int, score: float | None, calls: int = 0, finish: Finish = "stop", **more
) -> GradedCompletion:
    fields = {"length": 5, "tokens": 9, "reasoning_tokens": 2, "answer_tokens": 2}
    keys = {"ids_key": f"ids{index}", "text_key": f"text{index}"}
    return GradedCompletion(
        index=index, score=score, calls=calls, finish=finish, **fields | keys | more
    )


def asked(tools: str | None = None, grader: str | None = "math") -> Prompt:
    return Prompt("t/s/on", "t", "s", (Message("user", "7*8?"),), tools=tools, grader=grader)


def recipe_of(categories: frozenset[str] = ALL, **more) -> BuildDpoConfig:
    shares = dict.fromkeys(categories, 1 / len(categories))
    return BuildDpoConfig(out="", samples=("samples",), categories=shares, **more)


def propose(completions, prompt=None, **more) -> Candidates:
    return propose_pairs(0, prompt or asked(), completions, recipe_of(**more), lambda a, b: 1.0)


def made(found: Candidates, category: str) -> set[tuple[int, int]]:
    return {(p.chosen.index, p.rejected.index) for p in found.pairs if p.category == category}


def test_no_tools_pairs_right_with_wrong_and_calls_are_only_ever_rejected():
    found = propose([one(0, 1.0), one(1, 0.0), one(2, 1.0, calls=1), one(3, 0.0, calls=1)])
    assert made(found, "no_tools") == {(0, 1), (0, 3)}
    assert made(found, "hallucination_penalty") == {(0, 2), (0, 3)}
    # each category of a prompt counts its own pairs
    assert sorted((pair.category, pair.rank) for pair in found.pairs) == [
        ("hallucination_penalty", 0), ("hallucination_penalty", 1), ("no_tools", 0), ("no_tools", 1),
    ]  # fmt: skip
    assert found.unusable == {}


def test_a_prompt_whose_call_free_samples_are_all_wrong_still_yields_a_penalty_pair():
    found = propose([one(0, 0.0), one(1, 0.0, calls=1), one(2, 1.0, calls=2)])
    assert made(found, "no_tools") == set()
    assert found.outcome["no_tools"] == "all_wrong"
    assert made(found, "hallucination_penalty") == {(0, 1), (0, 2)}


def test_with_tools_calls_are_ordinary_and_the_answer_decides():
    completions = [one(0, 1.0, calls=1), one(1, 0.0), one(2, 1.0)]
    found = propose(completions, asked(tools="[]"))
    assert made(found, "with_tools") == {(0, 1), (2, 1)}
    assert {p.category for p in found.pairs} == {"with_tools"}


@pytest.mark.parametrize(
    ("completion", "reason"),
    [(one(2, 0.0, finish="length"), "truncated"), (one(2, 0.0, finish="turn_limit"), "truncated"),
     (one(2, None), "unscored"), (one(2, None, finish="failed"), "failed"),
     (one(2, 1.0, ids_key="ids0"), "duplicate"), (one(2, 0.0, tokens=90), "overlong")],
)  # fmt: skip
def test_every_completion_left_out_has_its_reason(completion: GradedCompletion, reason: str):
    found = propose([one(0, 1.0), one(1, 0.0), completion], max_length=50)
    assert found.unusable == {2: reason}
    assert 2 not in {i for pair in made(found, "no_tools") for i in pair}


def test_prompts_without_contrast_say_which_side_is_missing():
    assert set(propose([one(0, 1.0), one(1, 1.0)]).unusable.values()) == {"all_right"}
    assert set(propose([one(0, 0.0), one(1, 0.0)]).unusable.values()) == {"all_wrong"}
    assert propose([one(0, 1.0)]).outcome["hallucination_penalty"] == "no_calls"
    assert propose([one(0, 0.0, calls=1)]).outcome["hallucination_penalty"] == "only_calls"


def test_half_a_call_is_never_chosen_where_no_tool_is_declared():
    half = one(0, 1.0, call_markup=True)
    found = propose([half, one(1, 0.0), one(2, 0.0, calls=1, call_markup=True)])
    assert made(found, "hallucination_penalty") == {(1, 2)}
    assert made(found, "no_tools") == set()
    assert found.unusable == {0: "call_markup"}
    # with tools declared, markup is what calls are made of
    tools = asked(tools="[]")
    assert made(propose([half, one(1, 0.0)], tools), "with_tools") == {(0, 1)}


def test_a_truncated_call_is_rejected_and_a_truncated_answer_is_never_chosen():
    found = propose([one(0, 0.0, finish="length"), one(1, 0.0), one(2, 0.0, 1, finish="length")])
    assert made(found, "hallucination_penalty") == {(1, 2)}


def test_an_ungraded_prompt_is_paired_by_its_calls_alone():
    completions = [one(0, None), one(1, None, calls=1)]
    assert made(propose(completions, asked(grader=None)), "hallucination_penalty") == {(0, 1)}
    # but a graded prompt's unscored completion is not known to be any good
    assert made(propose(completions), "hallucination_penalty") == set()


def test_a_difference_in_formatting_or_in_almost_nothing_is_no_preference():
    same = [one(0, 1.0, text_key="x"), one(1, 0.0, text_key="x"), one(2, 0.0)]
    found = propose(same)
    assert made(found, "no_tools") == {(0, 2)}
    assert found.pairs_dropped == Counter(formatting_only=1)
    recipe = recipe_of(minimum_distance=0.2)
    near = propose_pairs(0, asked(), same[::2], recipe, lambda a, b: 0.1)
    assert near.pairs == ()
    assert near.pairs_dropped == Counter(nearly_identical=1)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_category_of_a_prompt_has_at_most_its_pairs(limit: int):
    completions = [one(k, float(k % 2)) for k in range(8)]
    found = propose(completions, pairs_per_prompt=limit)
    assert len(made(found, "no_tools")) == limit


def test_who_meets_whom_is_the_same_in_every_release():
    """A data set that is built again with another one has the same pairs."""
    completions = [one(k, float(k % 2)) for k in range(8)]
    found = propose(completions, pairs_per_prompt=3)
    met = [(p.chosen.index, p.rejected.index) for p in found.pairs if p.category == "no_tools"]
    assert met == [(3, 2), (1, 4), (7, 6)]


def test_candidates_do_not_depend_on_the_numbering_of_samples():
    completions = [one(k, float(k % 2), calls=k % 3 == 0) for k in range(12)]
    renumbered = [
        one(11 - c.index, c.score, c.calls, ids_key=c.ids_key, text_key=c.text_key)
        for c in reversed(completions)
    ]
    keys = [
        [(p.category, p.chosen.ids_key, p.rejected.ids_key) for p in propose(some).pairs]
        for some in (completions, renumbered)
    ]
    assert keys[0] == keys[1]


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 81))
def test_even_pairs_are_distinct_and_use_each_completion_evenly(right: int, wrong: int, n: int):
    every = list(pair_indices(right, wrong))
    assert sorted(every) == [(i, j) for i in range(right) for j in range(wrong)]
    begun = list(islice(pair_indices(right, wrong), n))
    for side in (0, 1):
        uses = Counter(pair[side] for pair in begun)
        counts = [uses[k] for k in range((right, wrong)[side])]
        if begun:
            assert max(counts) - min(counts) <= 1


# -- shares and totals over all prompts


def pair(prompt, category="no_tools", rank=0, thinking=True, longer=0) -> CandidatePair:
    key = (prompt * 7919 + rank) % 1009
    chosen, rejected = one(2 * rank, 1.0, length=20 + longer), one(2 * rank + 1, 1.0, length=20)
    return CandidatePair(prompt, key, thinking, category, rank, chosen, rejected, 0.5)


def some(category: str, prompts: int, ranks: int = 1, **more) -> list[CandidatePair]:
    return [pair(p, category, r, **more) for p in range(prompts) for r in range(ranks)]


def take(candidates, shares, **more) -> Selection:
    recipe = BuildDpoConfig(out="", samples=("samples",), categories=shares, **more)
    return select_pairs(candidates, recipe)


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


def test_every_prompt_gives_its_first_pair_before_any_gives_its_second():
    found = take(some("no_tools", 20, ranks=5), {"no_tools": 1.0}, total=30)
    assert Counter(p.rank for p in found.pairs) == {0: 20, 1: 10}
    assert len(used_completions(found.pairs)) == 60


def test_a_category_without_pairs_is_an_error_that_names_it():
    with pytest.raises(DataError, match=r"no pairs of with_tools"):
        take(some("no_tools", 3), {"no_tools": 0.5, "with_tools": 0.5})


def test_lengths_are_counted_in_both_directions_and_drop_no_pair():
    candidates = [pair(k, longer=(k % 9) - 2) for k in range(405)]
    taken = take(candidates, {"no_tools": 1.0})
    assert len(taken.pairs) == 405
    figures = lengths(taken.pairs)["all"]
    assert figures["chosen_mean"] - figures["rejected_mean"] == pytest.approx(2.0)
    assert figures["chosen_longer"] == pytest.approx(6 / 9, abs=1e-4)
    assert figures["rejected_longer"] == pytest.approx(2 / 9, abs=1e-4)
