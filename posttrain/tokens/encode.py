"""Training samples → token ids and the spans of them that are trained.

    encode_samples([sample], arrays)  →  [TokenSequence(ids=array([1, 44, 9, 2]), spans=[2, 4])]

Ids stay in arrays from the tokenizer to the disk: no Python object is made for a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from posttrain.chat.masks import TrainingSample

IGNORED = -100
Item = TypeVar("Item")
# texts → token ids, (n,) int32 each, without special tokens added at either end
EncodeArrays = Callable[[Sequence[str]], list[npt.NDArray[np.int32]]]


@dataclass(frozen=True, slots=True, eq=False)
class TokenSequence:
    """Token ids of one sample, (n,) int32; `spans` are alternating starts and ends of trained
    tokens."""

    ids: npt.NDArray[np.int32]
    spans: list[int]

    @property
    def trained(self) -> int:
        """Number of trained tokens."""
        return sum(self.spans[1::2]) - sum(self.spans[::2])


def batches(
    items: Iterable[Item], size: Callable[[Item], int], *, most: int, count: int
) -> Iterator[list[Item]]:
    """Items in order, in lists that end when their sizes reach `most`, or at `count` items."""
    batch: list[Item] = []
    held = 0
    for item in items:
        batch.append(item)
        held += size(item)
        if held >= most or len(batch) == count:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def encode_samples(samples: Iterable[TrainingSample], encode: EncodeArrays) -> list[TokenSequence]:
    """Tokenise samples, in order; texts that occur several times are tokenised once."""
    batch = list(samples)
    texts = distinct_texts(batch)
    ids_of = dict(zip(texts, encode(texts), strict=True)) if texts else {}
    return [_join(sample, ids_of) for sample in batch]


def distinct_texts(samples: Iterable[TrainingSample]) -> list[str]:
    """The texts of all segments, each once."""
    return list(dict.fromkeys(s.text for sample in samples for s in sample.segments))


def _join(sample: TrainingSample, ids_of: dict[str, npt.NDArray[np.int32]]) -> TokenSequence:
    parts = [ids_of[segment.text] for segment in sample.segments]
    ends = list(accumulate(map(len, parts)))
    spans: list[int] = []
    for k, segment in enumerate(sample.segments):
        if segment.trained and (length := len(parts[k])):
            start = ends[k] - length
            if spans and spans[-1] == start:
                spans[-1] = ends[k]
            else:
                spans += [start, ends[k]]
    return TokenSequence(np.concatenate(parts or [np.empty(0, np.int32)]), spans)


def clip(sequence: TokenSequence, capacity: int) -> TokenSequence:
    """The first `capacity` tokens; trained spans beyond them are cut."""
    spans: list[int] = []
    for start, end in zip(sequence.spans[::2], sequence.spans[1::2], strict=True):
        if start < capacity:
            spans += [start, min(end, capacity)]
    return TokenSequence(sequence.ids[:capacity], spans)


def labels_of(
    ids: npt.NDArray[np.int32], spans: Iterable[int], *, out: npt.NDArray[np.int32] | None = None
) -> npt.NDArray[np.int32]:
    """Labels in the form transformers takes: the ids where trained, -100 elsewhere, unshifted."""
    labels = np.empty_like(ids) if out is None else out
    labels[:] = IGNORED
    flat = list(spans)
    for start, end in zip(flat[::2], flat[1::2], strict=True):
        labels[start:end] = ids[start:end]
    return labels
