"""Near-duplicates by the field's method: MinHash of word 3-grams finds them, exact Jaccard decides.

    shingles(examples)    hashes of every record's n-grams, of the user's side and the assistant's
    band_keys(…)          (records, 16) MinHash keys; records that share one are compared
    similarity(a, b)      0.93, the Jaccard similarity of both sides as one set

Broder (1997), "On the resemblance and containment of documents"; bands as in Leskovec et al.,
"Mining of Massive Datasets", 3.4. Why 3-grams, and signs as words: docs/benchmarks.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rensa import RMinHash  # pyright: ignore[reportAttributeAccessIssue]  # compiled, untyped

from data_builders.dedup.words import runs, words_of_all
from data_builders.keyed import shuffled_keys
from posttrain.records import Example

NGRAM = 3
# two texts with Jaccard similarity J share a key with probability 1 - (1 - J^5)^16: 0.998 at 0.8,
# 0.95 at 0.7, 0.40 at 0.5, 1 in 200,000 at 0.05
BANDS, ROWS = 16, 5
SIDE = 1 / 3  # the least similarity of each side by itself, whatever the threshold
_SEED = 1  # no choice of the data depends on it
Hashes = npt.NDArray[np.uint32]
Shingles = tuple[Hashes, Hashes]


def shingles(examples: Sequence[Example]) -> list[Shingles]:
    """The n-grams of what the user said and of all that the assistant thought, said, called and got
    from tools: distinct 32-bit hashes, ascending.

    System texts and declared tools do not count: data for agents shares long ones, and a set that
    is published again often has others. Of a side with fewer than n words all of it is one n-gram.
    """
    words, starts = words_of_all([side for e in examples for side in _sides(e)], signs=True)
    grams = runs(words.hashes, NGRAM)
    sides: list[Hashes] = []
    for start, end in zip(starts.tolist(), starts[1:].tolist(), strict=False):
        own = grams[start : max(end - NGRAM + 1, start)]
        if start < end < start + NGRAM:
            own = runs(np.pad(words.hashes[start:end], (0, NGRAM - (end - start))), NGRAM)
        sides.append(np.unique((own >> np.uint64(32)).astype(np.uint32)))
    return list(zip(sides[::2], sides[1::2], strict=True))


def _sides(example: Example) -> tuple[str, str]:
    user: list[str] = []
    assistant: list[str] = []
    for message in example.messages:
        if message.role == "user":
            user.append(message.content)
        elif message.role != "system":
            assistant += [message.reasoning or "", message.content]
            assistant += [
                text for call in message.tool_calls for text in (call.name, call.arguments)
            ]
    return "\n".join(user), "\n".join(assistant)


def band_keys(records: Sequence[Shingles]) -> npt.NDArray[np.uint32]:
    """The keys of the MinHash signatures' bands, (records, BANDS)."""
    # the two sides are one set, in which they share no member
    hashes = [
        shuffled_keys(side.astype(np.uint64), salt)
        for record in records
        for salt, side in enumerate(record)
    ]
    sizes = [len(user) + len(assistant) for user, assistant in records]
    offsets = np.cumsum([0, *sizes]).astype(np.uint64)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(
        np.concatenate([np.empty(0, np.uint64), *hashes]), offsets, BANDS * ROWS, _SEED
    )
    values = np.array(matrix.to_rows(), np.uint64).reshape(len(records), BANDS, ROWS)
    keys = np.zeros((len(records), BANDS), np.uint64)
    for k in range(ROWS):
        keys = shuffled_keys(keys + values[..., k], salt=_SEED)
    return (keys >> np.uint64(32)).astype(np.uint32)


def similarity(one: Shingles, other: Shingles) -> float:
    """The Jaccard similarity of two records, 0 where one side has less than `SIDE` by itself.

    So a passage with two questions and one refusal of two requests are two records each.
    """
    sides = list(zip(one, other, strict=True))
    shared = [len(np.intersect1d(a, b, assume_unique=True)) for a, b in sides]
    union = [len(a) + len(b) - n for (a, b), n in zip(sides, shared, strict=True)]
    if any(n < SIDE * size for n, size in zip(shared, union, strict=True)):
        return 0.0
    return sum(shared) / sum(union)
