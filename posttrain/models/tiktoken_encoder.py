"""Texts → ids through tiktoken, with the ids that `tokenizers` gives, several times as fast.

    encoder = TiktokenEncoder(ranks, slow=lambda texts: …)
    encoder.arrays(["Hi there", "<|im_end|>"])   →  [array([13347, 1070]), array([100265])]

All texts of a call are tokenised as one, joined by a separator that is a special token: special
tokens part a text exactly, and thousands of short texts then cost one call. Texts on which the two
libraries could differ, or on which tiktoken's backtracking gives up, go to `tokenizers` one by one.
"""

from __future__ import annotations

import re
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import tiktoken

from posttrain.models.tiktoken_ranks import Ranks
from posttrain.models.tiktoken_unicode import odd_characters

Ids = npt.NDArray[np.int32]
# a run that a pattern must give back character by character; Rust's engine gives up at a million
_LONGEST_RUN = 100_000
_RUN = re.compile(rf"\s{{{_LONGEST_RUN}}}")
_JOINED = 1 << 23  # characters tokenised in one call


class TiktokenEncoder:
    """tiktoken made from ranks; `slow` tokenises the few texts that it must not be given."""

    def __init__(self, ranks: Ranks, *, slow: Callable[[Sequence[str]], list[Ids]]) -> None:
        # no text can hold the separator by accident or on purpose; ids do not depend on it
        self._separator = f"\x00{secrets.token_hex(8)}\x01"
        self._mark = len(ranks.ids)
        self._ids = np.append(ranks.ids, np.int32(-1))
        written = [*ranks.merges, *(token.encode() for token in ranks.special)]
        self._sizes = np.array([*map(len, written), 0], np.int64)  # bytes a rank stands for
        self._nfc, self._slow = ranks.nfc, slow
        self._odd = odd_characters(nfc=ranks.nfc)
        self._encoding = tiktoken.Encoding(
            "tokenizer.json",
            pat_str=ranks.pattern,
            mergeable_ranks=ranks.merges,
            special_tokens={**ranks.special, self._separator: self._mark},
        )

    def arrays(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, int32; views of one array a call."""
        found: list[Ids | None] = [None] * len(texts)
        fast: list[int] = []
        slow: list[int] = []
        for k, text in enumerate(texts):
            (fast if self._takes(text) else slow).append(k)
        for batch in _batches(fast, texts):
            for k, ids in zip(batch, self._joined([texts[k] for k in batch]), strict=True):
                found[k] = ids
        if slow:
            for k, ids in zip(slow, self._slow([texts[k] for k in slow]), strict=True):
                found[k] = ids
        return [ids for ids in found if ids is not None]

    def offsets(self, text: str) -> list[tuple[int, int]] | None:
        """The character span of each token, `None` for a text that is not given to tiktoken.

        Tokens that are parts of one character all have its span.
        """
        if not self._takes(text):
            return None
        sizes = self._sizes.take(self._ranks(text))
        ends = np.cumsum(sizes)
        starts = ends - sizes
        if not text.isascii():
            first = (np.frombuffer(text.encode(), np.uint8) & 0xC0) != 0x80
            character = np.cumsum(first) - 1
            starts, ends = character[starts], character[ends - 1] + 1
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    def _ranks(self, text: str) -> npt.NDArray[np.uint32]:
        return self._encoding.encode_to_numpy(text, allowed_special="all", disallowed_special=())

    def _takes(self, text: str) -> bool:
        if len(text) >= _LONGEST_RUN and _RUN.search(text):
            return False
        if text.isascii():
            return True
        if self._odd is not None and self._odd.search(text):
            return False
        return not self._nfc or unicodedata.is_normalized("NFC", text)

    def _joined(self, texts: Sequence[str]) -> Iterable[Ids]:
        ranks = self._ranks(self._separator.join(texts))
        marks = np.flatnonzero(ranks == self._mark)
        assert len(marks) == len(texts) - 1, "only this process knows its separator"
        ids = self._ids.take(ranks)
        edges = [-1, *marks.tolist(), len(ids)]
        return (ids[start + 1 : stop] for start, stop in pairwise(edges))


def _batches(chosen: Sequence[int], texts: Sequence[str]) -> Iterable[list[int]]:
    """Texts to tokenise together: as many as fit, so that memory stays bounded."""
    batch: list[int] = []
    size = 0
    for k in chosen:
        if batch and size + len(texts[k]) > _JOINED:
            yield batch
            batch, size = [], 0
        batch.append(k)
        size += len(texts[k])
    if batch:
        yield batch
