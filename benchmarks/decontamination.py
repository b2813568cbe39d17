"""Decontamination on real sets: planted evaluation items that it finds, and overlaps as they are.

    python -m benchmarks decontamination --data ../shared/data [--half 1] [--pairs]

Every MMLU question is planted as a multiple-choice prompt, in several layouts; items of other files
in a conversation: amid words, in other layout, with some words or all numbers replaced, in part.
Items are every other row of each file (`--half`). Then what of all items is in the sets as they
are, listed with `--pairs`, and the speed.
"""

from __future__ import annotations

import random
import re
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.deduplication import sets_in, text_characters
from benchmarks.options import add_sets
from data_builders.decontamination.items import Item, read_items
from data_builders.decontamination.match import Decontaminator
from data_builders.rows.raw import Drop
from posttrain.config.overlap import DecontaminationConfig, EvaluationFile
from tests.data_builders.dedup.copies import chat

MMLU = EvaluationFile(path="mmlu_dev_val.jsonl", fields=("question", "A", "B", "C", "D"))
FILES = (
    MMLU,
    EvaluationFile(path="mt_bench.jsonl", fields=("turns",)),
    EvaluationFile(path="humaneval.jsonl", fields=("prompt",)),
    EvaluationFile(path="ifeval.jsonl", fields=("prompt",)),
    EvaluationFile(path="bfcl_nonlive.jsonl", fields=("question",)),
    EvaluationFile(path="workbench_tasks.jsonl", fields=("query",)),
    EvaluationFile(path="gsm8k_train.jsonl", fields=("question",)),
)
# of the sets these are the items themselves
_ITEMS_TOO = ("gsm8k",)
_PLANTED = 500
_BATCH = 128  # records in one call, as in a build
LAYOUTS: dict[str, Callable[[Item], str]] = {
    "A. one": lambda item: f"Question: {item.text}\n{_labelled(item, '{}. {}')}\nAnswer:",
    "Options: (A) one": lambda item: (
        f"{item.text}\nOptions:\n{_labelled(item, '({}) {}')}\nLet's think step by step."
    ),
    "- one": lambda item: f"{item.text}\n" + "\n".join(f"- {o}" for o in item.options),
    "a) one, in one line": lambda item: f"{item.text} {_labelled(item, '{}) {}', ' ').lower()}",
    "JSON, reversed": lambda item: (
        f"Answer this: {{'question': {item.text!r}, 'choices': {list(item.options[::-1])!r}}}"
    ),
}


def add_arguments(parser: ArgumentParser) -> None:
    add_sets(parser)
    parser.add_argument("--pairs", action="store_true", help="list what is found unplanted")


def main(options: Namespace) -> None:
    find_multiple_choice(options.data)
    find_planted_items(options.data, options.half)
    find_overlaps(options.data, list_pairs=options.pairs)


def load(files: tuple[EvaluationFile, ...], data: Path) -> Decontaminator:
    return Decontaminator.load(DecontaminationConfig(files=files), data)


def found_share(decontaminator: Decontaminator, texts: list[str]) -> str:
    """Share of the texts, each a user's message, that are dropped."""
    drops = decontaminator.drops([chat(text, "I see.") for text in texts])
    return f"{sum(drop is not None for drop in drops) / max(len(texts), 1):.3f}"


def find_multiple_choice(data: Path) -> None:
    """Look for all questions in each layout, with and without their options under `fields`."""
    items: list[Item] = []
    for file in read_items(MMLU, data):
        items += file.items
    print(f"| {len(items):,} questions of MMLU | {' | '.join(LAYOUTS)} |\n|---|{'---|' * 5}")
    for fields in (("question", "A", "B", "C", "D"), (), ("question",)):
        decontaminator = load((MMLU.model_copy(update={"fields": fields}),), data)
        shares: list[str] = []
        for layout in LAYOUTS.values():
            shares.append(found_share(decontaminator, [layout(item) for item in items]))
        print(f"| fields: [{', '.join(fields)}] | {' | '.join(shares)} |", flush=True)


def _labelled(item: Item, form: str, between: str = "\n") -> str:
    return between.join(form.format(*pair) for pair in zip("ABCDEF", item.options, strict=False))


def find_planted_items(data: Path, half: int) -> None:
    """Print the share of items hidden in conversations that are found."""
    rng = random.Random(half)
    forms: dict[str, Callable[[str], str]] = {
        "amid words": lambda text: f"Before we start: {text} Please think about it first.",
        "other layout": lambda t: "\n".join(re.sub(r"[\W_]+", " ", t).upper().split(" ")),
        **{
            f"{share:.0%} of words": lambda text, s=share: with_other_words(text, s, rng)
            for share in (0.05, 0.1, 0.15, 0.2, 0.3)
        },
        "all numbers": lambda text: re.sub(r"\d+", lambda _: str(rng.randrange(2, 999)), text),
        "first 70 %": lambda text: text[: round(0.7 * len(text))],
        "first 50 %": lambda text: text[: len(text) // 2],
    }
    print(f"\n| items of | | {' | '.join(forms)} |\n|---|{'---|' * (1 + len(forms))}")
    for file in FILES:
        decontaminator = load((file,), data)
        index = decontaminator.index
        # items that can be found inside of another text
        texts: list[str] = []
        for text, own_words in zip(index.texts, index.own_words, strict=True):
            if own_words >= index.ngram and text.item.line % 2 == half:
                texts.append(text.item.text)
        chosen = rng.sample(texts, min(_PLANTED, len(texts)))
        shares: list[str] = []
        for form in forms.values():
            shares.append(found_share(decontaminator, [form(text) for text in chosen]))
        print(f"| {file.path} | {len(chosen)} | {' | '.join(shares)} |", flush=True)


def with_other_words(text: str, share: float, rng: random.Random) -> str:
    """Text with a share of its words replaced."""
    return " ".join("another" if rng.random() < share else word for word in text.split(" "))


def find_overlaps(data: Path, *, list_pairs: bool) -> None:
    """Print what of the evaluation files is in the sets as they are."""
    decontaminator = load(FILES, data)
    print(f"\n{len(decontaminator.index.texts):,} items against the sets as they are:\n")
    print("| set | records | dropped | of MMLU | records/s | MB/s |\n|---|---|---|---|---|---|")
    for name, examples in sets_in(data).items():
        if name in _ITEMS_TOO:
            continue
        started = time.process_time()
        drops: list[Drop | None] = []
        for start in range(0, len(examples), _BATCH):
            drops += decontaminator.drops(examples[start : start + _BATCH])
        seconds = time.process_time() - started
        details = [drop.detail for drop in drops if drop is not None]
        mmlu = sum(MMLU.path in detail for detail in details)
        print(
            f"| {name} | {len(examples):,} | {len(details)} | {mmlu} "
            f"| {len(examples) / seconds:,.0f} "
            f"| {text_characters(examples) / seconds / 1e6:.1f} |",
            flush=True,
        )
        if list_pairs:
            passages = Counter(detail.partition(": ")[2][:250] for detail in details)
            for passage, count in passages.items():
                print(f"    {count} x {passage}")
