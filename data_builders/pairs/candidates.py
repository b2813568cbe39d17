"""The pairs one prompt can give, by category, and why its other completions give none.

    candidates_of(prompt, graded, recipe)  →  Candidates(pairs=(CandidatePair("no_tools", 3, 0), …),
                                                        unusable={"truncated": [7]}, …)

Where no tool is declared a completion with a call is never chosen, nor one that holds the markup of
a call without being one: what is chosen is learnt, and half a call is learnt as a way around the
penalty. In no_tools and with_tools the final answer alone decides; in hallucination_penalty any
call is rejected, whatever its answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from data_builders.keyed import key64
from data_builders.pairs.grading import Graded
from posttrain.config.build_dpo import BuildDpoConfig, PairingRule
from posttrain.records import Category
from posttrain.rollouts import Prompt


@dataclass(frozen=True, slots=True)
class CandidatePair:
    """A pair that could be made. `rank` is its place among those of its prompt and category.

    `distance`: share of tokens in which the two differ, see `encode.distance`; `rows`: of a file,
    that the pair was read from (0: it was sampled).
    """

    prompt: int
    key: int
    thinking: bool
    category: Category
    rank: int
    chosen: Graded
    rejected: Graded
    distance: float
    rows: int = 0


Compare = Callable[[Graded, Graded], float]


@dataclass(frozen=True, slots=True)
class Candidates:
    """What one prompt gives.

    `unusable` is index → reason, for completions in no candidate; `pairs_dropped` counts pairs by
    reason; `outcome` says per category what became of the prompt ("paired", "all_right", …).
    """

    pairs: tuple[CandidatePair, ...]
    unusable: dict[int, str]
    pairs_dropped: Counter[str]
    outcome: dict[Category, str]


def candidates_of(
    number: int,
    prompt: Prompt,
    completions: Sequence[Graded],
    recipe: BuildDpoConfig,
    compare: Compare,
) -> Candidates:
    """All candidate pairs of one prompt, in the order in which they should be taken.

    Args:
        number: the prompt's place in the samples.
        prompt, completions: a prompt and all its samples.
        recipe: which categories, how many pairs, by which rule.
        compare: the distance of two completions.
    """
    unusable: dict[int, str] = {}
    distinct = _usable(completions, recipe.max_length, unusable)
    pairs: list[CandidatePair] = []
    dropped: Counter[str] = Counter()
    outcome: dict[Category, str] = {}
    bare: set[Category] = {"no_tools", "hallucination_penalty"}
    possible: set[Category] = bare if prompt.tools is None else {"with_tools"}
    for category in sorted(possible & recipe.categories.keys()):
        chosen, rejected, why = _sides(category, prompt, distinct, recipe)
        outcome[category] = "paired" if chosen and rejected else why
        spread = _spread(prompt, category, chosen, rejected, recipe, compare, dropped)
        for rank, (better, worse, apart) in enumerate(spread):
            key = key64(recipe.seed, f"pair {category}", prompt.id, rank)
            pairs.append(
                CandidatePair(number, key, prompt.thinking, category, rank, better, worse, apart)
            )
    used = {side.index for pair in pairs for side in (pair.chosen, pair.rejected)}
    for completion in distinct:
        if completion.index not in used:
            unusable[completion.index] = _why_unused(completion, outcome)
    return Candidates(tuple(pairs), unusable, dropped, outcome)


def _usable(
    completions: Sequence[Graded], max_length: int | None, unusable: dict[int, str]
) -> list[Graded]:
    """Whole, short enough, and the first of equals: a copy counts the same evidence twice."""
    first: dict[str, Graded] = {}
    for completion in completions:
        if completion.finish == "failed":
            unusable[completion.index] = "failed"
        elif max_length is not None and completion.tokens > max_length:
            unusable[completion.index] = "overlong"
        elif completion.ids_key in first:
            unusable[completion.index] = "duplicate"
        else:
            first[completion.ids_key] = completion
    return list(first.values())


def _sides(
    category: Category, prompt: Prompt, completions: Sequence[Graded], recipe: BuildDpoConfig
) -> tuple[list[Graded], list[Graded], str]:
    """What may be chosen, what may be rejected, and the reason if either is empty."""
    whole = [c for c in completions if not c.truncated]
    right = [c for c in whole if c.score is not None and c.score >= recipe.right_at]
    wrong = [c for c in whole if c.score is not None and c.score < recipe.right_at]
    if category == "hallucination_penalty":
        calling = [c for c in completions if c.calls]
        free = [[c for c in side if not _calling(c)] for side in (right, wrong)]
        unscored = [c for c in whole if not _calling(c)] if prompt.grader is None else []
        better = free[0] or free[1] or unscored
        return better, calling, "no_calls" if not calling else "only_calls"
    if category == "no_tools":
        right = [c for c in right if not _calling(c)]
    why = "all_right" if right else "all_wrong" if wrong else "none_usable"
    return right, wrong, why


def _calling(completion: Graded) -> bool:
    return completion.calls > 0 or completion.call_markup


def _spread(
    prompt: Prompt,
    category: Category,
    chosen: Sequence[Graded],
    rejected: Sequence[Graded],
    recipe: BuildDpoConfig,
    compare: Compare,
    dropped: Counter[str],
) -> Iterator[tuple[Graded, Graded, float]]:
    """The first `pairs_per_prompt` pairs that differ in more than their formatting."""
    better = _shuffled(prompt, category, "chosen", chosen, recipe.seed)
    worse = _shuffled(prompt, category, "rejected", rejected, recipe.seed)
    taken = 0
    for i, j in pair_indices(len(better), len(worse), recipe.rule):
        if taken == recipe.pairs_per_prompt:
            return
        if better[i].text_key == worse[j].text_key:
            dropped["formatting_only"] += 1
            continue
        apart = compare(better[i], worse[j])
        if apart < recipe.minimum_distance:
            dropped["nearly_identical"] += 1
            continue
        taken += 1
        yield better[i], worse[j], apart


def _shuffled(
    prompt: Prompt, category: Category, side: str, completions: Sequence[Graded], seed: int
) -> list[Graded]:
    # by what a completion says: the order then depends on no numbering
    return sorted(
        completions,
        key=lambda c: (key64(seed, f"order {category} {side}", prompt.id, c.ids_key), c.index),
    )


def _why_unused(completion: Graded, outcome: dict[Category, str]) -> str:
    if completion.truncated:
        return "truncated"
    if completion.score is None:
        return "unscored"
    if completion.call_markup and not completion.calls and "with_tools" not in outcome:
        return "call_markup"
    if "paired" in outcome.values():
        return "not_needed"  # its side has enough others, or it differs in formatting only
    reasons = [why for category, why in outcome.items() if category != "hallucination_penalty"]
    return (reasons or list(outcome.values()) or ["category_not_built"])[0]


def pair_indices(right: int, wrong: int, rule: PairingRule) -> Iterator[tuple[int, int]]:
    """Distinct pairs (position among the right, position among the wrong), best spread first.

    Under `even` any beginning of the sequence uses each completion of a side k or k+1 times.
    """
    if not right or not wrong:
        return
    if rule == "once":
        yield from ((k, k) for k in range(min(right, wrong)))
        return
    # diagonals: a diagonal returns to its start after lcm steps, then the next one begins
    cycle = math.lcm(right, wrong)
    for k in range(right * wrong):
        yield k % right, (k + k // cycle) % wrong
