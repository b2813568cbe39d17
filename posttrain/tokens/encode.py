"""Training samples → token ids and the spans of them that are trained.

    encode_samples([sample], encode)  →  [TokenSequence(ids=[1, 44, 9, 2], spans=[2, 4])]

`spans` are alternating starts and ends, in tokens, of what the loss sees: here tokens 2 and 3.
Segments are tokenised apart and concatenated; the turns of one conversation share most of their
segments, so each distinct text of a batch is tokenised once, in one call for the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from posttrain.chat.segments import TrainingSample

IGNORED = -100
# texts → token ids, without special tokens added at either end
Encode = Callable[[Sequence[str]], list[list[int]]]


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Token ids of one sample; `spans` are alternating starts and ends of trained tokens."""

    ids: list[int]
    spans: list[int]

    @property
    def trained(self) -> int:
        """Number of trained tokens."""
        return sum(self.spans[1::2]) - sum(self.spans[::2])


def encode_samples(samples: Iterable[TrainingSample], encode: Encode) -> list[TokenSequence]:
    """Tokenise samples, in order; texts that occur several times are tokenised once."""
    batch = list(samples)
    texts = list(dict.fromkeys(s.text for sample in batch for s in sample.segments))
    ids_of = dict(zip(texts, encode(texts), strict=True)) if texts else {}
    return [_join(sample, ids_of) for sample in batch]


def _join(sample: TrainingSample, ids_of: dict[str, list[int]]) -> TokenSequence:
    ids: list[int] = []
    spans: list[int] = []
    for segment in sample.segments:
        start = len(ids)
        ids.extend(ids_of[segment.text])
        if not segment.trained or len(ids) == start:
            continue
        if spans and spans[-1] == start:
            spans[-1] = len(ids)
        else:
            spans += [start, len(ids)]
    return TokenSequence(ids, spans)


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
