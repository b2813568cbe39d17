"""Figures that show whether one text returns in many rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from data_builders.dedup.columns import Shingles, band_keys, shingles, similarity
from posttrain.records import Example, Message, make_example

Row = dict[str, Any]
_NEAR_DUPLICATE = 0.8  # Jaccard similarity of near duplicates; the default of build_sft
_COMPARED = 8  # rows of one template share bands: all pairs of 20,000 would take many minutes
_NGRAM = 4  # words of the n-grams whose distinct share is reported
_LENGTHS = (10, 50, 90)  # percentiles


def example_of_row(row: Row) -> Example:
    """Conversation of a row without its calls: a pair's chosen one, the question of a task."""
    if "question" in row:
        stored = [{"role": "user", "content": row["question"]}]
    elif "chosen" in row:
        stored = [*row["prompt"], *row["chosen"]]
    else:
        stored = row["messages"]
    messages: list[Message] = []
    for message in stored:
        reasoning = message.get("reasoning_content")
        messages.append(Message(message["role"], message["content"], reasoning=reasoning))
    return make_example(messages, source="synthesis", dialect="openai")


def variety(examples: Sequence[Example]) -> dict[str, Any]:
    """Turns, lengths and repetition of conversations.

    Returns:
        rows; user turns and characters in the mean; `lengths`, characters at the 10th, 50th and
        90th percentile; `turns`, conversations by number of user turns; `distinct_ngrams`, the
        distinct share of all runs of four words of users and assistants; `near_duplicates`, the
        share of rows that are nearly the same as an earlier one.
    """
    ngrams: Counter[tuple[str, ...]] = Counter()
    turns: list[int] = []
    lengths: list[int] = []
    for example in examples:
        user_turns = 0
        characters = 0
        for message in example.messages:
            if message.role not in ("user", "assistant"):
                continue
            user_turns += message.role == "user"
            characters += len(message.content) + len(message.reasoning or "")
            words = message.content.split()
            for start in range(len(words) - _NGRAM + 1):
                ngrams[tuple(words[start : start + _NGRAM])] += 1
        turns.append(user_turns)
        lengths.append(characters)
    count = max(1, len(examples))
    return {
        "rows": len(examples),
        "user_turns": sum(turns) / count,
        "characters": sum(lengths) / count,
        "lengths": [round(float(value)) for value in np.percentile(lengths or [0], _LENGTHS)],
        "turns": {str(number): n for number, n in sorted(Counter(turns).items())},
        "distinct_ngrams": len(ngrams) / max(1, ngrams.total()),
        "near_duplicates": near_duplicates(shingles(examples)) / count,
    }


def near_duplicates(records: Sequence[Shingles]) -> int:
    """Count the records that are nearly the same as an earlier one, found by MinHash bands.

    A record is compared with the few earlier ones that share most bands with it.
    """
    if not records:
        return 0
    keys = band_keys(records)
    earlier: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    count = 0
    for row in range(len(records)):
        bands = [(band, int(key)) for band, key in enumerate(np.asarray(keys[row]))]
        shared_bands: Counter[int] = Counter()
        for band in bands:
            shared_bands.update(earlier[band])
        similarities = (
            similarity(records[row], records[candidate])
            for candidate, _ in shared_bands.most_common(_COMPARED)
        )
        if any(value >= _NEAR_DUPLICATE for value in similarities):
            count += 1
            continue  # later rows are compared with the first of its kind
        for band in bands:
            earlier[band].append(row)
    return count
