"""What each filter of texts costs: rows a second and CPU seconds a million tokens, one thread.

A part of `benchmarks/filters.py`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from data_builders.filters.drop import Drop
from data_builders.filters.screen import Screen, text_parts
from data_builders.filters.structure import structural_drop
from data_builders.rows.examples import read_examples
from posttrain.config.filters import Filters, StructuralFilters
from posttrain.config.load import validate
from posttrain.config.source import SourceConfig
from posttrain.records import Example
from posttrain.tokens.tokenizer import encoder_of, load_any_tokenizer

ROOT = Path(__file__).resolve().parents[1]
LISTS = ROOT / "recipes" / "nemotron-3-nano"
ROWS = 2532  # of GSM8K
BATCH = 256  # rows screened together
OFF: dict[str, Any] = {"repetition": None}
FILTERS: dict[str, dict[str, Any]] = {
    "repetition": {},
    "narratives (the example list)": {**OFF, "narratives": str(LISTS / "narratives.yaml")},
    "untranslated (the example list)": {**OFF, "untranslated": str(LISTS / "untranslated.yaml")},
    "language": {**OFF, "language": {"allowed": ["en"]}},
    "copied": {**OFF, "copied": {}},
    "truncated at 16,384 and 32,768": {**OFF, "truncated": {"tokens": [16384, 32768]}},
    "length in turns": {**OFF, "length": {"max_turns": 20}},
}


def costs(shared: Path, repeats: int) -> Iterator[str]:
    """A table: each filter alone, over long traces and short answers."""
    rows = list(_rows(shared))
    tokenizer = load_any_tokenizer(str(shared / "tokenizers" / "cl100k_chatml"), revision=None)
    encode = encoder_of(tokenizer, backend="auto", probes=()).encode
    tokens = sum(map(len, encode([text.text for row in rows for text in text_parts(row)])))
    yield (
        f"{len(rows):,} rows, {tokens / 1e6:.2f} M tokens of traces and answers (all of "
        f"`reasoning_ma_content` that can be read, {ROWS:,} of `gsm8k_train`)."
    )
    yield ""
    yield "| filter | dropped | rows/s | CPU s a M tokens |"
    yield "|---|---|---|---|"
    for name, filters in FILTERS.items():
        screen = Screen(validate(filters, Filters, where="benchmark"), encode)
        batches = [rows[at : at + BATCH] for at in range(0, len(rows), BATCH)]
        yield _line(
            name, rows, tokens, repeats, lambda s=screen, b=batches: [d for x in b for d in s(x)]
        )
    switches = StructuralFilters()

    def structure() -> list[Drop | None]:
        return [structural_drop(row, switches) for row in rows]

    yield _line("structural checks", rows, tokens, repeats, structure)
    texts = [text.text for row in rows for text in text_parts(row)]

    def tokenise() -> list[Drop | None]:
        encode(texts)
        return []

    yield _line("(tokenising the same)", rows, tokens, repeats, tokenise)


def _line(
    name: str,
    rows: Sequence[Example],
    tokens: int,
    repeats: int,
    run: Callable[[], list[Drop | None]],
) -> str:
    seconds, drops = float("inf"), list[Drop | None]()
    for _ in range(repeats):
        start = time.process_time()
        drops = run()
        seconds = min(seconds, time.process_time() - start)
    dropped = sum(drop is not None for drop in drops)
    return f"| {name} | {dropped} | {len(rows) / seconds:,.0f} | {seconds / (tokens / 1e6):.3f} |"


def _rows(shared: Path) -> Iterator[Example]:
    sources: list[dict[str, Any]] = [
        {"name": "traces", "path": "reasoning_ma_content.jsonl"},
        {
            "name": "gsm8k",
            "path": "gsm8k_train.jsonl",
            "dialect": "prompt_completion",
            "fields": {"prompt": "question", "completion": "answer"},
        },
    ]
    for source in sources:
        config = validate(source, SourceConfig, where="benchmark")
        read = (e for e in read_examples(config, shared / "data") if isinstance(e, Example))
        yield from itertools.islice(read, ROWS)
