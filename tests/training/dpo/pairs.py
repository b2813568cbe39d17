"""A writer of small `dpo_data` artifacts, so that these tests need no sampling and no grader.

A prompt is random words; the chosen repeats its first word, the rejected another one. Some sides
hold a stretch that the model did not sample, as a tool's result would be.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.records import Pair, Side, pair_to_row
from posttrain.runs import Counts, Run
from tests.training.tiny import END, START, WORDS, make_tokenizer

CATEGORIES = ("no_tools", "with_tools", "hallucination_penalty")
SCHEMA = [
    ("prompt_ids", pa.list_(pa.int32())),
    *((f"{s}_ids", pa.list_(pa.int32())) for s in ("chosen", "rejected")),
    *((f"{s}_mask", pa.list_(pa.bool_())) for s in ("chosen", "rejected")),
]


def make_side(rng: random.Random, word: int, *, tool: bool, longest: int) -> Side:
    ids = [word] * rng.randint(2, longest) + [END]
    mask = [True] * len(ids)
    if tool:
        result = [rng.choice(sorted(WORDS.values())) for _ in range(3)]
        ids, mask = [word, END, *result, START, *ids], [True, True, *[False] * 4, *mask]
    return Side(ids=tuple(ids), mask=tuple(mask), text="")


def make_pairs(count: int, *, longest: int = 9, seed: int = 0) -> list[Pair]:
    rng = random.Random(seed)
    words = sorted(WORDS.values())
    pairs = []
    for n in range(count):
        prompt = [rng.choice(words) for _ in range(rng.randint(2, 12))]
        other = rng.choice([word for word in words if word != prompt[0]])
        category = CATEGORIES[n % 3]
        tool = category == "with_tools"
        pairs.append(
            Pair(
                id=f"pair-{n}",
                task=f"task-{n}",
                category=category,
                thinking=bool(n % 2),
                prompt_ids=(*prompt, START),
                chosen=make_side(rng, prompt[0], tool=tool, longest=longest),
                rejected=make_side(rng, other, tool=tool, longest=longest),
                source="made",
            )
        )
    return pairs


def write_pairs(
    root: Path,
    pairs: Sequence[Pair],
    *,
    template: str | None = None,
    rows: Sequence[dict[str, Any]] | None = None,
    shards: int = 2,
) -> Path:
    """Write the artifact; `rows` replaces what the pairs would give."""
    stage = Run.open(root, kind="dpo_data", config={"pairs": len(pairs), "name": root.name})
    found = list(rows) if rows is not None else [pair_to_row(pair) for pair in pairs]
    (root / "pairs").mkdir()
    per_shard = -(-len(found) // shards)
    for n in range(shards):
        part = [
            {key: list(value) if isinstance(value, tuple) else value for key, value in row.items()}
            for row in found[n * per_shard : (n + 1) * per_shard]
        ]
        if not part:
            continue
        named = dict(SCHEMA)
        columns = {
            key: pa.array([row[key] for row in part], type=named.get(key)) for key in part[0]
        }
        pq.write_table(pa.table(columns), root / "pairs" / f"train-{n:05d}.parquet")
    make_tokenizer().save_pretrained(str(root / "tokenizer"))
    files = [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()]
    stage.finish(
        counts=Counts(rows_in=len(found), kept=len(found)),
        files={name: None for name in files if name != "stage.json"},
        template_digest=template,
    )
    return root
