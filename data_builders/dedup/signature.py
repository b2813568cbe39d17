"""The keys under which near-duplicates meet: MinHash signatures of character n-grams, in bands.

band_keys([NearText(…)])  → (records, 100) uint32; two records that share a key in one band are
                            candidates, which `verify` compares letter by letter

Characters and not words: an edit of 3 % of the characters hits one word in six, and hardly any run
of five words survives it. Nine of them: of shorter runs, long texts that have nothing to do with
each other share so many that at millions of rows each would meet thousands.

The probability that two texts whose sets of n-grams have Jaccard similarity J meet in at least one
of b bands of r values is 1 - (1 - J^r)^b (Leskovec et al., Mining of Massive Datasets, 3.4).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rensa import RMinHash  # pyright: ignore[reportAttributeAccessIssue]  # compiled, untyped

from data_builders.dedup.near_text import NearText, codes_of
from data_builders.keyed import shuffled_keys

Words = npt.NDArray[np.uint64]
NGRAM = 9
BANDS, ROWS = 100, 5
_VALUES = 512  # of a signature; the library is quickest at powers of two, and 500 are used
_SEED = 1  # no choice of the data depends on it
_BASE = 0x9E3779B97F4A7C15
_WORD = 1 << 64
# lengths are cut into cells of a quarter; every other band has its cells half a cell further, so
# that two lengths that differ by a few percent share a cell in at least half of the bands
_CELL = np.log(1.25)


def band_keys(texts: Sequence[NearText]) -> npt.NDArray[np.uint32]:
    """One row of keys a text, (texts, BANDS).

    A key holds a band of the signature and the text's length, roughly: near-duplicates are equally
    long, and most of the texts that share a band by chance are not.
    """
    if not texts:
        return np.empty((0, BANDS), np.uint32)
    hashes = [shingles(f"{t.prompt}\n{t.answer}") for t in texts]
    offsets = np.cumsum([0, *(len(h) for h in hashes)]).astype(np.uint64)
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(
        np.concatenate(hashes), offsets, _VALUES, _SEED
    )
    values = np.array(matrix.to_rows(), np.uint64)[:, : BANDS * ROWS]
    values = values.reshape(len(texts), BANDS, ROWS)
    cells = np.log([len(t.prompt) + len(t.answer) + 1 for t in texts]) / _CELL
    shift = 0.5 * (np.arange(BANDS) % 2)
    with np.errstate(over="ignore"):
        keys = np.floor(cells[:, None] + shift).astype(np.uint64)
        for k in range(ROWS):
            keys = keys * np.uint64(_BASE) + values[..., k]
    return (shuffled_keys(keys, salt=_SEED) >> np.uint64(32)).astype(np.uint32)


def shingles(text: str) -> Words:
    """A 64-bit hash of every run of `NGRAM` characters, repeats included; one of a shorter text."""
    codes = codes_of(text).astype(np.uint64)
    if len(codes) < NGRAM:
        codes = np.pad(codes, (0, NGRAM - len(codes)))
    return shuffled_keys(rolling(codes, NGRAM), salt=_SEED)


def rolling(values: Words, n: int) -> Words:
    """Every run of n values as one polynomial modulo 2^64: (m,) → (m - n + 1,)."""
    done, power = values, _BASE
    width = 1
    for bit in bin(n)[3:]:
        with np.errstate(over="ignore"):
            done = done[:-width] * np.uint64(power) + done[width:]
            width, power = 2 * width, power * power % _WORD
            if bit == "1":
                done = done[:-1] * np.uint64(_BASE) + values[width:]
                width, power = width + 1, power * _BASE % _WORD
    return done
