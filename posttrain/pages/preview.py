"""Look into any artifact on the console: lineage, counts, its figures, and rows with their masks.

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
from posttrain.pages.artifact import ancestry, counts, details
from posttrain.pages.write import figures
from posttrain.report import section as ui
from posttrain.runs import REPORT
from posttrain.tokens.encode import IGNORED

Decode = Callable[[Sequence[int]], str]
_FILES_SHOWN = 12
_SEQUENCES_SHOWN = 6
_PARTIAL = "\N{REPLACEMENT CHARACTER}"
_ROLE_KEYS = ("reasoning_content", "content", "tool_calls")


def artifact_sections(path: Path) -> Iterator[ui.Section]:
    """What an artifact is and was made from, its counts, and the tables of its own page."""
    nodes = trace(path)
    missing = [f"{node.name}: {node.missing}" for node in nodes if node.manifest is None]
    yield ui.Section(f"{nodes[0].kind} {path}", [ancestry(nodes), *missing])
    yield counts(nodes[0])
    yield from figures(nodes[0])  # rows are shown below
    report = path / REPORT
    if report.is_file():
        yield ui.Section("Config, versions, files, charts", [report.as_posix()])
    else:
        yield ui.Section("Config", [details(nodes[0], _FILES_SHOWN)])


def pack_section(
    root: Node, decode: Decode, *, rows: int, seed: int, limit: int | None, split: str = "train"
) -> ui.Section:
    """Some packs of an SFT data set, `limit` tokens of each sequence."""
    blocks: list[ui.Block] = []
    chosen, total = _chosen(root, f"packed/{split}-", rows, seed)
    for shard, number, place in chosen:
        with pa.memory_map(str(root.path / shard)) as source:
            (pack,) = pa.ipc.open_stream(source).read_all().slice(place, 1).to_pylist()
        name = shard.replace("packed/", "index/").replace(".arrow", ".parquet")
        index = pq.read_table(root.path / name, filters=[("pack", "==", number)]).to_pylist()
        blocks += _pack(pack, index, decode, limit)
    return ui.Section(f"{len(chosen)} of {total:,} {split} packs", blocks)


def _chosen(
    root: Node, prefix: str, rows: int, seed: int
) -> tuple[list[tuple[str, int, int]], int]:
    """Chosen rows of the shards, each with its shard, its number and its place there; the total."""
    files = [file for file in root.artifact.files if file.path.startswith(prefix)]
    total = sum(file.rows or 0 for file in files)
    wanted = sorted(random.Random(seed).sample(range(total), min(rows, total)))
    found: list[tuple[str, int, int]] = []
    first = 0
    for file in sorted(files, key=lambda file: file.path):
        end = first + (file.rows or 0)
        found += [(file.path, row, row - first) for row in wanted if first <= row < end]
        first = end
    return found, total


def _pack(
    pack: dict[str, Any], index: list[dict[str, Any]], decode: Decode, limit: int | None
) -> Iterator[ui.Block]:
    for number, row in enumerate(index, start=1):
        budget = row["truncated_budget"]
        title = [
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
        own = slice(row["offset"], row["offset"] + row["length"])
        mask = [label != IGNORED for label in pack["labels"][own]]
        words = marked_words(pack["input_ids"][own], mask, decode, limit)
        yield ui.Fold(" · ".join(title), [ui.Dialogue(words)] if number <= _SEQUENCES_SHOWN else [])
    if len(index) > _SEQUENCES_SHOWN:
        yield f"(text of the first {_SEQUENCES_SHOWN} sequences shown)"


def pair_section(
    root: Node, decode: Decode, *, rows: int, seed: int, limit: int | None
) -> ui.Section:
    """Some preference pairs, chosen by the seed; the tokens in the loss are marked."""
    blocks: list[ui.Block] = []
    chosen, total = _chosen(root, "pairs/train-", rows, seed)
    for shard, number, place in chosen:
        (row,) = pq.read_table(root.path / shard).slice(place, 1).to_pylist()
        about = f"pair {number} of {total:,} · {row['category']} · "
        about += f"reasoning {ui.on_off(row['thinking'])} · {row['id']}"
        blocks.append(ui.Fold(about, [*_sides(row, decode, limit)]))
    return ui.Section(f"{len(chosen)} of {total:,} pairs", blocks)


def _sides(row: dict[str, Any], decode: Decode, limit: int | None) -> Iterator[ui.Block]:
    prompt = row["prompt_ids"]
    yield ui.Dialogue(marked_words(prompt, [False] * len(prompt), decode, limit))
    for side in ("chosen", "rejected"):
        score, mask, calls = row[f"{side}_score"], row[f"{side}_mask"], row[f"{side}_calls"]
        about = f"{side}: {len(mask):,} tokens, {sum(mask):,} in the loss"
        about += "" if score is None else f", score {score:g}"
        about += f", {calls} calls" if calls else ""
        yield (ui.Styled(about, "bold"),)
        yield ui.Dialogue(marked_words(row[f"{side}_ids"], mask, decode, limit))


def row_sections(root: Node, *, rows: int, seed: int, limit: int | None) -> Iterator[ui.Section]:
    """Some rows of every JSON Lines file, chosen by the seed; `limit` characters a text."""
    for file in root.artifact.files:
        if file.path.endswith(".jsonl"):
            count = file.rows or 0
            number = random.Random(f"{seed} {file.path}")
            wanted = set(number.sample(range(count), min(rows, count)))
            with (root.path / file.path).open(encoding="utf-8") as lines:
                shown = [(n, json.loads(line)) for n, line in enumerate(lines) if n in wanted]
            words = {f"row {n}": _row_words(row, limit) for n, row in shown}
            blocks = [ui.Fold(name, [ui.Dialogue(own)]) for name, own in words.items()]
            yield ui.Section(f"{file.path}: {len(wanted)} of {count:,} rows", blocks)


def _row_words(row: dict[str, Any], limit: int | None) -> list[str | ui.Styled]:
    rest = dict(row)
    messages = rest.pop("messages", None)
    words: list[str | ui.Styled] = []
    for message in messages if isinstance(messages, list) else ():
        words.append(ui.Styled(f"[{message.get('role')}]\n", "bold"))
        for key in _ROLE_KEYS:
            if message.get(key):
                words += [ui.Styled(f"{key}: ", "faint"), f"{_shown(message[key], limit)}\n"]
    return [*words, ui.Styled(_shown(rest, limit), "faint")] if rest else words


def _shown(value: object, limit: int | None) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if limit is None else ui.shortened(text, limit)


def marked_words(
    ids: Sequence[int], trained: Sequence[bool], decode: Decode, limit: int | None = None
) -> ui.Words:
    """A sequence as text, a part for every token or shared character, the trained ones marked.

    With a limit, as many tokens at most, of the beginning and of the end.
    """
    spans = [(0, len(ids))]
    if limit is not None and len(ids) > limit:
        spans = [(0, limit // 2), (len(ids) - limit // 2, len(ids))]
    words: list[str | ui.Styled] = []
    for start, stop in spans:
        if start:
            words.append(ui.Styled(f" … {start - spans[0][1]:,} tokens … ", "faint"))
        waiting: list[int] = []
        for place in range(start, stop):
            waiting.append(ids[place])
            text = decode(waiting)
            # a character may be shared by several tokens, but never by both sides of the mask
            last = place + 1 == stop or trained[place + 1] != trained[place]
            if last or not text.endswith(_PARTIAL):
                words.append(ui.Styled(text, "mark" if trained[place] else ""))
                waiting = []
    return words
