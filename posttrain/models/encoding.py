"""A tokenizer as the data stage uses it: texts in, plain ids out, nothing added, nothing clipped.

encoder = encoder_of(load_any_tokenizer("Qwen/Qwen3-0.6B", revision="c1899de…"))
encoder.encode(["Hi"])      [[13048]]
encoder.arrays(["Hi"])      [array([13048], dtype=int32)]
encoder.offsets("Hi there") [(0, 2), (2, 8)]

Byte-level BPE that tiktoken can express exactly goes through tiktoken where that is asked for
(`tiktoken_ranks`), everything else through `tokenizers`; the ids are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import tokenizers
from pydantic_core import from_json
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from posttrain.errors import ConfigError
from posttrain.models.long_texts import parts_at_lines, pieces_of
from posttrain.models.tiktoken_encoder import TiktokenEncoder
from posttrain.models.tiktoken_probe import disagreement, probe_texts
from posttrain.models.tiktoken_ranks import ranks_of
from posttrain.models.tokenizer import load_tokenizer

Backend = Literal["auto", "tokenizers", "tiktoken"]

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
    """Tokenisation without special tokens, truncation or padding.

    `fast` gives the same ids as `backend`; where it is absent, `reason` says why. `cuts` says that
    long texts may be given to `backend` in pieces (`long_texts`).
    """

    backend: tokenizers.Tokenizer
    digest: str
    fast: TiktokenEncoder | None = None
    reason: str = ""
    fast_offsets: bool = False
    cuts: bool = False

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""
        return [ids.tolist() for ids in self.arrays(texts)]

    def arrays(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        """Token ids of each text, int32; they may be views of one array."""
        if self.fast is not None:
            return self.fast.arrays(texts)
        return _arrays_of_pieces(self.backend, texts) if self.cuts else _arrays(self.backend, texts)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of each token."""
        if self.fast is not None and self.fast_offsets:
            found = self.fast.offsets(text)
            if found is not None:
                return found
        return self.backend.encode(text, add_special_tokens=False).offsets

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return self.backend.decode(list(ids), skip_special_tokens=False)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Texts that become special tokens wherever they stand."""
        added = self.backend.get_added_tokens_decoder().values()
        return tuple(sorted(token.content for token in added if token.special))

    @property
    def name(self) -> str:
        """The library that makes the ids."""
        return "tokenizers" if self.fast is None else "tiktoken"

    def describe(self) -> str:
        """One line for the log: which library makes the ids, and why that one."""
        if self.fast is not None:
            return "tiktoken, whose ids agreed with those of tokenizers on every probe"
        return f"tokenizers ({self.reason})" if self.reason else "tokenizers"


def _arrays(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
    found = backend.encode_batch_fast(list(texts), add_special_tokens=False)
    return [np.array(encoding.ids, np.int32) for encoding in found]


def _arrays_of_pieces(
    backend: tokenizers.Tokenizer, texts: Sequence[str]
) -> list[npt.NDArray[np.int32]]:
    pieces, counts = pieces_of(texts)
    ids = iter(_arrays(backend, pieces))
    return [
        next(ids) if count == 1 else np.concatenate(list(islice(ids, count))) for count in counts
    ]


def encoder_of(
    tokenizer: PreTrainedTokenizerBase,
    *,
    backend: Backend = "tokenizers",
    probes: Sequence[str] = (),
) -> Encoder:
    """The encoder of a fast tokenizer, with any saved truncation or padding switched off.

    Args:
        backend: `auto` takes tiktoken where it is exact; making it costs about a second of a large
            vocabulary, which pays from a few megabytes of text on.
        probes: texts on which it must give the ids of `tokenizers`, beside the built-in ones.

    Raises:
        ConfigError: a tokenizer without a `tokenizers` backend, or one that puts a space before
            every text: a completion tokenised apart from its prompt would begin with it; or
            `tiktoken` was asked for and cannot give the same ids.
    """
    own_backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(own_backend, tokenizers.Tokenizer):
        raise ConfigError(
            f"the tokenizer {tokenizer.name_or_path!r} has no tokenizer.json; convert it first "
            "(AutoTokenizer.from_pretrained(…, from_slow=True).save_pretrained(…))"
        )
    # a copy, by way of the text that names it: for a large vocabulary the text is what costs
    text = own_backend.to_str()
    own = tokenizers.Tokenizer.from_str(text)
    if own.truncation is not None or own.padding is not None:
        own.no_truncation()
        own.no_padding()
        text = own.to_str()
    first = own.encode("a", add_special_tokens=False).tokens[:1]
    if first and first[0].startswith(_SPACES):
        raise ConfigError(
            f"the tokenizer {tokenizer.name_or_path!r} puts a space before every text, so a "
            "completion would begin with one that its text does not have; set add_prefix_space or "
            "prepend_scheme in its tokenizer.json so that it adds none"
        )
    digest = hashlib.sha256(text.encode()).hexdigest()
    cuts = parts_at_lines(from_json(text))
    if backend == "tokenizers":
        return Encoder(own, digest, cuts=cuts)
    fast = _tiktoken_encoder(own, text, probes)
    if isinstance(fast, TiktokenEncoder):
        return Encoder(own, digest, fast, fast_offsets=_same_offsets(own, fast))
    if backend == "tiktoken":
        raise ConfigError(
            f"tiktoken cannot stand for the tokenizer {tokenizer.name_or_path!r}: {fast}; "
            "set tokenizer.backend to auto or tokenizers"
        )
    return Encoder(own, digest, reason=f"not tiktoken: {fast}", cuts=cuts)


def _tiktoken_encoder(
    own: tokenizers.Tokenizer, text: str, probes: Sequence[str]
) -> TiktokenEncoder | str:
    """The encoder that gives the same ids, or why there is none."""
    ranks = ranks_of(own, text)
    if isinstance(ranks, str):
        return ranks

    def slow(texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        return _arrays(own, texts)

    fast = TiktokenEncoder(ranks, slow=slow)
    bad = disagreement(fast.arrays, slow, special=list(ranks.special), more=probes)
    return fast if bad is None else f"other ids for {bad!r:.80}"


def _same_offsets(own: tokenizers.Tokenizer, fast: TiktokenEncoder) -> bool:
    """Whether the tokenizer says where tokens lie as they lie; some leave out white space."""
    for text in probe_texts([]):
        found = fast.offsets(text)
        if found is not None and found != own.encode(text, add_special_tokens=False).offsets:
            return False
    return True
