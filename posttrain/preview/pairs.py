"""Preference pairs, chosen and rejected one below the other, with the tokens that count marked.

── pair 17 of 6,400 · hallucination_penalty · reasoning on · maths-7/no_tools/on/call/3-0 ──
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.text import Text

from posttrain.artifacts import Manifest
from posttrain.preview.marked import Decode, marked_text


def preview_pairs(
    console: Console,
    path: Path,
    manifest: Manifest,
    decode: Decode,
    *,
    rows: int,
    seed: int,
    limit: int | None,
) -> None:
    """Print some pairs, drawn by the seed.

    Args:
        rows: pairs to show.
        limit: tokens shown of each text; `None` shows all.
    """
    shards = sorted(
        (f for f in manifest.files if f.path.startswith("pairs/train-")), key=lambda f: f.path
    )
    total = sum(f.rows or 0 for f in shards)
    drawn = set(random.Random(seed).sample(range(total), min(rows, total)))
    console.print(Text(f"{len(drawn)} of {total:,} pairs", "bold"))
    first = 0
    for shard in shards:
        here = sorted(n - first for n in drawn if first <= n < first + (shard.rows or 0))
        table = pq.read_table(path / shard.path) if here else None
        for local in here:
            assert table is not None
            row = table.slice(local, 1).to_pylist()[0]
            _print_pair(console, row, first + local, total, decode, limit)
        first += shard.rows or 0


def _print_pair(
    console: Console,
    row: dict[str, Any],
    number: int,
    total: int,
    decode: Decode,
    limit: int | None,
) -> None:
    colour = console.is_terminal and not console.no_color
    mode = "on" if row["thinking"] else "off"
    parts = [f"pair {number} of {total:,}", row["category"], f"reasoning {mode}", row["id"]]
    console.print(Text(f"── {' · '.join(parts)} ──", "bold cyan"))
    prompt = row["prompt_ids"]
    console.print(marked_text(prompt, [False] * len(prompt), decode, colour=colour, limit=limit))
    for side in ("chosen", "rejected"):
        score, mask = row[f"{side}_score"], row[f"{side}_mask"]
        graded = "" if score is None else f", score {score:g}"
        calls = f", {row[f'{side}_calls']} calls" if row[f"{side}_calls"] else ""
        console.print(
            Text(f"{side}: {len(mask):,} tokens, {sum(mask):,} in the loss{graded}{calls}", "bold")
        )
        console.print(marked_text(row[f"{side}_ids"], mask, decode, colour=colour, limit=limit))
