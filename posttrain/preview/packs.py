"""Packs of an SFT data set, sequence by sequence, with record, source, mode and mask.

── pack 17 · sequence 3 of 28 · maths · on · epoch 1 · 212 tokens, 180 trained · 5f0c… ──
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.text import Text

from posttrain.artifacts import Manifest
from posttrain.preview.marked import Decode, marked_text

_SEQUENCES_SHOWN = 6
_IGNORED = -100


def preview_packs(
    console: Console,
    path: Path,
    manifest: Manifest,
    decode: Decode,
    *,
    rows: int,
    seed: int,
    limit: int | None,
    split: str = "train",
) -> None:
    """Print some packs of a split, drawn by the seed.

    Args:
        rows: packs to show.
        limit: tokens shown of each sequence; `None` shows all.
    """
    shards = sorted(
        (f for f in manifest.files if f.path.startswith(f"packed/{split}-")), key=lambda f: f.path
    )
    total = sum(f.rows or 0 for f in shards)
    drawn = set(random.Random(seed).sample(range(total), min(rows, total)))
    console.print(Text(f"{len(drawn)} of {total:,} {split} packs", "bold"))
    first = 0
    for shard in shards:
        here = sorted(p - first for p in drawn if first <= p < first + (shard.rows or 0))
        if here:
            with pa.memory_map(str(path / shard.path)) as source:
                table = pa.ipc.open_stream(source).read_all()
            index_name = shard.path.replace("packed/", "index/").replace(".arrow", ".parquet")
            numbers = [first + local for local in here]
            index = pq.read_table(path / index_name, filters=[("pack", "in", numbers)]).to_pylist()
            for local in here:
                of_pack = [row for row in index if row["pack"] == first + local]
                _print_pack(console, table.slice(local, 1).to_pylist()[0], of_pack, decode, limit)
        first += shard.rows or 0


def _print_pack(
    console: Console,
    pack: dict[str, Any],
    index: list[dict[str, Any]],
    decode: Decode,
    limit: int | None,
) -> None:
    colour = console.is_terminal and not console.no_color
    for number, row in enumerate(index, start=1):
        budget = row["truncated_budget"]
        parts = [
            f"pack {row['pack']}",
            f"sequence {number} of {len(index)}",
            row["source"],
            f"reasoning {row['reasoning']}" + (f" cut to {budget}" if budget is not None else ""),
            f"turn {row['turn']}",
            f"epoch {row['epoch']}",
            f"{row['length']:,} tokens, {row['trained']:,} trained",
            row["license"],
            row["record_id"],
        ]
        console.print(Text(f"── {' · '.join(parts)} ──", "bold cyan"))
        if number > _SEQUENCES_SHOWN:
            continue
        start, stop = row["offset"], row["offset"] + row["length"]
        mask = [label != _IGNORED for label in pack["labels"][start:stop]]
        ids = pack["input_ids"][start:stop]
        console.print(marked_text(ids, mask, decode, colour=colour, limit=limit))
    if len(index) > _SEQUENCES_SHOWN:
        console.print(Text(f"(text of the first {_SEQUENCES_SHOWN} sequences shown)", "dim"))
