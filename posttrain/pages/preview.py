"""Sections of any artifact for the console: lineage, counts, figures, and rows with their masks.

── pack 17 · sequence 3 of 28 · maths · reasoning on · turn 0 · epoch 1 · 212 tokens, 180 trained ──
<|im_start|>user⏎2+2?<|im_end|>⏎<|im_start|>assistant⏎【4<|im_end|>⏎】
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from posttrain.lineage import Node, trace
from posttrain.pages.artifact import ancestry, count_sections, details
from posttrain.pages.write import figures
from posttrain.report import section as ui
from posttrain.runs import REPORT
from posttrain.tokens.encode import IGNORED

Decode = Callable[[Sequence[int]], str]
_FILES_SHOWN = 12
_SEQUENCES_SHOWN = 6
_PARTIAL = "\N{REPLACEMENT CHARACTER}"
_SHOWN_KEYS = ("reasoning_content", "content", "tool_calls")


def artifact_sections(path: Path) -> Iterator[ui.Section]:
    """Lineage of an artifact, its counts, and the tables of its own page."""
    nodes = trace(path)
    missing = [f"{node.name}: {node.missing}" for node in nodes if node.manifest is None]
    yield ui.Section(f"{nodes[0].kind} {path}", [ancestry(nodes), *missing])
    yield from count_sections(nodes[0])
    yield from figures(nodes[0])
    report = path / REPORT
    if report.is_file():
        yield ui.Section("Config, versions, files, charts", [report.as_posix()])
    else:
        yield ui.Section("Config", [details(nodes[0], _FILES_SHOWN)])


def pack_section(
    root: Node, decode: Decode, *, rows: int, seed: int, limit: int | None, split: str = "train"
) -> ui.Section:
    """Section of some packs of an SFT data set, chosen by the seed.

    Args:
        limit: tokens that are shown of each sequence; None: all.
    """
    blocks: list[ui.Block] = []
    sample, total = _sample_rows(root, f"packed/{split}-", rows, seed)
    for shard, number, shard_row in sample:
        with pa.memory_map(str(root.path / shard)) as source:
            (pack,) = pa.ipc.open_stream(source).read_all().slice(shard_row, 1).to_pylist()
        index_file = shard.replace("packed/", "index/").replace(".arrow", ".parquet")
        of_pack = [("pack", "==", number)]
        index = pq.read_table(root.path / index_file, filters=of_pack).to_pylist()
        blocks += _pack_blocks(pack, index, decode, limit)
    return ui.Section(f"{len(sample)} of {total:,} {split} packs", blocks)


def _sample_rows(
    root: Node, prefix: str, rows: int, seed: int
) -> tuple[list[tuple[str, int, int]], int]:
    """Choose rows of the shards whose path begins with `prefix`.

    Returns:
        Shard, number in the data set and number in the shard of each row; and the rows in all.
    """
    files = [file for file in root.artifact.files if file.path.startswith(prefix)]
    total = sum(file.rows or 0 for file in files)
    numbers = sorted(random.Random(seed).sample(range(total), min(rows, total)))
    sample: list[tuple[str, int, int]] = []
    start = 0
    for file in sorted(files, key=lambda file: file.path):
        end = start + (file.rows or 0)
        for number in numbers:
            if start <= number < end:
                sample.append((file.path, number, number - start))
        start = end
    return sample, total


def _pack_blocks(
    pack: dict[str, Any], index: list[dict[str, Any]], decode: Decode, limit: int | None
) -> Iterator[ui.Block]:
    """Title of each sequence of a pack, with the text of the first ones.

    Args:
        index: row of each sequence of the pack in the data set's index.
    """
    for number, row in enumerate(index, start=1):
        reasoning = f"reasoning {row['reasoning']}"
        if row["truncated_budget"] is not None:
            reasoning += f" cut to {row['truncated_budget']}"
        title = [
            f"pack {row['pack']}",
            f"sequence {number} of {len(index)}",
            row["source"],
            reasoning,
            f"turn {row['turn']}",
            f"epoch {row['epoch']}",
            f"{row['length']:,} tokens, {row['trained']:,} trained",
            row["license"],
            row["record_id"],
        ]
        span = slice(row["offset"], row["offset"] + row["length"])
        trained = [label != IGNORED for label in pack["labels"][span]]
        content: list[ui.Block] = []
        if number <= _SEQUENCES_SHOWN:
            words = marked_words(pack["input_ids"][span], trained, decode, limit)
            content.append(ui.Dialogue(words))
        yield ui.Fold(" · ".join(title), content)
    if len(index) > _SEQUENCES_SHOWN:
        yield f"(text of the first {_SEQUENCES_SHOWN} sequences shown)"


def pair_section(
    root: Node, decode: Decode, *, rows: int, seed: int, limit: int | None
) -> ui.Section:
    """Section of some preference pairs, chosen by the seed; the tokens in the loss are marked.

    Args:
        limit: tokens that are shown of each text; None: all.
    """
    blocks: list[ui.Block] = []
    sample, total = _sample_rows(root, "pairs/train-", rows, seed)
    for shard, number, shard_row in sample:
        (row,) = pq.read_table(root.path / shard).slice(shard_row, 1).to_pylist()
        reasoning = ui.on_off(row["thinking"])
        title = f"pair {number} of {total:,} · {row['category']} · reasoning {reasoning}"
        blocks.append(ui.Fold(f"{title} · {row['id']}", [*_pair_blocks(row, decode, limit)]))
    return ui.Section(f"{len(sample)} of {total:,} pairs", blocks)


def _pair_blocks(row: dict[str, Any], decode: Decode, limit: int | None) -> Iterator[ui.Block]:
    """Prompt of a pair, and each side under a heading, with the tokens in the loss marked."""
    prompt = row["prompt_ids"]
    yield ui.Dialogue(marked_words(prompt, [False] * len(prompt), decode, limit))
    for side in ("chosen", "rejected"):
        trained = row[f"{side}_mask"]
        score = row[f"{side}_score"]
        calls = row[f"{side}_calls"]
        heading = f"{side}: {len(trained):,} tokens, {sum(trained):,} in the loss"
        if score is not None:
            heading += f", score {score:g}"
        if calls:
            heading += f", {calls} calls"
        yield (ui.Styled(heading, "bold"),)
        yield ui.Dialogue(marked_words(row[f"{side}_ids"], trained, decode, limit))


def row_sections(root: Node, *, rows: int, seed: int, limit: int | None) -> Iterator[ui.Section]:
    """Sections of some rows of each JSON Lines file, chosen by the seed.

    Args:
        limit: characters that are shown of each text; None: all.
    """
    for file in root.artifact.files:
        if not file.path.endswith(".jsonl"):
            continue
        total = file.rows or 0
        rng = random.Random(f"{seed} {file.path}")
        numbers = set(rng.sample(range(total), min(rows, total)))
        blocks: list[ui.Block] = []
        with (root.path / file.path).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                if number in numbers:
                    words = _row_words(json.loads(line), limit)
                    blocks.append(ui.Fold(f"row {number}", [ui.Dialogue(words)]))
        yield ui.Section(f"{file.path}: {len(numbers)} of {total:,} rows", blocks)


def _row_words(row: dict[str, Any], limit: int | None) -> list[str | ui.Styled]:
    """Messages of a row one by one, then its other keys as JSON."""
    other_fields = dict(row)
    messages = other_fields.pop("messages", None)
    words: list[str | ui.Styled] = []
    for message in messages if isinstance(messages, list) else ():
        words.append(ui.Styled(f"[{message.get('role')}]\n", "bold"))
        for key in _SHOWN_KEYS:
            if message.get(key):
                words += [ui.Styled(f"{key}: ", "faint"), f"{_text(message[key], limit)}\n"]
    if other_fields:
        words.append(ui.Styled(_text(other_fields, limit), "faint"))
    return words


def _text(value: object, limit: int | None) -> str:
    """Text as it is, or any other value as JSON; shortened to `limit` characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if limit is None else ui.shortened(text, limit)


def marked_words(
    ids: Sequence[int], trained: Sequence[bool], decode: Decode, limit: int | None = None
) -> ui.Words:
    """Decode a sequence, a word for each token or shared character, the trained ones marked.

    Args:
        trained: mask of the trained tokens.
        limit: tokens at most, of the beginning and of the end; None: all.
    """
    spans = [(0, len(ids))]
    if limit is not None and len(ids) > limit:
        spans = [(0, limit // 2), (len(ids) - limit // 2, len(ids))]
    words: list[str | ui.Styled] = []
    for start, stop in spans:
        if start:
            words.append(ui.Styled(f" … {start - spans[0][1]:,} tokens … ", "faint"))
        pending: list[int] = []
        for position in range(start, stop):
            pending.append(ids[position])
            text = decode(pending)
            # several tokens may share a character, but never across an edge of the mask
            at_edge = position + 1 == stop or trained[position + 1] != trained[position]
            if at_edge or not text.endswith(_PARTIAL):
                words.append(ui.Styled(text, "mark" if trained[position] else ""))
                pending = []
    return words
