"""Prompt sensitivity on simulated models of known sensitivity: bias, coverage, power of p.

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
TEMPLATES = 13
SAMPLES = 8
REPEATS = 400
POINTS = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
QUESTIONS = (30, 198, 1000)


def chances(rng: np.random.Generator, questions: int, sd: float) -> np.ndarray:
    """Chances of a right answer `[questions, templates]` whose template means have this sd."""
    # most questions are nearly always or nearly never solved, as in real benchmarks
    difficulty = logit(np.clip(rng.beta(0.7, 0.5, questions), 0.005, 0.995))
    logits = difficulty[:, None] + rng.normal(0, 0.5, (questions, TEMPLATES))
    shape = rng.normal(size=TEMPLATES)
    template_means = expit(difficulty).mean() + sd * (shape - shape.mean()) / shape.std()
    for column, mean in zip(logits.T, template_means, strict=True):
        column += brentq(lambda a, c=column, m=mean: expit(c + a).mean() - m, -20, 20)
    return expit(logits)


def main() -> None:
    from posttrain.evaluation.sensitivity import sensitivity

    rng = np.random.default_rng(2026)
    print("| questions | true | raw | floor | debiased | covered | p < 0.05 |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for questions in QUESTIONS:
        for points in POINTS:
            results = []
            for _ in range(REPEATS):
                share = chances(rng, questions, points / 100)
                means = rng.binomial(SAMPLES, share) / SAMPLES
                # the unbiased variance of eight samples that are 0 or 1
                noise = means * (1 - means) / (SAMPLES - 1)
                results.append(sensitivity(means.mean(0), noise.sum(0) / questions**2))
            truth = points / 100
            covered = np.mean([r.low - 1e-12 <= truth <= r.high + 1e-12 for r in results])
            significant = np.mean([r.p < 0.05 for r in results])
            figures: list[str] = []
            for name in ("sd", "floor", "debiased"):
                figures.append(f"{100 * np.mean([getattr(r, name) for r in results]):.2f}")
            print(
                f"| {questions} | {points} | {' | '.join(figures)} | {covered:.1%} "
                f"| {significant:.1%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
