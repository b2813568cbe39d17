"""Growth of rendering, tokenising and masking with the turns of a conversation.

    python benchmarks/sft_turns.py --tokenizer runs/tiny/world/tokenizer rows.jsonl

The same questions and answers, each with a trace, as conversations of 1 to 32 turns. A template
drops the traces of earlier turns, so every turn is a sequence of its own that repeats all before
it: `copying` puts those together from pieces that were tokenised once. CPU seconds of one thread,
the best of `--repeats`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_builders.sft.part import BATCH_ROWS
from posttrain.chat import training_samples
from posttrain.config.build_sft import SftTokenizer
from posttrain.records import Example, Message, make_example
from posttrain.tokens.encode import distinct_texts, encode_samples
from posttrain.tokens.renderer import DataRenderer, load_data_renderer

TURNS = (1, 2, 4, 8, 16, 32)
_LONGEST = 4000  # characters of an exchange: long ones would drown what is measured


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of rendering and copying, and the sequences and tokens that came of them."""

    rendering: float
    copying: float
    sequences: int
    emitted: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("rows", type=Path, help="JSON lines with `messages`")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--backend", choices=["tiktoken", "tokenizers", "auto"], default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    tokenizer = SftTokenizer(path=options.tokenizer, chat_template="nemotron_3_nano")
    renderer = load_data_renderer(tokenizer, backend=options.backend)
    pairs = exchanges(options.rows)
    pairs = pairs[: len(pairs) // max(TURNS) * max(TURNS)]
    print(f"{2 * len(pairs):,} messages in all, {renderer.encoder.name}:\n")
    print(
        "| turns | sequences | µs to render and tokenise a message | ÷ 1 turn | tokens emitted "
        "| ns to copy a token |"
    )
    print("|---|---|---|---|---|---|")
    costs = {turns: measured(conversations(pairs, turns), renderer) for turns in TURNS}
    for _ in range(options.repeats - 1):
        for turns, cost in costs.items():
            costs[turns] = cheapest(cost, measured(conversations(pairs, turns), renderer))
    for turns, cost in costs.items():
        print(
            f"| {turns} | {cost.sequences:,} | {cost.rendering / len(pairs) / 2 * 1e6:.1f} "
            f"| {cost.rendering / costs[1].rendering:.2f} | {cost.emitted:,} "
            f"| {cost.copying / cost.emitted * 1e9:.1f} |"
        )


def exchanges(path: Path) -> list[tuple[Message, Message]]:
    """Question and answer of each row; without a trace, all but the last line becomes one."""
    pairs: list[tuple[Message, Message]] = []
    for line in path.read_text("utf-8").splitlines():
        messages: list[dict[str, Any]] = json.loads(line)["messages"]
        question = next(m["content"] for m in messages if m["role"] == "user")
        trace = messages[-1].get("reasoning_content")
        content = messages[-1]["content"]
        if not trace:
            trace, _, content = content.rpartition("\n")
        if content.strip() and len(question) + len(content) + len(trace) <= _LONGEST:
            answer = Message("assistant", content, reasoning=trace or "So it is.")
            pairs.append((Message("user", question), answer))
    return pairs


def conversations(pairs: Sequence[tuple[Message, Message]], turns: int) -> list[Example]:
    """Conversations of `turns` exchanges each."""
    return [
        make_example(
            [message for pair in pairs[k : k + turns] for message in pair],
            source="turns",
            license="none",
            dialect="openai",
        )
        for k in range(0, len(pairs), turns)
    ]


def measured(examples: Sequence[Example], renderer: DataRenderer) -> Cost:
    """Cost of a pass over all conversations, in the batches of a build."""
    rendering = copying = 0.0
    sequences = emitted = 0
    for k in range(0, len(examples), BATCH_ROWS):
        batch = examples[k : k + BATCH_ROWS]
        start = time.process_time()
        samples: list[Any] = []
        for example in batch:
            samples += training_samples(example, renderer.template)
        texts = distinct_texts(samples)
        ids = dict(zip(texts, renderer.encode(texts), strict=True))
        rendered = time.process_time()
        encoded = encode_samples(samples, look_up_in(ids))
        copying += time.process_time() - rendered
        rendering += rendered - start
        sequences += len(encoded)
        emitted += sum(len(sequence.ids) for sequence in encoded)
    return Cost(rendering, copying, sequences, emitted)


def look_up_in(ids: dict[str, Any]) -> Callable[[Sequence[str]], list[Any]]:
    """Encoder that only looks up ids, so that copying is measured alone."""
    return lambda texts: [ids[text] for text in texts]


def cheapest(a: Cost, b: Cost) -> Cost:
    """Lower seconds of two runs, part by part."""
    return Cost(min(a.rendering, b.rendering), min(a.copying, b.copying), a.sequences, a.emitted)


if __name__ == "__main__":
    main()
