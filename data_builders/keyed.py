"""Choices by keyed hashes of ids: they belong to a record and not to its position.

A choice at rate r is `unit(...) < r`: raising the rate only adds records.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

_SCALE = 2.0**-53  # a float holds 53 bits exactly


def key64(seed: int, purpose: str, *parts: str | int) -> int:
    """64-bit hash of the parts, keyed by seed and purpose; the same on every machine."""
    text = "\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, key=_hash_key(seed, purpose), digest_size=8).digest()
    return int.from_bytes(digest, "big")


@functools.lru_cache(maxsize=256)  # few purposes, needed for every record
def _hash_key(seed: int, purpose: str) -> bytes:
    """Key of BLAKE2b for a seed and a purpose."""
    key = f"{seed}\x1f{purpose}".encode()
    if len(key) > hashlib.blake2b.MAX_KEY_SIZE:
        return hashlib.blake2b(key).digest()
    return key


def unit(seed: int, purpose: str, *parts: str | int) -> float:
    """Number in [0, 1) from the hash of `key64`."""
    return (key64(seed, purpose, *parts) >> 11) * _SCALE


def shuffled_keys(keys: npt.NDArray[np.uint64], salt: int) -> npt.NDArray[np.uint64]:
    """New keys (n,), as if drawn anew for each 64-bit salt; distinct keys stay distinct."""
    # the finaliser of SplitMix64 (Steele et al. 2014), a bijection of 64-bit words
    with np.errstate(over="ignore"):
        x = keys ^ np.uint64(salt)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def is_among(values: npt.NDArray[np.generic], ordered: npt.NDArray[np.generic]) -> Any:
    """Mask (n,) of the values that are in the ascending array `ordered`."""
    if not len(ordered):
        return np.zeros(len(values), np.bool_)
    positions = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return ordered[positions] == values
