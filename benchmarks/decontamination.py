"""What decontamination finds and what it leaves alone, on real sets and real evaluation items.

    python benchmarks/decontamination.py --data ../shared/data [--pairs]

Items are planted in a conversation: as they are, in the middle of other words, in capitals with
other layout and punctuation, with words joined where punctuation was, with one word in twenty
replaced, seven tenths of them. Unplanted, all conversations and other rows of the sets are looked
at; what is found is listed with `--pairs`, to be read. The last line is about conversations and
items that have nothing to do with each other (`UNRELATED`).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.deduplication import sets_in
from data_builders.decontamination.items import read_items
from data_builders.decontamination.match import Decontaminator
from data_builders.dedup.words import words_of
from data_builders.filters.drop import Drop
from posttrain.config.decontamination import DecontaminationConfig, EvaluationFile
from posttrain.records import Example
from tests.data_builders.dedup.copies import chat

FILES = (
    EvaluationFile(path="mmlu_dev_val.jsonl", fields=("question",)),
    EvaluationFile(path="mt_bench.jsonl", fields=("turns",)),
    EvaluationFile(path="humaneval.jsonl", fields=("prompt",)),
    EvaluationFile(path="ifeval.jsonl", fields=("prompt",)),
    EvaluationFile(path="bfcl_nonlive.jsonl", fields=("question",)),
    EvaluationFile(path="workbench_tasks.jsonl", fields=("query",)),
)
GSM8K = EvaluationFile(path="gsm8k_train.jsonl", fields=("question",))
# tasks and prompts gathered from many places, such as those of the evaluation files
ROWS = ("nemo_gym_example_tasks.jsonl", "open_instruct_human_eval_pairs.jsonl")
# dialogues of travel and shops, requests of files: nothing that these files ask
UNRELATED = ("sgd", "tau", "toolset")
# many items of these are sentences like those of the sets above, or speak of the same things
_OF_THE_KIND = ("workbench_tasks.jsonl", "bfcl_nonlive.jsonl")
_PLANTED = 500
_TIMES = 3  # of which the quickest counts
_BATCH = 128  # records looked at together, as in a build


def main() -> None:
    parser = argparse.ArgumentParser(description="What decontamination finds on real sets.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the sets")
    parser.add_argument("--pairs", action="store_true", help="list what is found unplanted")
    options = parser.parse_args()
    sets = sets_in(options.data)
    print("| items of | as they are | amid other words | other layout | joined | replaced | 70 % |")
    print("|---|---|---|---|---|---|---|")
    for file in (*FILES, GSM8K):
        planted(file, options.data)
    overlaps({**sets, **rows_of(options.data)}, options.data, listed=options.pairs)
    unrelated(sets, options.data)


def load(files: tuple[EvaluationFile, ...], data: Path, coverage: float = 0.6) -> Decontaminator:
    return Decontaminator.load(DecontaminationConfig(files=files, coverage=coverage), data)


def planted(file: EvaluationFile, data: Path) -> None:
    """Items hidden in conversations, and how many are found. Short items count as whole messages,
    so they are only planted as they are."""
    found = load((file,), data)
    rng = random.Random(0)
    items = [item.text for read in read_items(file, data) for item in read.items]
    items = rng.sample(items, min(_PLANTED, len(items)))
    ngram = found.index.ngram
    long = [text for text in items if len(words_of(text)) >= ngram]
    plain = [text for text in items if len(words_of(text)) >= 5]
    forms: list[tuple[list[str], Callable[[str], str]]] = [
        (plain, lambda text: text),
        (long, lambda text: f"Before we start: {text} Please think about it first."),
        (long, lambda text: "\n".join("".join(c if c.isalnum() else " " for c in text).split())),
        (long, lambda text: "".join(c for c in text if c.isalnum() or c.isspace()).upper()),
        (long, lambda text: replaced(text, rng)),
        (long, lambda text: " ".join(text.split(" ")[: round(0.7 * len(text.split(" ")))])),
    ]
    shown: list[str] = []
    for texts, form in forms:
        hits = sum(found.drop(chat(form(text), "I see.")) is not None for text in texts)
        shown.append(f"{hits / len(texts):.3f} of {len(texts)}" if texts else "-")
    print(f"| {file.path} | {' | '.join(shown)} |", flush=True)


def replaced(text: str, rng: random.Random) -> str:
    """One word in twenty is another."""
    return " ".join("another" if rng.random() < 0.05 else word for word in text.split(" "))


def rows_of(data: Path) -> dict[str, list[Example]]:
    """Rows that are no conversations: each of their texts as a question."""
    return {
        path: [
            chat(item.text, "I see.")
            for read in read_items(EvaluationFile(path=path), data)
            for item in read.items
        ]
        for path in ROWS
    }


def overlaps(sets: dict[str, list[Example]], data: Path, *, listed: bool) -> None:
    """What of the evaluation files is in the sets as they are, by coverage."""
    found = load(FILES, data, coverage=0.3)
    print("\n| set | conversations | at least 60 % | 30–60 % | conversations/s | MB/s |")
    print("|---|---|---|---|---|---|")
    for name, examples in sets.items():
        spent: list[float] = []
        drops: list[Drop | None] = []
        for _ in range(_TIMES):
            started = time.process_time()
            drops = [
                drop
                for at in range(0, len(examples), _BATCH)
                for drop in found.drops(examples[at : at + _BATCH])
            ]
            spent.append(time.process_time() - started)
        size = sum(len(m.content) + len(m.reasoning or "") for e in examples for m in e.messages)
        shares = [int(d.detail.split(": ")[1].split("%")[0]) for d in drops if d is not None]
        counts = Counter(share >= 60 for share in shares)
        print(
            f"| {name} | {len(examples):,} | {counts[True]} | {counts[False]} "
            f"| {len(examples) / min(spent):,.0f} | {size / min(spent) / 1e6:.1f} |",
            flush=True,
        )
        if listed:
            details = Counter(d.detail.partition(": ")[2][:200] for d in drops if d is not None)
            for detail, count in details.items():
                print(f"    {count} x {detail}")


def unrelated(sets: dict[str, list[Example]], data: Path) -> None:
    """None of these conversations asks what any of these items asks."""
    files = tuple(f for f in FILES if f.path not in _OF_THE_KIND)
    found = load((*files, GSM8K), data)
    examples = [e for name in UNRELATED for e in sets[name]]
    false = [drop for drop in found.drops(examples) if drop is not None]
    items = len(found.index.items)
    print(
        f"\n{len(examples):,} conversations of {', '.join(UNRELATED)} against {items:,} items, "
        f"{len(examples) * items:,} pairs: {len(false)} found"
    )
    for drop in false:
        print(f"    {drop.detail[:300]}")


if __name__ == "__main__":
    main()
