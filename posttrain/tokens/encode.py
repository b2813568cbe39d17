"""Encoding of training samples: token ids, and the spans of them that are trained.

    encode_samples([sample], arrays)  →  [TokenSequence(ids=array([1, 44, 9, 2]), spans=[2, 4])]

Ids stay in arrays from the tokenizer to the disk, so that no token becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from posttrain.chat.masks import TrainingSample

# label of a token outside the loss, as in transformers and PyTorch
IGNORED = -100
Item = TypeVar("Item")
# texts → token ids, (n,) int32 each, without special tokens added at either end
EncodeArrays = Callable[[Sequence[str]], list[npt.NDArray[np.int32]]]


@dataclass(frozen=True, slots=True, eq=False)
class TokenSequence:
    """Token ids of one sample and its loss mask.

    Attributes:
        ids: (n,) int32.
        spans: alternating starts and ends of runs of trained tokens.
    """

    ids: npt.NDArray[np.int32]
    spans: list[int]

    @property
    def trained(self) -> int:
        """Number of trained tokens."""
        return sum(self.spans[1::2]) - sum(self.spans[::2])


def batches(
    items: Iterable[Item], size: Callable[[Item], int], *, most: int, count: int
) -> Iterator[list[Item]]:
    """Group items, in order, into lists that end once their sizes reach `most`, or at `count`."""
    batch: list[Item] = []
    batch_size = 0
    for item in items:
        batch.append(item)
        batch_size += size(item)
        if batch_size >= most or len(batch) == count:
            yield batch
            batch = []
            batch_size = 0
    if batch:
        yield batch


def encode_samples(samples: Iterable[TrainingSample], encode: EncodeArrays) -> list[TokenSequence]:
    """Tokenise samples, in order; texts that occur several times are tokenised once."""
    batch = list(samples)
    texts = distinct_texts(batch)
    ids_of = dict(zip(texts, encode(texts), strict=True)) if texts else {}
    return [_join(sample, ids_of) for sample in batch]


def distinct_texts(samples: Iterable[TrainingSample]) -> list[str]:
    """List the texts of all segments, each once."""
    return list(dict.fromkeys(s.text for sample in samples for s in sample.segments))


def _join(sample: TrainingSample, ids_of: dict[str, npt.NDArray[np.int32]]) -> TokenSequence:
    """Concatenate the ids of a sample's segments; adjacent trained segments share a span."""
    parts: list[npt.NDArray[np.int32]] = []
    spans: list[int] = []
    end = 0
    for segment in sample.segments:
        ids = ids_of[segment.text]
        parts.append(ids)
        start = end
        end += len(ids)
        if not segment.trained or not len(ids):
            continue
        if spans and spans[-1] == start:
            spans[-1] = end
        else:
            spans += [start, end]
    return TokenSequence(np.concatenate(parts or [np.empty(0, np.int32)]), spans)


def clip(sequence: TokenSequence, capacity: int) -> TokenSequence:
    """Keep the first `capacity` tokens; trained spans beyond them are cut."""
    spans: list[int] = []
    for start, end in zip(sequence.spans[::2], sequence.spans[1::2], strict=True):
        if start < capacity:
            spans += [start, min(end, capacity)]
    return TokenSequence(sequence.ids[:capacity], spans)


def labels_of(
    ids: npt.NDArray[np.int32], spans: Iterable[int], *, out: npt.NDArray[np.int32] | None = None
) -> npt.NDArray[np.int32]:
    """Build labels as transformers takes them: ids where trained, -100 elsewhere, unshifted.

    Args:
        ids: (n,) token ids.
        spans: alternating starts and ends of trained tokens.
        out: (n,) array to write the labels into; None for a new one.
    """
    labels = np.empty_like(ids) if out is None else out
    labels[:] = IGNORED
    edges = list(spans)
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        labels[start:end] = ids[start:end]
    return labels
