"""Prompt sensitivity on simulated models of known sensitivity: bias, coverage, and what p finds.

    python benchmarks/prompt_sensitivity.py          # half a minute

Thirteen templates, eight samples a question and template, 400 repeats. A question's difficulty is
its own under every template; a template moves all questions, and each a little in its own way, so
that the population standard deviation of the template means is exactly the one that is named.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
TEMPLATES, SAMPLES, REPEATS = 13, 8, 400
POINTS, QUESTIONS = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0), (30, 198, 1000)


def chances(rng: np.random.Generator, questions: int, sd: float) -> np.ndarray:
    """(questions, templates) chances of a right answer whose template means have this sd."""
    # most questions are nearly always or nearly never solved, as in real benchmarks
    difficulty = logit(np.clip(rng.beta(0.7, 0.5, questions), 0.005, 0.995))
    moved = difficulty[:, None] + rng.normal(0, 0.5, (questions, TEMPLATES))
    shape = rng.normal(size=TEMPLATES)
    wanted = expit(difficulty).mean() + sd * (shape - shape.mean()) / shape.std()
    for t in range(TEMPLATES):
        own = moved[:, t]
        own += brentq(lambda a, own=own, t=t: expit(own + a).mean() - wanted[t], -20, 20)
    return expit(moved)


def main() -> None:
    from posttrain.evaluation.sensitivity import sensitivity

    rng = np.random.default_rng(2026)
    print("| questions | true | raw | floor | debiased | covered | p < 0.05 |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for questions in QUESTIONS:
        for points in POINTS:
            found = []
            for _ in range(REPEATS):
                share = chances(rng, questions, points / 100)
                means = rng.binomial(SAMPLES, share) / SAMPLES
                # the unbiased variance of eight samples that are 0 or 1
                noise = means * (1 - means) / (SAMPLES - 1)
                found.append(sensitivity(means.mean(0), noise.sum(0) / questions**2))
            truth = points / 100
            covered = np.mean([f.low - 1e-12 <= truth <= f.high + 1e-12 for f in found])
            raw, floor, debiased = (
                100 * np.mean([getattr(f, name) for f in found])
                for name in ("sd", "floor", "debiased")
            )
            shown = np.mean([f.p < 0.05 for f in found])
            figures = f"{raw:.2f} | {floor:.2f} | {debiased:.2f}"
            print(
                f"| {questions} | {points} | {figures} | {covered:.1%} | {shown:.1%} |", flush=True
            )


if __name__ == "__main__":
    main()
