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
from posttrain.config.build_dpo import BuildDpoConfig, PairingRule
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
# A category, and a reasoning mode where the recipe fixes the shares of both modes.
Cell = tuple[Category, bool | None]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidate pairs of one prompt, and the reasons of everything that gave none.

    Attributes:
        pairs: in the order in which they are taken.
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
    """All candidate pairs of the `number`-th prompt, in the order in which they are taken."""
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
    """Distinct completions that are short enough, and index → drop reason of the others."""
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
    """Completions to choose from, completions to reject, and the reason if either is empty."""
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
    for i, j in pair_indices(len(better), len(worse), recipe.rule):
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
    """Reason why a usable completion is in no candidate pair."""
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


def pair_indices(right: int, wrong: int, rule: PairingRule) -> Iterator[tuple[int, int]]:
    """Distinct pairs (position among the right, position among the wrong), best spread first.

    Under `even` any beginning of the sequence uses each completion of a side k or k+1 times.
    """
    if not right or not wrong:
        return
    if rule == "once":
        for k in range(min(right, wrong)):
            yield k, k
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
    """Choose pairs so that the shares of categories and modes, and the total, are as requested.

    Args:
        summary: counts of the completions, for the error where there are no pairs.

    Raises:
        DataError: a requested category or mode has no pairs at all.
    """
    thinking_on = recipe.thinking_on
    dropped: Counter[str] = Counter()
    by_cell: dict[Cell, list[CandidatePair]] = defaultdict(list)
    for pair in candidates:
        mode = None if thinking_on is None else pair.thinking
        by_cell[pair.category, mode].append(pair)
    for cell, pairs in by_cell.items():
        pairs.sort(key=lambda pair: (pair.rank, pair.key))
        if recipe.match_length:
            by_cell[cell] = _match_lengths(pairs, dropped)

    available = {cell: len(pairs) for cell, pairs in by_cell.items()}
    shares = _cell_shares(recipe)
    quotas, limited_by = _quotas(shares, available, recipe.total, summary)
    selected: list[CandidatePair] = []
    for cell, pairs in by_cell.items():
        quota = quotas.get(cell, 0)
        selected += pairs[:quota]
        dropped["not_drawn"] += len(pairs) - quota
    selected.sort(key=lambda pair: (pair.prompt, pair.category, pair.rank))
    assert len(candidates) == len(selected) + sum(dropped.values())
    return Selection(tuple(selected), +dropped, limited_by)


def _cell_shares(recipe: BuildDpoConfig) -> dict[Cell, float]:
    """Share of all pairs that each cell has: a category, or one mode of a category."""
    mode_shares: dict[bool | None, float] = {None: 1.0}
    if recipe.thinking_on is not None:
        mode_shares = {True: recipe.thinking_on, False: 1 - recipe.thinking_on}
    shares: dict[Cell, float] = {}
    for category, share in recipe.categories.items():
        for mode, mode_share in mode_shares.items():
            if mode_share:
                shares[category, mode] = share * mode_share
    return shares


def _quotas(
    shares: Mapping[Cell, float], available: Mapping[Cell, int], total: int | None, summary: str
) -> tuple[dict[Cell, int], str | None]:
    """Number of pairs to take from each cell so that shares hold, and the cell that limits them."""
    empty = [cell for cell in shares if not available.get(cell)]
    if empty:
        names = ", ".join(_cell_name(cell) for cell in sorted(empty, key=str))
        source = f" in {summary}" if summary else ""
        raise DataError(f"no pairs of {names}{source}: {_empty_cell_advice(empty)}")
    limit, scarcest = min((available[cell] / share, cell) for cell, share in shares.items())
    if total is not None and total <= limit:
        size = total
        limited_by = None
    else:
        # 1e-9: a limit such as 299.99999999999994 stands for 300
        size = math.floor(limit + 1e-9)
        limited_by = _cell_name(scarcest)
    exact = {cell: share * size for cell, share in shares.items()}
    quotas = {cell: min(math.floor(pairs), available[cell]) for cell, pairs in exact.items()}
    # the largest remainders get what rounding down withheld
    for cell in sorted(exact, key=lambda cell: (quotas[cell] - exact[cell], str(cell))):
        if sum(quotas.values()) < size and quotas[cell] < available[cell]:
            quotas[cell] += 1
    return quotas, limited_by


def _empty_cell_advice(empty: Sequence[Cell]) -> str:
    """Advice on what to change where cells have no pairs, for the error."""
    if {category for category, _ in empty} == {"offline"}:
        return "leave that out of the recipe, or mend the rows"
    return (
        "leave that out of the recipe, or sample prompts that give some, with a higher max_tokens "
        "if many are truncated"
    )


def _cell_name(cell: Cell) -> str:
    """Category, with its reasoning mode where the recipe tells modes apart."""
    category, thinking = cell
    if thinking is None:
        return category
    return f"{category} (reasoning {'on' if thinking else 'off'})"


def _match_lengths(pairs: Sequence[CandidatePair], dropped: Counter[str]) -> list[CandidatePair]:
    """Pairs balanced by length: the chosen side is the longer one as often as the shorter one.

    Pairs are matched with pairs whose lengths differ by about as much, so that the balance holds
    for small and for large differences.
    """
    matched: set[int] = set()  # positions in `pairs`
    shorter: dict[int, list[int]] = defaultdict(list)  # bin → positions with the shorter chosen
    longer: dict[int, list[int]] = defaultdict(list)
    for k, pair in enumerate(pairs):
        difference = pair.chosen.length - pair.rejected.length
        if difference == 0:
            matched.add(k)
            continue
        # half an octave a bin: differences of 8–11 tokens match each other, 12–15 likewise
        octave_half = int(2 * math.log2(abs(difference)))
        bins = longer if difference > 0 else shorter
        bins[octave_half].append(k)
    for octave_half in shorter.keys() & longer.keys():
        n_matched = min(len(shorter[octave_half]), len(longer[octave_half]))
        matched.update(shorter[octave_half][:n_matched])
        matched.update(longer[octave_half][:n_matched])
    dropped["length_unmatched"] += len(pairs) - len(matched)
    return [pair for k, pair in enumerate(pairs) if k in matched]
