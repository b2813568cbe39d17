"""Near-deduplication on real sets: copies that it finds, records that it merges, and its cost.

    python -m benchmarks deduplication --data ../shared/data [--half 1] [--each 200]
    python -m benchmarks deduplication --data ../shared/data --rows 200_000 1_600_000

Copies of records are planted, of every other row of each set (`--half`): with a share of all words
or characters edited, in another layout with other ids, or with a closing sentence. Where datasketch
is installed its standard MinHash-LSH sees the same plants. Then sets of distinct records that look
alike, and with `--rows` the search over synthetic columns of so many records.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import resource
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.options import add_sets
from data_builders.dedup.columns import BANDS, DedupColumns, column_batch
from data_builders.dedup.duplicates import REASONS, find_duplicates
from data_builders.keyed import shuffled_keys
from data_builders.rows.read import read_examples
from posttrain.config.load import validate
from posttrain.config.overlap import DeduplicationConfig, NearConfig
from posttrain.config.source import SourceConfig
from posttrain.records import Example, Message, make_example
from tests.data_builders.dedup.copies import (
    chat,
    deduplicate,
    edited,
    edited_characters,
    sentence,
    with_edits,
)

NEAR = DeduplicationConfig(near=NearConfig())
SETS: dict[str, dict[str, Any]] = {
    "gsm8k": {
        "dialect": "prompt_completion",
        "path": "gsm8k_train.jsonl",
        "fields": {"prompt": "question", "completion": "answer"},
    },
    "alpaca_en": {"path": "lf_alpaca_en.jsonl"},
    "alpaca_zh": {"path": "lf_alpaca_zh.jsonl"},
    "glaive": {"path": "lf_glaive_toolcall_en.jsonl"},
    "traces": {"path": ["reasoning_ma_content.jsonl", "reasoning_ma_inline.jsonl"]},
    "sgd": {"path": "sgd_openai_tools.jsonl"},
    "tau": {"path": "tau_bench_airline.jsonl"},
    "toolset": {"path": "toolset_tools.jsonl", "filters": {"undeclared_tools": False}},
    "reasoning_gym": {
        "dialect": "prompt_completion",
        "path": "reasoning_gym_graded.jsonl",
        "fields": {"prompt": "question", "completion": "expected_answer"},
    },
}
CLOSING = "I hope this helps; let me know if you have any other questions."
REFUSAL = """I am sorry, but I am not able to help with this request as it stands. I can offer
general information on the subject, point to public sources that treat it, or help you to put the
question in another way. Please tell me which of these you would like me to do."""


def add_arguments(parser: ArgumentParser) -> None:
    add_sets(parser)
    parser.add_argument("--each", type=int, default=200, help="copies planted in each set")
    parser.add_argument("--rows", type=int, nargs="*", default=(), help="time the search alone")


def main(options: Namespace) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        if options.rows:
            for rows in options.rows:
                measure_search(rows, Path(scratch))
            return
        sets = sets_in(options.data)
        find_copies(sets, options.half, options.each, Path(scratch))
        merge_look_alikes(sets, Path(scratch))
        measure_speed(sets)


def sets_in(folder: Path) -> dict[str, list[Example]]:
    """Read the sets as conversations; rows that cannot be read so are left out."""
    sets: dict[str, list[Example]] = {}
    for name, keys in SETS.items():
        source = validate({"name": name, **keys}, SourceConfig, where="benchmark")
        sets[name] = [e for e in read_examples(source, folder) if isinstance(e, Example)]
    return sets


def find_copies(sets: dict[str, list[Example]], half: int, count: int, scratch: Path) -> None:
    """Print the share of planted copies that is dropped, by set and kind of copy.

    Args:
        half: 0 for copies of even rows, 1 of odd ones.
        count: copies in each set.
    """
    rng = random.Random(half)
    kinds: dict[str, Callable[[Example], Example]] = {}
    for share in (0.01, 0.03, 0.05, 0.1):
        kinds[f"{share:.0%} words"] = lambda e, s=share: with_edits(e, lambda t: edited(t, s, rng))
    for share in (0.01, 0.03, 0.05, 0.1):
        kinds[f"{share:.0%} characters"] = lambda e, s=share: with_edits(
            e, lambda t: edited_characters(t, s, rng)
        )
    kinds["layout and ids"] = lambda e: with_other_layout(e, rng)
    kinds["closing sentence"] = with_closing_sentence
    print(f"| set | copies | {' | '.join(kinds)} |\n|{'---|' * (2 + len(kinds))}")
    for name, examples in sets.items():
        half_examples = examples[half::2]
        chosen = rng.sample(half_examples, min(count, len(half_examples)))
        our_shares: list[str] = []
        datasketch_shares: list[str] = []
        for change in kinds.values():
            copies = [change(example) for example in chosen]
            drops = deduplicate({"first": chosen, "copies": copies}, NEAR, scratch)
            # rows are numbered over both: copies come behind the chosen
            dropped_copies = sum(row >= len(chosen) for row in drops.row.tolist())
            our_shares.append(f"{dropped_copies / len(chosen):.2f}")
            datasketch_shares.append(datasketch_share(chosen, copies))
        print(f"| {name} | {len(chosen)} | {' | '.join(our_shares)} |", flush=True)
        print(f"| datasketch | | {' | '.join(datasketch_shares)} |", flush=True)


def with_other_layout(example: Example, rng: random.Random) -> Example:
    """Copy with other white space and ids, indented JSON, no tools and another system text."""
    messages = [Message("system", "You are a careful and friendly assistant.")]
    for m in example.messages:
        calls = tuple(
            replace(c, arguments=indented(c.arguments), id=f"x{rng.randrange(10**9)}")
            for c in m.tool_calls
        )
        text = "".join(rng.choice((" ", "  ", " \n")) if c.isspace() else c for c in m.content)
        if m.role != "system":
            messages.append(replace(m, content=text, tool_calls=calls))
    return make_example(messages, source="copies", dialect="other")


def indented(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=3, ensure_ascii=False)
    except ValueError:
        return text


def with_closing_sentence(example: Example) -> Example:
    *messages, last = example.messages
    last = replace(last, content=f"{last.content} {CLOSING}")
    return make_example((*messages, last), tools=example.tools, source="copies", dialect="openai")


def datasketch_share(chosen: Sequence[Example], copies: Sequence[Example]) -> str:
    """Share of the copies that datasketch finds, or "-" where it is not installed.

    Words are those of `str.split`, in 5-grams, with 128 permutations and a threshold of 0.8.
    """
    try:
        from datasketch import MinHash, MinHashLSH  # pyright: ignore[reportMissingImports]
    except ImportError:
        return "-"

    def sketch(example: Example) -> Any:
        turns = [m for m in example.messages if m.role != "system"]
        words = " ".join(t for m in turns for t in (m.content, m.reasoning or "")).lower().split()
        grams = {" ".join(words[k : k + 5]) for k in range(max(len(words) - 4, 1))}
        minhash = MinHash(num_perm=128)
        minhash.update_batch([gram.encode("utf-8", "surrogatepass") for gram in grams])
        return minhash

    index = MinHashLSH(threshold=0.8, num_perm=128)
    for k, example in enumerate(chosen):
        index.insert(k, sketch(example))
    hits = sum(k in index.query(sketch(example)) for k, example in enumerate(copies))
    return f"{hits / len(chosen):.2f}"


def merge_look_alikes(sets: dict[str, list[Example]], scratch: Path) -> None:
    """Print how many distinct records that have much in common are dropped as near-duplicates."""
    rng = random.Random(5)
    passages = [sentence(rng, 400) for _ in range(10)]
    words = sorted(set(sentence(rng, 3000).replace(".", "").split()))
    texts: dict[str, list[tuple[str, str]]] = {
        "gsm8k, one answer to all": [(e.messages[0].content, REFUSAL) for e in sets["gsm8k"]],
        "alpaca_en, one answer to all": [
            (e.messages[0].content, REFUSAL) for e in sets["alpaca_en"]
        ],
        "one refusal of short questions": [
            (f"What does the word {word} mean?", REFUSAL) for word in words
        ],
        "30 questions about each of 10 passages": [
            (f"{p}\n{sentence(rng, 12)}", sentence(rng, 15)) for p in passages for _ in range(30)
        ],
        "the same, answered yes or no": [
            (f"{p}\n{sentence(rng, 12)}", rng.choice(("Yes.", "No.")))
            for p in passages
            for _ in range(30)
        ],
        "What is a+b?": [(f"What is {a}+{b}?", str(a + b)) for a in range(40) for b in range(40)],
    }
    look_alikes: dict[str, list[Example]] = {}
    for name, pairs in texts.items():
        look_alikes[name] = [chat(*pair) for pair in pairs]
    print("\n| distinct records | | dropped as near-duplicates |\n|---|---|---|")
    for name, examples in {**sets, **look_alikes}.items():
        drops = deduplicate({"a": examples}, NEAR, scratch)
        near_duplicates = int((drops.reason == REASONS.index("near_duplicate")).sum())
        distinct = len(examples) - len(drops.row) + near_duplicates
        print(f"| {name} | {distinct:,} | {near_duplicates} |", flush=True)


def measure_speed(sets: dict[str, list[Example]]) -> None:
    """Print records a CPU second that workers compute columns of, and the columns' bytes."""
    print("\n| set | exact, records/s | with near | MB/s | bytes a record |\n|---|---|---|---|---|")
    for name, examples in sets.items():
        exact_seconds, _ = _column_cost(examples, near=False)
        near_seconds, column_bytes = _column_cost(examples, near=True)
        print(
            f"| {name} | {len(examples) / exact_seconds:,.0f} "
            f"| {len(examples) / near_seconds:,.0f} "
            f"| {text_characters(examples) / near_seconds / 1e6:.1f} "
            f"| {column_bytes / len(examples):,.0f} |",
            flush=True,
        )


def _column_cost(examples: Sequence[Example], *, near: bool) -> tuple[float, int]:
    """CPU seconds to compute the columns of examples, and bytes of the columns."""
    started = time.process_time()
    batches = [
        column_batch(examples[k : k + 128], None, near=near) for k in range(0, len(examples), 128)
    ]
    seconds = time.process_time() - started
    return seconds, sum(rows.nbytes + len(grams) for rows, grams in batches)


def text_characters(examples: Sequence[Example]) -> int:
    """Characters of all messages and traces."""
    total = 0
    for example in examples:
        total += sum(len(m.content) + len(m.reasoning or "") for m in example.messages)
    return total


def measure_search(rows: int, scratch: Path) -> None:
    """Time the search over columns of so many records, one in fifty with a near-duplicate."""
    folder = scratch / f"{rows}"
    # in a process of its own: the peak memory below is then that of the search
    writer = multiprocessing.get_context("fork").Process(
        target=write_synthetic_columns, args=(rows, folder)
    )
    writer.start()
    writer.join()
    started = time.process_time()
    drops = find_duplicates(DedupColumns([folder]), {"synthetic": rows}, NEAR)
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{rows:,} records: {len(drops.row):,} dropped, {seconds:.1f} CPU s, peak memory of the "
        f"process {peak:,.0f} MB, pages of the columns among them",
        flush=True,
    )


def write_synthetic_columns(rows: int, folder: Path) -> None:
    """Write columns of so many records, of which the last fiftieth repeats the first."""
    rng = random.Random(0)
    pattern = [chat(sentence(rng, 20), sentence(rng, 60)) for _ in range(1000)]
    pattern_rows, grams = column_batch(pattern, None, near=True)
    folder.mkdir()
    row = np.arange(rows, dtype=np.uint64)
    text = row % np.uint64(rows - rows // 50)
    columns = pattern_rows[text % np.uint64(len(pattern))]
    for salt, name in enumerate(("conversation", "prompt", "id64", "rest64")):
        columns[name] = shuffled_keys(row, salt)
    keys = text[:, None] * np.uint64(BANDS) + np.arange(BANDS, dtype=np.uint64)
    columns["bands"] = (shuffled_keys(keys, 9) >> np.uint64(32)).astype(np.uint32)
    columns.tofile(folder / "dedup.bin")
    (folder / "dedup_shingles.bin").write_bytes(grams)
