"""How often intervals hold the truth and tests find a change, on simulated questions.

    python -m tests.evaluation.coverage             # every cell: tables of changes, gate, rates
    python -m tests.evaluation.coverage --trials 500

A cell is a number of questions, of samples of each on either side, and a difficulty: chances of the
first checkpoint are drawn from a beta distribution, those of the second lie a fixed step and a
question's own step away from them in logits. `UNSEEN` cells had no part in choosing the method.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from posttrain.evaluation.compare import Changes, gate_verdict
from posttrain.evaluation.intervals import p_of_half, rate_of_means

Floats = np.ndarray[Any, np.dtype[np.float64]]
# parameters of the beta distribution of a question's chance
DIFFICULTIES = {
    "easy": (9.0, 1.0),
    "hard": (1.0, 9.0),
    "mixed": (0.7, 0.7),
    "even": (3.0, 3.0),
    "very easy": (19.0, 0.6),
}
QUESTIONS, SAMPLES, SEEN = (5, 10, 20, 30, 100, 500), (1, 4, 16, 64), ("easy", "hard", "mixed")
CHANGES = (0.0, -0.05, -0.10)
UNSEEN = tuple(itertools.product((7, 15, 50, 200), (2, 8, 32), ("easy", "even", "very easy")))


@dataclass(frozen=True)
class Cell:
    """One cell of the grid; `own_step` is the spread of the questions' own steps, in logits."""

    questions: int
    samples: int
    difficulty: str
    own_step: float = 0.5


@dataclass(frozen=True)
class Measured:
    """Shares of trials; `agree`: that the interval leaves out 0 exactly where p is below 0.05."""

    coverage: float
    power: float
    student_coverage: float
    student_power: float
    agree: bool


@functools.lru_cache
def logit_step(difficulty: str, change: float, own_step: float) -> float:
    """The step in logits that changes the mean chance by so much."""
    rng = np.random.default_rng(5)
    chances = rng.beta(*DIFFICULTIES[difficulty], 200_000).clip(1e-6, 1 - 1e-6)
    steps = own_step * rng.standard_normal(len(chances))
    low, high = -8.0, 8.0
    for _ in range(40):
        middle = (low + high) / 2
        if (_moved(chances, steps + middle) - chances).mean() < change:
            low = middle
        else:
            high = middle
    return low


def _moved(chances: Floats, steps: Floats) -> Floats:
    odds = chances / (1 - chances) * np.exp(steps)
    return odds / (1 + odds)


def draws(cell: Cell, change: float, *, trials: int, seed: int) -> Iterator[tuple[Floats, Floats]]:
    """The questions' means of both checkpoints, a trial each."""
    rng = np.random.default_rng(seed)
    step = logit_step(cell.difficulty, change, cell.own_step)
    for _ in range(trials):
        chances = rng.beta(*DIFFICULTIES[cell.difficulty], cell.questions).clip(1e-6, 1 - 1e-6)
        steps = step + cell.own_step * rng.standard_normal(cell.questions)
        before = rng.binomial(cell.samples, chances) / cell.samples
        after = rng.binomial(cell.samples, _moved(chances, steps)) / cell.samples
        yield before, after


def measure_change(cell: Cell, change: float, *, trials: int, seed: int = 0) -> Measured:
    """Coverage and power of the interval of a change, and of Student's t beside it."""
    held, found, student_held, student_found = 0, 0, 0, 0
    agree = True
    quantile = float(stats.t.ppf(0.975, cell.questions - 1))
    for before, after in draws(cell, change, trials=trials, seed=seed):
        changes = Changes(before, after, samples=cell.samples)
        low, high = changes.interval()
        held += low <= change <= high
        found += not low <= 0 <= high
        agree &= (not low <= 0 <= high) == (changes.p < 0.05)
        mean = float(changes.each.mean())
        half = quantile * float(changes.each.std(ddof=1)) / cell.questions**0.5
        student_held += abs(mean - change) <= half
        student_found += abs(mean) > half
    shares = (count / trials for count in (held, found, student_held, student_found))
    return Measured(*shares, agree=agree)


def width_exists(cell: Cell, change: float, *, trials: int, seed: int = 1) -> tuple[bool, bool]:
    """Whether any width covers the change in 93 to 97 % of trials, chosen with the truth known.

    The first is of one width for all trials, the second of one multiple of their standard errors.
    With few questions the mean takes few values, of which one step holds more than these 4 points.
    """
    distances: list[float] = []
    ratios: list[float] = []
    for before, after in draws(cell, change, trials=trials, seed=seed):
        changes = after - before
        distance = round(abs(float(changes.mean()) - change), 9)
        spread = float(changes.std(ddof=1))
        distances.append(distance)
        ratios.append(round(distance / spread, 9) if spread else np.inf if distance else 0.0)
    return _reaches_the_range(distances), _reaches_the_range(ratios)


def _reaches_the_range(distances: list[float]) -> bool:
    _, counts = np.unique(distances, return_counts=True)
    coverage = np.cumsum(counts) / len(distances)
    return bool(((coverage >= 0.93) & (coverage <= 0.97)).any())


def measure_rate(cell: Cell, *, trials: int, seed: int = 0) -> float:
    """Coverage of the interval of one checkpoint's rate."""
    first, second = DIFFICULTIES[cell.difficulty]
    held = 0
    for means, _ in draws(cell, 0.0, trials=trials, seed=seed):
        estimate = rate_of_means(means, samples=cell.questions * cell.samples)
        held += estimate.low <= first / (first + second) <= estimate.high
    return held / trials


def measure_win_rate(cell: Cell, *, ties: float, trials: int, seed: int = 0) -> Measured:
    """Coverage of the interval of wins and half of the ties, and how often it leaves out one half.

    `samples` are the duels of a question, `ties` the chance that a duel ends in one.
    """
    rng = np.random.default_rng(seed)
    first, second = DIFFICULTIES[cell.difficulty]
    truth = (1 - ties) * first / (first + second) + ties / 2
    held, found, student_held, student_found = 0, 0, 0, 0
    agree = True
    quantile = float(stats.t.ppf(0.975, cell.questions - 1))
    for _ in range(trials):
        chances = rng.beta(first, second, cell.questions)
        tied = rng.binomial(cell.samples, ties, cell.questions)
        won = rng.binomial(cell.samples - tied, chances)
        scores = (won + tied / 2) / cell.samples
        estimate = rate_of_means(scores, samples=cell.questions * cell.samples)
        held += estimate.low <= truth <= estimate.high
        found += not estimate.low <= 0.5 <= estimate.high
        agree &= (not estimate.low <= 0.5 <= estimate.high) == (p_of_half(scores) < 0.05)
        half = quantile * float(scores.std(ddof=1)) / cell.questions**0.5
        student_held += abs(scores.mean() - truth) <= half
        student_found += abs(scores.mean() - 0.5) > half
    shares = (count / trials for count in (held, found, student_held, student_found))
    return Measured(*shares, agree=agree)


def gate_verdicts(
    cell: Cell, change: float, *, margin: float, trials: int, seed: int = 0
) -> Counter[str]:
    """How often a gate of one rule says what of a true change."""
    verdicts = Counter[str]()
    for before, after in draws(cell, change, trials=trials, seed=seed):
        bounds = Changes(before, after, samples=cell.samples).interval(quantile=0.95)
        verdicts[gate_verdict(*bounds, margin=margin)] += 1
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description="Coverage and power of intervals.")
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    seen = [Cell(*cell) for cell in itertools.product(QUESTIONS, SAMPLES, SEEN)]
    unseen = [Cell(*cell, own_step=1.0) for cell in UNSEEN]
    print("questions samples difficulty change: coverage, power (Student's t: coverage, power)")
    for name, cells in (("seen", seen), ("unseen", unseen)):
        rows = [(c, d, measure_change(c, d, trials=trials)) for c in cells for d in CHANGES]
        for cell, change, row in rows:
            print(
                f"{name} {cell.questions:4} {cell.samples:3} {cell.difficulty:9} {change:+.2f}: "
                f"{row.coverage:6.1%} {row.power:6.1%} ({row.student_coverage:6.1%} "
                f"{row.student_power:6.1%})"
            )
        assert all(row.agree for *_, row in rows)
        for least, most in ((1, 10), (11, 20), (21, 50), (51, 500)):
            own = [row for cell, _, row in rows if least <= cell.questions <= most]
            within = sum(0.93 <= row.coverage <= 0.97 for row in own)
            student_within = sum(0.93 <= row.student_coverage <= 0.97 for row in own)
            under = sum(row.coverage < 0.93 for row in own)
            student_under = sum(row.student_coverage < 0.93 for row in own)
            least_held = min(row.coverage for row in own)
            student_least_held = min(row.student_coverage for row in own)
            lost = max(row.student_power - row.power for row in own)
            costly = sum(row.student_power - row.power > 0.05 for row in own)
            print(
                f"{name}, {least} to {most} questions: {within} of {len(own)} cells in 93 to 97 % "
                f"(Student's t: {student_within}), {under} below ({student_under}), the lowest "
                f"{least_held:.1%} ({student_least_held:.1%}), power lost at most {lost:.1%}, "
                f"more than 5 points in {costly}"
            )
    print("cells that no width covers in 93 to 97 %: one for all trials, multiples of their errors")
    for questions in QUESTIONS[:4]:
        few = [cell for cell in seen if cell.questions == questions]
        found = [width_exists(c, d, trials=trials) for c in few for d in CHANGES]
        missing = [sum(not row[column] for row in found) for column in (0, 1)]
        print(f"{questions} questions: {missing[0]} and {missing[1]} of {len(found)}")
    print("rates: questions samples difficulty: coverage")
    for name, cells in (("seen", seen), ("unseen", unseen)):
        covered = [(cell, measure_rate(cell, trials=trials)) for cell in cells]
        for least, most in ((1, 10), (11, 20), (21, 50), (51, 500)):
            own = [share for cell, share in covered if least <= cell.questions <= most]
            print(f"{name}, {least} to {most}: {min(own):.1%} to {max(own):.1%}")
    print("win rates: coverage, in 93 to 97 %, below (Student's t), power lost")
    for name, cells in (("seen", seen), ("unseen", unseen)):
        duels = [
            (cell, measure_win_rate(cell, ties=ties, trials=trials))
            for cell in cells
            for ties in (0.0, 0.3)
        ]
        assert all(row.agree for _, row in duels)
        for least, most in ((1, 10), (11, 20), (21, 50), (51, 500)):
            own = [row for cell, row in duels if least <= cell.questions <= most]
            covered = [row.coverage for row in own]
            within = sum(0.93 <= share <= 0.97 for share in covered)
            under = sum(share < 0.93 for share in covered)
            student_under = sum(row.student_coverage < 0.93 for row in own)
            student_within = sum(0.93 <= row.student_coverage <= 0.97 for row in own)
            # where Student's t holds its level, power can be compared
            fair = [row for row in own if row.student_coverage >= 0.93]
            lost = max(row.student_power - row.power for row in fair)
            print(
                f"{name}, {least} to {most}: {min(covered):.1%} to {max(covered):.1%}, {within} of "
                f"{len(own)} ({student_within}), {under} ({student_under}), {lost:.1%}"
            )
    print("gate, margin 2 points, level 0.95: questions samples change: verdicts")
    for questions, samples in ((30, 64), (200, 1), (200, 8), (500, 4)):
        for change in (0.02, 0.0, -0.02, -0.05, -0.10):
            cell = Cell(questions, samples, "mixed")
            verdicts = gate_verdicts(cell, change, margin=0.02, trials=trials)
            shares = ", ".join(f"{v} {n / trials:.0%}" for v, n in sorted(verdicts.items()))
            print(f"{questions:4} {samples:3} {change:+.2f}: {shares}")


if __name__ == "__main__":
    main()
