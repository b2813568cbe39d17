"""Candidate pairs of each prompt, and the choice among them that makes the data set.

Where no tool is declared, a completion with a call or with half a call is never chosen, because the
model learns what is chosen. In no_tools and with_tools the final answer alone decides; in
hallucination_penalty a completion with a call is rejected, whatever its answer. The first pair of
every prompt is taken before the second pair of any, in the order of a keyed hash.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from data_builders.keyed import key64
from data_builders.pairs.grading import GradedCompletion
from posttrain.config.build_dpo import BuildDpoConfig
from posttrain.errors import DataError
from posttrain.records import Category
from posttrain.rollouts import Prompt


@dataclass(frozen=True, slots=True)
class CandidatePair:
    """Two completions of one prompt that can become a pair.

    Attributes:
        prompt: number of the prompt, in reading order.
        key: keyed hash, the order among pairs of equal rank.
        rank: position among the pairs of the prompt in this category, from 0.
        distance: share of tokens in which the two differ, see `encode.distance`.
        rows: rows of a file that the pair was read from; 0 where it was sampled.
    """

    prompt: int
    key: int
    thinking: bool
    category: Category
    rank: int
    chosen: GradedCompletion
    rejected: GradedCompletion
    distance: float
    rows: int = 0


# Distance of two completions, None where their prompts were rendered differently.
Compare = Callable[[GradedCompletion, GradedCompletion], float | None]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidate pairs of one prompt, and the reasons of everything that gave none.

    Attributes:
        pairs: by category, then by rank.
        unusable: index → reason, for the completions in no pair.
        pairs_dropped: reason → number of pairs.
        outcome: category → "paired", or why it has no pair ("all_right", "no_calls", …).
    """

    pairs: tuple[CandidatePair, ...]
    unusable: dict[int, str]
    pairs_dropped: Counter[str]
    outcome: dict[Category, str]


def propose_pairs(
    number: int,
    prompt: Prompt,
    completions: Sequence[GradedCompletion],
    recipe: BuildDpoConfig,
    compare: Compare,
) -> Candidates:
    """Candidate pairs of the `number`-th prompt in the categories that it can have, by rank."""
    distinct, unusable = _split_usable(completions, recipe.max_length)
    pairs: list[CandidatePair] = []
    pairs_dropped: Counter[str] = Counter()
    outcome: dict[Category, str] = {}
    possible: set[Category] = {"no_tools", "hallucination_penalty"}
    if prompt.tools is not None:
        possible = {"with_tools"}
    for category in sorted(possible & recipe.categories.keys()):
        chosen, rejected, reason = _sides(category, prompt, distinct, recipe)
        outcome[category] = "paired" if chosen and rejected else reason
        spread = _spread_pairs(prompt, category, chosen, rejected, recipe, compare, pairs_dropped)
        for rank, (better, worse, difference) in enumerate(spread):
            pairs.append(
                CandidatePair(
                    prompt=number,
                    key=key64(recipe.seed, f"pair {category}", prompt.id, rank),
                    thinking=prompt.thinking,
                    category=category,
                    rank=rank,
                    chosen=better,
                    rejected=worse,
                    distance=difference,
                )
            )
    paired = {side.index for pair in pairs for side in (pair.chosen, pair.rejected)}
    for completion in distinct:
        if completion.index not in paired:
            unusable[completion.index] = _unpaired_reason(completion, outcome)
    return Candidates(tuple(pairs), unusable, pairs_dropped, outcome)


def _split_usable(
    completions: Sequence[GradedCompletion], max_length: int | None
) -> tuple[list[GradedCompletion], dict[int, str]]:
    """Distinct completions, neither failed nor too long, and index → drop reason of the others."""
    unusable: dict[int, str] = {}
    first_by_ids: dict[str, GradedCompletion] = {}
    for completion in completions:
        if completion.finish == "failed":
            unusable[completion.index] = "failed"
        elif max_length is not None and completion.tokens > max_length:
            unusable[completion.index] = "overlong"
        elif completion.ids_key in first_by_ids:
            # a copy would count the same evidence twice
            unusable[completion.index] = "duplicate"
        else:
            first_by_ids[completion.ids_key] = completion
    return list(first_by_ids.values()), unusable


def _sides(
    category: Category,
    prompt: Prompt,
    completions: Sequence[GradedCompletion],
    recipe: BuildDpoConfig,
) -> tuple[list[GradedCompletion], list[GradedCompletion], str]:
    """Completions to choose from and to reject, and a reason, which holds if either is empty."""
    whole = [completion for completion in completions if not completion.truncated]
    scored = [completion for completion in whole if completion.score is not None]
    right = [c for c in scored if c.score is not None and c.score >= recipe.right_at]
    wrong = [c for c in scored if c.score is not None and c.score < recipe.right_at]
    if category == "hallucination_penalty":
        # truncated ones too: their call is the fault, and it was made
        calling = [completion for completion in completions if completion.calls]
        better = _without_calls(right) or _without_calls(wrong)
        if not better and prompt.grader is None:
            better = _without_calls(whole)
        return better, calling, "only_calls" if calling else "no_calls"
    if category == "no_tools":
        right = _without_calls(right)
    if right:
        reason = "all_right"
    elif wrong:
        reason = "all_wrong"
    else:
        reason = "none_usable"
    return right, wrong, reason


def _without_calls(completions: Sequence[GradedCompletion]) -> list[GradedCompletion]:
    """Completions with neither a tool call nor the markup of one."""
    return [c for c in completions if c.calls == 0 and not c.call_markup]


def _spread_pairs(
    prompt: Prompt,
    category: Category,
    chosen: Sequence[GradedCompletion],
    rejected: Sequence[GradedCompletion],
    recipe: BuildDpoConfig,
    compare: Compare,
    pairs_dropped: Counter[str],
) -> Iterator[tuple[GradedCompletion, GradedCompletion, float]]:
    """First `pairs_per_prompt` pairs that differ in more than their formatting, with distances."""

    def shuffled(side: str, completions: Sequence[GradedCompletion]) -> list[GradedCompletion]:
        # the key is made from the completion's ids: the order then depends on no numbering
        label = f"order {category} {side}"
        return sorted(
            completions, key=lambda c: (key64(recipe.seed, label, prompt.id, c.ids_key), c.index)
        )

    better = shuffled("chosen", chosen)
    worse = shuffled("rejected", rejected)
    n_pairs = 0
    for i, j in pair_indices(len(better), len(worse)):
        if n_pairs == recipe.pairs_per_prompt:
            return
        if better[i].text_key == worse[j].text_key:
            pairs_dropped["formatting_only"] += 1
            continue
        difference = compare(better[i], worse[j])
        if difference is None:
            pairs_dropped["different_prompts"] += 1
            continue
        if difference < recipe.minimum_distance:
            pairs_dropped["nearly_identical"] += 1
            continue
        n_pairs += 1
        yield better[i], worse[j], difference


def _unpaired_reason(completion: GradedCompletion, outcome: dict[Category, str]) -> str:
    """Reason why a usable completion is in no pair: its own fault, else a category's outcome."""
    if completion.truncated:
        return "truncated"
    if completion.score is None:
        return "unscored"
    if completion.call_markup and not completion.calls and "with_tools" not in outcome:
        return "call_markup"
    if "paired" in outcome.values():
        # its side has enough others, or it differs from the other side in formatting only
        return "not_needed"
    # the penalty's reason speaks of calls alone: a graded category explains more
    graded = [reason for name, reason in outcome.items() if name != "hallucination_penalty"]
    reasons = graded or list(outcome.values())
    return reasons[0] if reasons else "category_not_built"


def pair_indices(right: int, wrong: int) -> Iterator[tuple[int, int]]:
    """Distinct pairs (position among the right, position among the wrong), best spread first.

    Any beginning of the sequence uses each completion of a side k or k + 1 times.
    """
    if not right or not wrong:
        return
    # Both positions advance together, along a diagonal of the right × wrong table. A diagonal is
    # back at its start after lcm steps; the shift by k // cycle then begins the next one.
    cycle = math.lcm(right, wrong)
    for k in range(right * wrong):
        yield k % right, (k + k // cycle) % wrong


@dataclass(frozen=True, slots=True)
class Selection:
    """Pairs of the data set, in order of prompt, category and rank.

    Attributes:
        dropped: reason → number of candidate pairs that are not in the data set.
        limited_by: category that kept the total below the requested one, None where none did.
    """

    pairs: tuple[CandidatePair, ...]
    dropped: Mapping[str, int]
    limited_by: str | None


def select_pairs(
    candidates: Sequence[CandidatePair], recipe: BuildDpoConfig, summary: str = ""
) -> Selection:
    """Choose pairs so that the shares of categories, and the total, are as requested.

    Args:
        summary: counts of the completions, for the error where there are no pairs.

    Raises:
        DataError: a requested category has no pairs at all.
    """
    dropped: Counter[str] = Counter()
    by_category: dict[Category, list[CandidatePair]] = defaultdict(list)
    for pair in candidates:
        by_category[pair.category].append(pair)
    available: dict[Category, int] = {}
    for category, pairs in by_category.items():
        available[category] = len(pairs)
    quotas, limited_by = _quotas(recipe.categories, available, recipe.total, summary)
    selected: list[CandidatePair] = []
    for category, pairs in by_category.items():
        pairs.sort(key=lambda pair: (pair.rank, pair.key))
        quota = quotas.get(category, 0)
        selected += pairs[:quota]
        dropped["not_drawn"] += len(pairs) - quota
    selected.sort(key=lambda pair: (pair.prompt, pair.category, pair.rank))
    assert len(candidates) == len(selected) + sum(dropped.values())
    return Selection(tuple(selected), +dropped, limited_by)


def _quotas(
    shares: Mapping[Category, float],
    available: Mapping[Category, int],
    total: int | None,
    summary: str,
) -> tuple[dict[Category, int], Category | None]:
    """Pairs to take of each category so that the shares hold, and the category that limits them."""
    empty: list[Category] = [category for category in sorted(shares) if not available.get(category)]
    if empty:
        source = f" in {summary}" if summary else ""
        raise DataError(f"no pairs of {', '.join(empty)}{source}: {_advice_on_empty(empty)}")
    scarcest = min(shares, key=lambda category: (available[category] / shares[category], category))
    limit = available[scarcest] / shares[scarcest]
    if total is not None and total <= limit:
        size = total
        limited_by = None
    else:
        # 1e-9: a limit such as 299.99999999999994 stands for 300
        size = math.floor(limit + 1e-9)
        limited_by = scarcest
    exact: dict[Category, float] = {}
    quotas: dict[Category, int] = {}
    for category, share in shares.items():
        exact[category] = share * size
        quotas[category] = min(math.floor(exact[category]), available[category])
    # the largest remainders get what rounding down withheld
    for category in sorted(exact, key=lambda name: (quotas[name] - exact[name], name)):
        if sum(quotas.values()) < size and quotas[category] < available[category]:
            quotas[category] += 1
    return quotas, limited_by


def _advice_on_empty(empty: Sequence[Category]) -> str:
    """Advice on what to change where categories have no pairs, for the error."""
    if set(empty) == {"offline"}:
        return "leave that out of the recipe, or mend the rows"
    return (
        "leave that out of the recipe, or sample prompts that give some, with a higher max_tokens "
        "if many are truncated"
    )
