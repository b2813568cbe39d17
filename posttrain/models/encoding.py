"""A tokenizer as the data stage uses it: texts in, plain ids out, nothing added, nothing clipped.

encoder = encoder_of(load_any_tokenizer("Qwen/Qwen3-0.6B", revision="c1899de…"))
encoder.encode(["Hi"])      [[13048]]
encoder.offsets("Hi there") [(0, 2), (2, 8)]
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from posttrain.errors import ConfigError
from posttrain.models.tokenizer import load_tokenizer

_SPACES = ("\u2581", "\u0120")  # how SentencePiece and byte-level vocabularies write a space


def load_any_tokenizer(path: str, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """A tokenizer from a directory, or from the hub when `path` is no directory.

    Raises:
        ConfigError: neither gives one, or a directory is given a revision.
    """
    if Path(path).is_dir():
        if revision is not None:
            raise ConfigError(f"tokenizer.path {path} is a directory; revision is for hub ids")
        return load_tokenizer(Path(path))
    if path.startswith((".", "/")) or path.count("/") != 1:
        raise ConfigError(
            f"tokenizer.path {path!r}: there is no such directory, nor is it a hub id"
        )
    try:
        return AutoTokenizer.from_pretrained(path, revision=revision)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"tokenizer.path {path!r} is no directory here and cannot be had from the hub: {error}"
        ) from error


@dataclass(frozen=True, slots=True)
class Encoder:
    """Tokenisation without special tokens, truncation or padding."""

    backend: tokenizers.Tokenizer
    digest: str

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""
        found = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of each token."""
        return self.backend.encode(text, add_special_tokens=False).offsets

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return self.backend.decode(list(ids), skip_special_tokens=False)


def encoder_of(tokenizer: PreTrainedTokenizerBase) -> Encoder:
    """The encoder of a fast tokenizer, with any saved truncation or padding switched off.

    Raises:
        ConfigError: a tokenizer without a `tokenizers` backend, or one that puts a space before
            every text: a completion tokenised apart from its prompt would begin with it.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise ConfigError(
            f"the tokenizer {tokenizer.name_or_path!r} has no tokenizer.json; convert it first "
            "(AutoTokenizer.from_pretrained(…, from_slow=True).save_pretrained(…))"
        )
    own = copy.deepcopy(backend)
    own.no_truncation()
    own.no_padding()
    first = own.encode("a", add_special_tokens=False).tokens[:1]
    if first and first[0].startswith(_SPACES):
        raise ConfigError(
            f"the tokenizer {tokenizer.name_or_path!r} puts a space before every text, so a "
            "completion would begin with one that its text does not have; set add_prefix_space or "
            "prepend_scheme in its tokenizer.json so that it adds none"
        )
    return Encoder(own, hashlib.sha256(own.to_str().encode()).hexdigest())
