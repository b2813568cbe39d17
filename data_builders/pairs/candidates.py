"""The pairs that each prompt can give, and those of them that make the data set.

Where no tool is declared a completion with a call is never chosen, nor one with half a call: what
is chosen is learnt. In no_tools and with_tools the final answer alone decides; in
hallucination_penalty any call is rejected, whatever its answer. Every prompt's first pair is taken
before any prompt's second one, in the order of a keyed hash.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from data_builders.keyed import key64
from data_builders.pairs.grading import Graded
from posttrain.config.build_dpo import BuildDpoConfig, PairingRule
from posttrain.errors import DataError
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


Compare = Callable[[Graded, Graded], float | None]  # None: their prompts differ
Cell = tuple[Category, bool | None]


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
    """All candidate pairs of one prompt, the `number`-th, in the order in which to take them."""
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

    def shuffled(side: str, completions: Sequence[Graded]) -> list[Graded]:
        # by what a completion says: the order then depends on no numbering
        order = f"order {category} {side}"
        return sorted(
            completions, key=lambda c: (key64(recipe.seed, order, prompt.id, c.ids_key), c.index)
        )

    better, worse, taken = shuffled("chosen", chosen), shuffled("rejected", rejected), 0
    for i, j in pair_indices(len(better), len(worse), recipe.rule):
        if taken == recipe.pairs_per_prompt:
            return
        if better[i].text_key == worse[j].text_key:
            dropped["formatting_only"] += 1
            continue
        apart = compare(better[i], worse[j])
        if apart is None or apart < recipe.minimum_distance:
            dropped["different_prompts" if apart is None else "nearly_identical"] += 1
            continue
        taken += 1
        yield better[i], worse[j], apart


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


@dataclass(frozen=True, slots=True)
class Selection:
    """The pairs in order of prompt, category and rank; what kept them below the requested total."""

    pairs: tuple[CandidatePair, ...]
    dropped: Mapping[str, int]
    limited_by: str | None


def select(
    candidates: Sequence[CandidatePair], recipe: BuildDpoConfig, sampled: str = ""
) -> Selection:
    """Choose the pairs by the recipe's shares, modes and total.

    Args:
        sampled: what became of the completions, for the error where there are no pairs.

    Raises:
        DataError: a category or mode that is requested has no pairs at all.
    """
    dropped, on, shares = Counter[str](), recipe.thinking_on, recipe.categories
    by_cell: dict[Cell, list[CandidatePair]] = defaultdict(list)
    for pair in candidates:
        by_cell[pair.category, None if on is None else pair.thinking].append(pair)
    modes: dict[bool | None, float] = {None: 1.0} if on is None else {True: on, False: 1 - on}
    wanted: dict[Cell, float] = {
        (c, mode): s * part for c, s in shares.items() for mode, part in modes.items() if part
    }
    for cell, pairs in by_cell.items():
        pairs.sort(key=lambda p: (p.rank, p.key))
        if recipe.match_length:
            by_cell[cell] = _matched(pairs, dropped)
    available = {cell: len(pairs) for cell, pairs in by_cell.items()}
    quotas, limited_by = _quotas(wanted, available, recipe.total, sampled)
    taken: list[CandidatePair] = []
    for cell, pairs in by_cell.items():
        taken += pairs[: quotas.get(cell, 0)]
        dropped["not_drawn"] += len(pairs) - quotas.get(cell, 0)
    taken.sort(key=lambda p: (p.prompt, p.category, p.rank))
    assert len(candidates) == len(taken) + sum(dropped.values())
    return Selection(tuple(taken), +dropped, limited_by)


def _quotas(
    wanted: Mapping[Cell, float], available: Mapping[Cell, int], total: int | None, sampled: str
) -> tuple[dict[Cell, int], str | None]:
    """Whole numbers of pairs that keep the shares and are there."""
    empty = [cell for cell in wanted if not available.get(cell)]
    if empty:
        raise DataError(
            f"no pairs of {', '.join(map(_name, sorted(empty, key=str)))}"
            f"{f' in {sampled}' if sampled else ''}: {_way_out(empty)}"
        )
    limit, cell = min((available[c] / share, c) for c, share in wanted.items())
    reached = total is not None and total <= limit
    size = total if reached and total is not None else math.floor(limit + 1e-9)
    exact = {c: share * size for c, share in wanted.items()}
    quotas = {c: min(math.floor(x), available[c]) for c, x in exact.items()}
    # the largest remainders get what rounding down left over
    for c in sorted(exact, key=lambda c: (quotas[c] - exact[c], str(c))):
        if sum(quotas.values()) < size and quotas[c] < available[c]:
            quotas[c] += 1
    return quotas, None if reached else _name(cell)


def _way_out(empty: Sequence[Cell]) -> str:
    if {category for category, _ in empty} == {"offline"}:
        return "leave that out of the recipe, or mend the rows"
    return (
        "leave that out of the recipe, or sample prompts that give some, with a higher max_tokens "
        "if many are truncated"
    )


def _name(cell: Cell) -> str:
    category, thinking = cell
    return category if thinking is None else f"{category} (reasoning {'on' if thinking else 'off'})"


def _matched(pairs: Sequence[CandidatePair], dropped: Counter[str]) -> list[CandidatePair]:
    """As many pairs with the longer chosen as with the shorter, among those about as different."""
    bins: dict[int, list[list[int]]] = defaultdict(lambda: [[], []])
    kept: set[int] = set()
    for place, pair in enumerate(pairs):
        difference = pair.chosen.length - pair.rejected.length
        if difference == 0:
            kept.add(place)
        else:
            # half an octave a bin: differences of 8–11 tokens match each other, 12–15 likewise
            bins[int(2 * math.log2(abs(difference)))][difference > 0].append(place)
    for shorter, longer in bins.values():
        few = min(len(shorter), len(longer))
        kept.update(shorter[:few], longer[:few])
    dropped["length_unmatched"] += len(pairs) - len(kept)
    return [pair for place, pair in enumerate(pairs) if place in kept]
