"""The tiny world's judgements on disk: warm_up.jsonl, drills.jsonl, train.jsonl, heldout.jsonl.

    write_judgements(config, Path("runs/tiny/judgements"))  → Written(counts, files, stats)

`warm_up` and `drills` are conversations for SFT, `train` and `heldout` pairs with their gold. A
family's warm-up and training pairs are different items. A pair that its file already holds is
dropped and counted.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data_builders.tiny_world.drills import drill_row
from data_builders.tiny_world.items import Choices, Place, Split
from data_builders.tiny_world.judgements import make_judgement, warm_up_row
from data_builders.tiny_world.write import Written
from posttrain.artifacts import Counts, atomic_write_text
from posttrain.config.tiny_judgements import TinyJudgementsConfig
from posttrain.records import json_text

REPEATED = "repeated_pair"


def write_judgements(config: TinyJudgementsConfig, out: Path) -> Written:
    """Write every file of the artifact but its manifest."""
    files: dict[str, int | None] = {}
    dropped: Counter[str] = Counter()
    parts = {"drills": [drill_row(k, seed=config.seed) for k in range(config.drills)]}
    for name, pairs in _pairs_of_files(config).items():
        kept = _distinct(pairs)
        dropped[REPEATED] += len(pairs) - len(kept)
        warm = name == "warm_up"
        parts[name] = [warm_up_row(p, layout=config.layout) for p in kept] if warm else kept
    for name, rows in parts.items():
        atomic_write_text(out / f"{name}.jsonl", "".join(json_text(row) + "\n" for row in rows))
        files[f"{name}.jsonl"] = len(rows)
    written = sum(rows or 0 for rows in files.values())
    return Written(
        counts=Counts(written + dropped.total(), written, dict(dropped)), files=files, stats={}
    )


def _pairs_of_files(config: TinyJudgementsConfig) -> dict[str, list[dict[str, Any]]]:
    """The pairs of each file, repeats included."""
    parts: dict[str, list[dict[str, Any]]] = {"warm_up": [], "train": [], "heldout": []}
    for family, rows in config.families.items():
        made = _pairs(config, family, rows.difficulties, "train")
        parts["warm_up"] += [next(made) for _ in range(rows.warm_up)]
        parts["train"] += [next(made) for _ in range(rows.train)]
        held_out = _pairs(config, family, rows.difficulties, "heldout")
        parts["heldout"] += [next(held_out) for _ in range(rows.heldout)]
    return parts


def _pairs(
    config: TinyJudgementsConfig, family: str, difficulties: tuple[int, ...], split: Split
) -> Iterator[dict[str, Any]]:
    seed = config.seed if split == "train" else config.heldout_seed
    choices = Choices(
        difficulties=difficulties, verbosity=(1, 0, 0), tools_declared=0, several_turns=0
    )
    for index in itertools.count():
        yield make_judgement(Place(seed, split, family, index), choices)


def _distinct(pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    keys = ("messages", "response_1", "response_2")
    return list({json_text([pair[key] for key in keys]): pair for pair in pairs}.values())
