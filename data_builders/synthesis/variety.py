"""Figures that show whether one text returns in many rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from data_builders.dedup.columns import Shingles, band_keys, shingles, similarity
from posttrain.records import Example, Message, make_example

Row = dict[str, Any]
_NEAR = 0.8  # Jaccard similarity from which two rows say nearly the same; the default of build_sft
_DISTINCT = 4  # words of the n-grams whose distinct share is reported
_LENGTHS = (10, 50, 90)  # percentiles


def example_of_row(row: Row) -> Example:
    """The conversation of a finished row: of a pair up to its chosen answer, of a task its
    question."""
    if "question" in row:
        listed = [{"role": "user", "content": row["question"]}]
    elif "chosen" in row:
        listed = [*row["prompt"], *row["chosen"]]
    else:
        listed = row["messages"]
    messages = [
        Message(m["role"], m["content"], reasoning=m.get("reasoning_content")) for m in listed
    ]
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
            ngrams.update(
                tuple(words[k : k + _DISTINCT]) for k in range(len(words) - _DISTINCT + 1)
            )
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
    """Number of records that are nearly the same as an earlier one, by MinHash bands."""
    if not records:
        return 0
    keys = band_keys(records)
    earlier: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    count = 0
    for row in range(len(records)):
        bands = [(band, int(key)) for band, key in enumerate(np.asarray(keys[row]))]
        candidates = sorted({other for band in bands for other in earlier[band]})
        if any(similarity(records[row], records[other]) >= _NEAR for other in candidates):
            count += 1
            continue  # later rows are compared with the first of its kind
        for band in bands:
            earlier[band].append(row)
    return count
