"""Segments → ids and trained spans."""

from __future__ import annotations

import numpy as np

from posttrain.chat.masks import Segment, TrainingSample
from posttrain.tokens.encode import IGNORED, TokenSequence, clip, encode_samples, labels_of


class Counting:
    """One token a character; remembers which texts it was given."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, texts):
        self.texts += texts
        return [np.array([ord(c) for c in text], np.int32) for text in texts]


def sample(*parts: tuple[str, bool]) -> TrainingSample:
    segments = tuple(
        Segment(text, "assistant", trained, k) for k, (text, trained) in enumerate(parts)
    )
    return TrainingSample("id", 0, "on", segments, ())


def test_ids_are_the_segments_and_spans_their_trained_ones():
    [sequence] = encode_samples([sample(("ab", False), ("cd", True), ("e", False))], Counting())
    assert sequence.ids.tolist() == [97, 98, 99, 100, 101]
    assert sequence.ids.dtype == np.int32
    assert sequence.spans == [2, 4]
    assert sequence.trained == 2


def test_neighbouring_trained_segments_are_one_span():
    [sequence] = encode_samples([sample(("a", True), ("", True), ("b", True))], Counting())
    assert sequence.spans == [0, 2]


def test_each_distinct_text_is_tokenised_once():
    encode = Counting()
    turns = [sample(("same", False), (f"own {k}", True)) for k in range(5)]
    encode_samples(turns, encode)
    assert sorted(encode.texts) == sorted({"same", *(f"own {k}" for k in range(5))})
    assert encode_samples([], encode) == []


def test_clipping_cuts_ids_and_spans():
    sequence = TokenSequence(np.arange(1, 7, dtype=np.int32), [1, 3, 4, 6])
    shorter = clip(sequence, 5)
    assert (shorter.ids.tolist(), shorter.spans) == ([1, 2, 3, 4, 5], [1, 3, 4, 5])
    assert clip(sequence, 4).spans == [1, 3]
    assert clip(sequence, 1).trained == 0


def test_labels_are_aligned_with_ids():
    ids = np.array([7, 8, 9, 10], np.int32)
    assert labels_of(ids, [1, 3]).tolist() == [IGNORED, 8, 9, IGNORED]
    assert labels_of(ids, []).tolist() == [IGNORED] * 4
