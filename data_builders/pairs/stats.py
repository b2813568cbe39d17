"""Figures of a preference build, for the stats of the manifest and for the report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_builders.pairs.candidates import CandidatePair, Candidates
from data_builders.pairs.grading import Grades
from posttrain.rollouts import Prompt

_HISTOGRAM_BINS = 10


@dataclass
class CandidatePool:
    """Candidate pairs of all prompts and files, with counts of the rows that gave none.

    Attributes:
        prompts, completions, offline_rows: numbers read so far.
        unread: source, column and figures of the columns of offline rows that were not read.
        dropped_rows: rows of `dropped.jsonl`, where the recipe asks for it.
        unused: reason → completions and offline rows in no candidate.
        examples: reason → file and line of the first offline row dropped for it.
        pairs_dropped: reason → pairs that could not be candidates.
        outcomes: category → outcome → prompts, see `Candidates.outcome`.
        rates: setting and mode ("math/on") → counts of completions, truncated ones, right ones, ….
    """

    candidates: list[CandidatePair] = field(default_factory=list[CandidatePair])
    prompts: int = 0
    completions: int = 0
    offline_rows: int = 0
    unread: list[list[Any]] = field(default_factory=list[list[Any]])
    dropped_rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    unused: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, str] = field(default_factory=dict[str, str])
    pairs_dropped: Counter[str] = field(default_factory=Counter[str])
    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    rates: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, prompt: Prompt, grades: Grades, proposed: Candidates, *, right_at: float) -> None:
        """Add the candidate pairs of one prompt, and count its completions."""
        self.prompts += 1
        self.candidates += proposed.pairs
        self.completions += len(grades)
        self.unused.update(proposed.unusable.values())
        self.pairs_dropped.update(proposed.pairs_dropped)
        for category, outcome in proposed.outcome.items():
            self.outcomes[category][outcome] += 1
        rates = self.rates[f"{prompt.setting}/{'on' if prompt.thinking else 'off'}"]
        for completion, score, detection in grades:
            rates["completions"] += 1
            rates["truncated"] += completion.truncated
            rates["failed"] += completion.finish == "failed"
            rates["unscored"] += not score.scored
            rates["right"] += score.value is not None and score.value >= right_at
            rates["with_call"] += bool(detection.calls)


def completions_line(rates: Mapping[str, Mapping[str, int]], *, overlong: int) -> str:
    """Line of completions, and of those truncated, overlong, failed, unscored; "" for none."""
    total: Counter[str] = Counter()
    for counts in rates.values():
        total.update(counts)
    if not total["completions"]:
        return ""
    truncated = total["truncated"]
    share = truncated / total["completions"]
    return (
        f"{total['completions']:,} completions, {truncated:,} ({share:.1%}) "
        f"truncated, {overlong:,} beyond max_length, {total['failed']:,} failed, "
        f"{total['unscored']:,} unscored"
    )


def used_completions(pairs: Iterable[CandidatePair]) -> set[tuple[int, int]]:
    """(prompt number, index) of every completion in a pair; offline pairs have none."""
    used: set[tuple[int, int]] = set()
    for pair in pairs:
        if pair.category != "offline":
            used.add((pair.prompt, pair.chosen.index))
            used.add((pair.prompt, pair.rejected.index))
    return used


def pair_counts(pairs: Sequence[CandidatePair]) -> dict[str, Any]:
    """Number of pairs: "total", "by_category", and "by_mode" for category and reasoning mode."""
    categories = Counter(pair.category for pair in pairs)
    modes = Counter(f"{pair.category}/{'on' if pair.thinking else 'off'}" for pair in pairs)
    return {
        "total": len(pairs),
        "by_category": dict(sorted(categories.items())),
        "by_mode": dict(sorted(modes.items())),
    }


def lengths(pairs: Sequence[CandidatePair]) -> dict[str, dict[str, float]]:
    """Length of chosen against rejected in sampled tokens, by category and over all."""
    return {name: _length_balance(group) for name, group in _by_category(pairs).items()}


def _length_balance(pairs: Sequence[CandidatePair]) -> dict[str, float]:
    chosen = np.array([pair.chosen.length for pair in pairs], dtype=np.int64)
    rejected = np.array([pair.rejected.length for pair in pairs], dtype=np.int64)
    return {
        "pairs": len(pairs),
        "chosen_mean": round(float(chosen.mean()), 3),
        "rejected_mean": round(float(rejected.mean()), 3),
        "difference_median": float(np.median(chosen - rejected)),
        "chosen_longer": round(float((chosen > rejected).mean()), 4),
        "rejected_longer": round(float((chosen < rejected).mean()), 4),
    }


def distances(pairs: Sequence[CandidatePair]) -> dict[str, dict[str, Any]]:
    """Distances by category and over all: median, share below a tenth, counts in tenths."""
    by_category: dict[str, dict[str, Any]] = {}
    for name, group in _by_category(pairs).items():
        values = np.array([pair.distance for pair in group])
        counts, _ = np.histogram(values, bins=_HISTOGRAM_BINS, range=(0.0, 1.0))
        by_category[name] = {
            "median": round(float(np.median(values)), 4),
            "below_a_tenth": round(float((values < 1 / _HISTOGRAM_BINS).mean()), 4),
            "tenths": counts.tolist(),
        }
    return by_category


def plain(counters: Mapping[str, Counter[str]]) -> dict[str, dict[str, int]]:
    """Counters as JSON-able mappings in a fixed order."""
    return {name: dict(sorted(counter.items())) for name, counter in sorted(counters.items())}


def _by_category(pairs: Sequence[CandidatePair]) -> dict[str, list[CandidatePair]]:
    """Pairs of each category, and of all under "all"."""
    groups: dict[str, list[CandidatePair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.category].append(pair)
        groups["all"].append(pair)
    return dict(sorted(groups.items()))
