"""What decontamination finds and what it leaves alone, on real sets and real evaluation items.

    python benchmarks/decontamination.py --data ../shared/data [--half 1] [--pairs]

Every MMLU question is planted as a multiple-choice prompt, in several layouts; items of other files
in a conversation: amid words, in other layout, with some words or all numbers replaced, in part.
Items are every other row of each file (`--half`). Then what of all items is in the sets as they
are, listed with `--pairs`, and the speed.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.deduplication import sets_in
from data_builders.decontamination.items import Item, read_items
from data_builders.decontamination.match import Decontaminator
from data_builders.rows.raw import Drop
from posttrain.config.overlap import DecontaminationConfig, EvaluationFile
from posttrain.records import Example
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


def main() -> None:
    parser = argparse.ArgumentParser(description="What decontamination finds on real sets.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the sets")
    parser.add_argument("--half", type=int, choices=(0, 1), default=1, help="even or odd rows")
    parser.add_argument("--pairs", action="store_true", help="list what is found unplanted")
    options = parser.parse_args()
    multiple_choice(options.data)
    planted(options.data, options.half)
    overlaps(options.data, listed=options.pairs)


def load(files: tuple[EvaluationFile, ...], data: Path) -> Decontaminator:
    return Decontaminator.load(DecontaminationConfig(files=files), data)


def found(decontaminator: Decontaminator, texts: list[str]) -> str:
    drops = decontaminator.drops([chat(text, "I see.") for text in texts])
    return f"{sum(d is not None for d in drops) / max(len(texts), 1):.3f}"


def multiple_choice(data: Path) -> None:
    """Every question in every layout, with its options named under `fields` and without."""
    items = [item for read in read_items(MMLU, data) for item in read.items]
    print(f"| {len(items):,} questions of MMLU | {' | '.join(LAYOUTS)} |\n|---|{'---|' * 5}")
    for fields in (("question", "A", "B", "C", "D"), (), ("question",)):
        decontaminator = load((MMLU.model_copy(update={"fields": fields}),), data)
        shares = [
            found(decontaminator, [form(item) for item in items]) for form in LAYOUTS.values()
        ]
        print(f"| fields: [{', '.join(fields)}] | {' | '.join(shares)} |", flush=True)


def _labelled(item: Item, form: str, between: str = "\n") -> str:
    return between.join(form.format(*pair) for pair in zip("ABCDEF", item.options, strict=False))


def planted(data: Path, half: int) -> None:
    """Items hidden in conversations, and how many are found."""
    rng = random.Random(half)
    forms: dict[str, Callable[[str], str]] = {
        "amid words": lambda text: f"Before we start: {text} Please think about it first.",
        "other layout": lambda t: "\n".join(re.sub(r"[\W_]+", " ", t).upper().split(" ")),
        **{
            f"{share:.0%} of words": lambda text, s=share: replaced(text, s, rng)
            for share in (0.05, 0.1, 0.15, 0.2, 0.3)
        },
        "all numbers": lambda text: re.sub(r"\d+", lambda _: str(rng.randrange(2, 999)), text),
        "first 70 %": lambda text: text[: round(0.7 * len(text))],
        "first 50 %": lambda text: text[: len(text) // 2],
    }
    print(f"\n| items of | | {' | '.join(forms)} |\n|---|{'---|' * (1 + len(forms))}")
    for file in FILES:
        decontaminator = load((file,), data)
        inside = [
            text.item.text
            for text, own in zip(
                decontaminator.index.texts, decontaminator.index.own_words, strict=True
            )
            if own >= decontaminator.index.ngram and text.item.line % 2 == half
        ]
        chosen = rng.sample(inside, min(_PLANTED, len(inside)))
        shares = [found(decontaminator, [form(text) for text in chosen]) for form in forms.values()]
        print(f"| {file.path} | {len(chosen)} | {' | '.join(shares)} |", flush=True)


def replaced(text: str, share: float, rng: random.Random) -> str:
    """A share of the words are others."""
    return " ".join("another" if rng.random() < share else word for word in text.split(" "))


def overlaps(data: Path, *, listed: bool) -> None:
    """What of the evaluation files is in the sets as they are."""
    decontaminator = load(FILES, data)
    print(f"\n{len(decontaminator.index.texts):,} items against the sets as they are:\n")
    print("| set | records | dropped | of MMLU | records/s | MB/s |\n|---|---|---|---|---|---|")
    for name, examples in sets_in(data).items():
        if name in _ITEMS_TOO:
            continue
        started = time.process_time()
        drops = [
            drop
            for at in range(0, len(examples), _BATCH)
            for drop in decontaminator.drops(examples[at : at + _BATCH])
        ]
        spent = time.process_time() - started
        details = [d.detail for d in drops if isinstance(d, Drop)]
        mmlu = sum(MMLU.path in detail for detail in details)
        print(
            f"| {name} | {len(examples):,} | {len(details)} | {mmlu} "
            f"| {len(examples) / spent:,.0f} | {_size(examples) / spent / 1e6:.1f} |",
            flush=True,
        )
        for detail, count in Counter(d.partition(": ")[2][:250] for d in details).items():
            if listed:
                print(f"    {count} x {detail}")


def _size(examples: list[Example]) -> int:
    return sum(len(m.content) + len(m.reasoning or "") for e in examples for m in e.messages)


if __name__ == "__main__":
    main()
