"""All sources → two files of judging prompts, counts of every row, and stats.

build(recipe, out, base_dir=Path("."))  → JudgingPrompts(files={"prompts.jsonl": 5000, …}, …)

What is held out is chosen by question, before anything else: neither a pair's other order nor
another pair of the same question is on the other side. Sources that are held out as a whole are
read first, and what others have in common with their questions is dropped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from data_builders.dialects import RowProblem
from data_builders.judging.pair import PreferencePair
from data_builders.judging.prompts import CountTokens, prompts_of, sft_row
from data_builders.judging.read import Seen, chosen_pairs
from data_builders.keyed import unit
from data_builders.prompts.questions import total_counts
from data_builders.rows.read import RowCounts
from data_builders.sft.inputs import Input, as_stats
from posttrain.config.build_genrm import BuildGenRmConfig
from posttrain.errors import DataError
from posttrain.records import json_text
from posttrain.rollouts import Prompt, prompt_to_row
from posttrain.runs import Counts
from reward.judge.verdict import MIDDLE_RANKING

TRAIN, HELD_OUT, WARM_UP = "prompts.jsonl", "heldout.jsonl", "sft.jsonl"
OnProgress = Callable[[str, int], None]


@dataclass(slots=True)
class SplitStats:
    """What one side of the split holds."""

    pairs: int = 0
    prompts: int = 0
    rankings: Counter[float] = field(default_factory=Counter[float])
    with_scores: int = 0
    with_principle: int = 0
    at_odds: int = 0
    characters: list[int] = field(default_factory=list[int])

    def add(self, pair: PreferencePair, prompts: list[Prompt]) -> None:
        gold = pair.gold
        self.pairs += 1
        self.prompts += len(prompts)
        self.rankings.update(json.loads(p.gold or "{}")["ranking"] for p in prompts)
        self.with_principle += pair.principle is not None
        if gold.score_1 is not None and gold.score_2 is not None:
            self.with_scores += 1
            # scores that prefer the one response under a ranking that prefers the other
            self.at_odds += (gold.score_1 - gold.score_2) * (MIDDLE_RANKING - gold.ranking) < 0
        self.characters += [sum(len(m.content) for m in p.messages) for p in prompts]

    def stats(self) -> dict[str, Any]:
        long = np.quantile(self.characters, [0.5, 0.9, 1.0]) if self.characters else np.zeros(3)
        return {
            "pairs": self.pairs,
            "prompts": self.prompts,
            "rankings": {f"{r:g}": n for r, n in sorted(self.rankings.items())},
            "with_scores": self.with_scores,
            "with_principle": self.with_principle,
            "scores_and_ranking_at_odds": self.at_odds,
            "characters": dict(zip(("median", "p90", "longest"), map(int, long), strict=True)),
        }


@dataclass(slots=True)
class JudgingPrompts:
    """Files with their rows, row counts by source, and the stats of both sides."""

    recipe: BuildGenRmConfig
    row_counts: dict[str, RowCounts]
    files: Counter[str] = field(default_factory=lambda: Counter({TRAIN: 0, HELD_OUT: 0}))
    train: SplitStats = field(default_factory=SplitStats)
    held_out: SplitStats = field(default_factory=SplitStats)

    def counts(self) -> Counts:
        return total_counts(self.row_counts.values())

    def stats(self, inputs: Sequence[Input]) -> dict[str, Any]:
        recipe = self.recipe
        return {
            "layout": recipe.layout,
            "principle": recipe.principle,
            "swap": recipe.swap,
            "thinking": recipe.thinking,
            "files": {"train": TRAIN, "held_out": HELD_OUT},
            "inputs": as_stats(inputs),
            "train": self.train.stats(),
            "held_out": self.held_out.stats(),
            "sources": {
                name: counts.stats()
                | {"held_out": counts.held_out, "dialects": dict(sorted(counts.dialects.items()))}
                for name, counts in self.row_counts.items()
            },
        }


def build(
    recipe: BuildGenRmConfig,
    out: Path | None,
    *,
    base_dir: Path,
    count: CountTokens | None = None,
    on_progress: OnProgress = lambda name, rows: None,
) -> JudgingPrompts:
    """Read every source and write the prompts.

    Args:
        out: the folder to write to; None writes nothing.
        count: tokens of rendered prompts, where the recipe limits them.
        on_progress: called with a source and how many of its pairs are done.

    Raises:
        ConfigError, DataError: as `chosen_pairs`; or nothing is left to train on.
    """
    built = JudgingPrompts(recipe, {source.name: RowCounts() for source in recipe.sources})
    seen: Seen = {}
    kept_apart: set[str] = set()
    with ExitStack() as stack:
        files: dict[str, TextIO] = {}
        if out is not None:
            for name in (TRAIN, HELD_OUT, *((WARM_UP,) if recipe.sft else ())):
                files[name] = stack.enter_context((out / name).open("w", encoding="utf-8"))

        def write(name: str, row: dict[str, Any]) -> None:
            built.files[name] += 1
            if name in files:
                files[name].write(json_text(row) + "\n")

        # what is held out as a whole decides which questions the others may not have
        for source in sorted(recipe.sources, key=lambda one: not one.held_out):
            counts = built.row_counts[source.name]
            pairs = chosen_pairs(source, counts, seen=seen, seed=recipe.seed, base_dir=base_dir)
            for pair in pairs:
                question = pair.question
                if question in kept_apart and not source.held_out:
                    counts.drop("held_out_question")
                    continue
                share = unit(recipe.seed, "held_out", question)
                held_out = source.held_out or share < recipe.held_out
                swap = recipe.swap or held_out
                try:
                    prompts = prompts_of(
                        pair, source=source.name, recipe=recipe, swap=swap, count=count
                    )
                except RowProblem as problem:
                    counts.drop(problem.reason, str(problem))
                    continue
                if source.held_out:
                    kept_apart.add(question)
                counts.kept += 1
                counts.held_out += held_out
                (built.held_out if held_out else built.train).add(pair, prompts)
                for prompt in prompts:
                    write(HELD_OUT if held_out else TRAIN, prompt_to_row(prompt))
                if recipe.sft and not held_out and (row := sft_row(pair, prompts[0])) is not None:
                    write(WARM_UP, row)
                on_progress(source.name, counts.kept)
    if built.train.prompts == 0:
        reasons = ", ".join(f"{k} {n:,}" for k, n in built.counts().dropped.items())
        raise DataError(f"no pair is left to train on: {reasons or 'the sources have no rows'}")
    return built
