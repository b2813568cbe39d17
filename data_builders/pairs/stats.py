"""What a preference build did, in figures: for the manifest's stats and the report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_builders.pairs.candidates import CandidatePair, Candidates
from data_builders.pairs.grading import Grades
from posttrain.rollouts import Prompt

_BINS = 10


@dataclass
class Proposed:
    """Every candidate pair, and the counts so far; those by reason are of what became no candidate.

    `outcomes`: category → what became of the prompts. `rates`: setting and mode → of completions.
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

    def add(self, prompt: Prompt, grades: Grades, found: Candidates, *, right_at: float) -> None:
        """Count one prompt and what became of its completions."""
        self.prompts += 1
        self.candidates += found.pairs
        self.completions += len(grades)
        self.unused.update(found.unusable.values())
        self.pairs_dropped.update(found.pairs_dropped)
        for category, outcome in found.outcome.items():
            self.outcomes[category][outcome] += 1
        rates = self.rates[f"{prompt.setting}/{'on' if prompt.thinking else 'off'}"]
        for completion, score, verdict in grades:
            rates["completions"] += 1
            rates["truncated"] += completion.truncated
            rates["failed"] += completion.finish == "failed"
            rates["unscored"] += not score.scored
            rates["right"] += score.value is not None and score.value >= right_at
            rates["with_call"] += bool(verdict.calls)


def completions_line(rates: Mapping[str, Mapping[str, int]], *, overlong: int) -> str:
    """How sampled completions fared, over all settings and modes; "" where there are none."""
    total: Counter[str] = Counter()
    for found in rates.values():
        total.update(found)
    if not total["completions"]:
        return ""
    cut = total["truncated"]
    return (
        f"{total['completions']:,} completions, {cut:,} ({cut / total['completions']:.1%}) "
        f"truncated, {overlong:,} beyond max_length, {total['failed']:,} failed, "
        f"{total['unscored']:,} unscored"
    )


def used_completions(pairs: Iterable[CandidatePair]) -> set[tuple[int, int]]:
    """(prompt number, index) of every completion in a pair; offline pairs have none."""
    return {
        (pair.prompt, side.index)
        for pair in pairs
        if pair.category != "offline"
        for side in (pair.chosen, pair.rejected)
    }


def pair_counts(pairs: Sequence[CandidatePair]) -> dict[str, Any]:
    """Pairs in all, by category, and by category and reasoning mode."""
    modes = Counter(f"{p.category}/{'on' if p.thinking else 'off'}" for p in pairs)
    return {
        "total": len(pairs),
        "by_category": dict(sorted(Counter(p.category for p in pairs).items())),
        "by_mode": dict(sorted(modes.items())),
    }


def lengths(pairs: Sequence[CandidatePair]) -> dict[str, dict[str, float]]:
    """Length of chosen against rejected in sampled tokens, by category and over all."""
    return {name: _balance(group) for name, group in _groups(pairs).items()}


def _balance(pairs: Sequence[CandidatePair]) -> dict[str, float]:
    chosen = np.array([p.chosen.length for p in pairs], dtype=np.int64)
    rejected = np.array([p.rejected.length for p in pairs], dtype=np.int64)
    return {
        "pairs": len(pairs),
        "chosen_mean": round(float(chosen.mean()), 3),
        "rejected_mean": round(float(rejected.mean()), 3),
        "difference_median": float(np.median(chosen - rejected)),
        "chosen_longer": round(float((chosen > rejected).mean()), 4),
        "rejected_longer": round(float((chosen < rejected).mean()), 4),
    }


def distances(pairs: Sequence[CandidatePair]) -> dict[str, dict[str, Any]]:
    """How far apart chosen and rejected are, by category: median, and counts in tenths."""
    found: dict[str, dict[str, Any]] = {}
    for name, group in _groups(pairs).items():
        values = np.array([pair.distance for pair in group])
        counts, _ = np.histogram(values, bins=_BINS, range=(0.0, 1.0))
        found[name] = {
            "median": round(float(np.median(values)), 4),
            "below_a_tenth": round(float((values < 1 / _BINS).mean()), 4),
            "tenths": counts.tolist(),
        }
    return found


def plain(counters: Mapping[str, Counter[str]]) -> dict[str, dict[str, int]]:
    """Counters as JSON-able mappings in a fixed order."""
    return {name: dict(sorted(counter.items())) for name, counter in sorted(counters.items())}


def _groups(pairs: Sequence[CandidatePair]) -> dict[str, list[CandidatePair]]:
    groups: dict[str, list[CandidatePair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.category].append(pair)
        groups["all"].append(pair)
    return dict(sorted(groups.items()))
