"""Judging on a circle against all pairs: calls, and agreement with the truth and with all pairs.

    python benchmarks/pairing_agreement.py

No model is asked. A simulated judge sees each response's true quality (normal, deviation 1) with
noise of its own for each score, likes the first position by `bias`, and, where `contrast` is not 0,
scores a response lower beside a better one. It says integers, as judges do. Every ordered pair of a
group is judged once, and each strategy takes the verdicts it would have asked for.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import kendalltau, spearmanr

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reward.judge.verdict import (
    HIGHEST_RANKING,
    HIGHEST_SCORE,
    LOWEST_RANKING,
    LOWEST_SCORE,
    MIDDLE_RANKING,
    Verdict,
)
from reward.pairing import Pairs, all_pairs, base_rewards, both_orders, circular_pairs


@dataclass(frozen=True, slots=True)
class Judge:
    """Noise, bias and contrast in points of the 1 to 5 scale; quality has deviation 1."""

    name: str
    noise: float
    bias: float = 0.0
    contrast: float = 0.0

    def verdict(self, first: float, second: float, draw: random.Random) -> Verdict:
        """Verdict on answers of these qualities, shown in this order."""
        contrast = self.contrast * (first - second)
        perceived_1 = first + contrast + self.bias / 2 + draw.gauss(0, self.noise)
        perceived_2 = second - contrast - self.bias / 2 + draw.gauss(0, self.noise)
        ranking = round(MIDDLE_RANKING + perceived_2 - perceived_1)
        return Verdict(
            min(max(round(3 + perceived_1), LOWEST_SCORE), HIGHEST_SCORE),
            min(max(round(3 + perceived_2), LOWEST_SCORE), HIGHEST_SCORE),
            min(max(ranking, LOWEST_RANKING), HIGHEST_RANKING),
        )


JUDGES = (
    Judge("careful", noise=0.5),
    Judge("noisy", noise=1.0),
    Judge("noisy, prefers the first", noise=1.0, bias=1.0),
    Judge("noisy, biased, relative", noise=1.0, bias=1.0, contrast=0.5),
)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of a group's ranking with the truth and with the ranking by all pairs."""

    kendall: float
    spearman: float
    top: float
    with_all_pairs: float


def strategies(n: int) -> dict[str, Pairs]:
    """Ways to pair a group; all pairs in both orders is the most that one could judge."""
    one_order = all_pairs(n)
    return {
        "circular": circular_pairs(n),
        "both orders": both_orders(n),
        "all pairs": one_order,
        "all pairs, both orders": [*one_order, *((j, i) for i, j in one_order)],
    }


def judge_group(judge: Judge, n: int, draw: random.Random) -> dict[str, Agreement]:
    """Agreement by each strategy on one group of n responses."""
    truth = [draw.gauss(0, 1) for _ in range(n)]
    verdicts: dict[tuple[int, int], Verdict] = {}
    for i, j in itertools.permutations(range(n), 2):
        verdicts[i, j] = judge.verdict(truth[i], truth[j], draw)
    rewards: dict[str, list[float]] = {}
    for name, pairs in strategies(n).items():
        base = base_rewards(n, [(i, j, verdicts[i, j]) for i, j in pairs])
        rewards[name] = [reward for reward in base if reward is not None]
    agreements: dict[str, Agreement] = {}
    for name, base in rewards.items():
        agreements[name] = Agreement(
            kendall=correlation(kendalltau, base, truth),
            spearman=correlation(spearmanr, base, truth),
            top=top_share(base, truth),
            with_all_pairs=correlation(kendalltau, base, rewards["all pairs"]),
        )
    return agreements


def correlation(test: Any, first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation by a test of SciPy's, whose results carry no types."""
    return float(test(first, second).statistic)


def top_share(base: Sequence[float], truth: Sequence[float]) -> float:
    """Chance that the best response is named best, ties drawn by lot."""
    named_best = [i for i, reward in enumerate(base) if reward == max(base)]
    best = max(range(len(truth)), key=lambda i: truth[i])
    return (best in named_best) / len(named_best)


def rows(judge: Judge, *, n: int, groups: int, seed: int) -> list[str]:
    """Rows of the table for one judge: means over groups, with the first's standard error."""
    draws = (random.Random(f"{seed}/{judge.name}/{group}") for group in range(groups))
    agreements = [judge_group(judge, n, draw) for draw in draws]
    lines: list[str] = []
    for name, pairs in strategies(n).items():
        figures: list[str] = []
        for field in Agreement.__slots__:
            values = [getattr(group[name], field) for group in agreements]
            figure = f"{statistics.mean(values):.3f}"
            if field == "kendall":
                figure += f" ± {statistics.stdev(values) / groups**0.5:.3f}"
            figures.append(figure)
        lines.append(f"| {judge.name} | {name} | {len(pairs)} | {' | '.join(figures)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--responses", type=int, default=16)
    parser.add_argument("--groups", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| judge | pairs | calls | Kendall τ, truth | Spearman | best found | τ, all pairs |")
    print("|---|---|---|---|---|---|---|")
    for judge in JUDGES:
        lines = rows(judge, n=options.responses, groups=options.groups, seed=options.seed)
        print("\n".join(lines))


if __name__ == "__main__":
    main()
