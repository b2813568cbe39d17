"""A stage's tokenizer: loaded, with what ends its turns, and as an encoder.

encoder = encoder_of(load_any_tokenizer("Qwen/Qwen3-0.6B", revision="c1899de…"))
encoder.arrays(["Hi"]), encoder.offsets("Hi there")   [array([13048])], [(0, 2), (2, 8)]
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tokenizers
import transformers
from pydantic_core import from_json
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from posttrain.chat.profile import turn_ends
from posttrain.chat.template import ChatTemplate
from posttrain.config.sft import ModelConfig
from posttrain.errors import ConfigError, DataError
from posttrain.tokens.tiktoken.encoder import TiktokenEncoder, disagreement, probe_texts
from posttrain.tokens.tiktoken.ranks import PATTERNS, pattern_of, ranks_of

TURN_END = "<|im_end|>"
Backend = Literal["auto", "tokenizers", "tiktoken"]

_SPACES = ("\u2581", "\u0120")  # how SentencePiece and byte-level vocabularies write a space
# `AutoTokenizer`, which would choose the class, imports torch: seconds before the first row. For
# these kinds of model it takes the class that tokenizer_config.json names (a test holds it to that)
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
_NAMED_CLASSES = ("GPT2Tokenizer", "Qwen2Tokenizer")
_MODEL_TYPES = ("llama", "qwen3", "qwen3_moe")
PIECE = 2048  # characters, at least
_LINE = re.compile(r"\n(?=[A-Za-z0-9])")
# GPT-2's takes another number of line ends in a row before a letter than at the end
_PART_AT_LINES = ("cl100k, llama_3", "qwen_2", "qwen_3_5", "tekken, nemotron", "o200k")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """`end_id` closes an assistant turn, generation stops at `stop_ids`; in training `pad_id` is
    none of them (`posttrain/tokens/pad.py`)."""

    end_token: str
    end_id: int
    pad_token: str
    pad_id: int
    stop_ids: tuple[int, ...]


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """A tokenizer saved in a directory; never runs remote code, never asks the hub."""
    has = {file.name for file in path.glob("*")}
    if not has & {"tokenizer.json", "tokenizer_config.json"}:
        raise DataError(f"{path} holds no tokenizer files")
    loader = _named_class(path) if {"tokenizer.json", "tokenizer_config.json"} <= has else None
    if loader is None:
        loader = transformers.AutoTokenizer
    return loader.from_pretrained(str(path), local_files_only=True)


def _named_class(path: Path) -> type[PreTrainedTokenizerBase] | None:
    """The class that a directory's tokenizer names, where `AutoTokenizer` would take it, too."""
    named = from_json((path / "tokenizer_config.json").read_bytes())
    if "auto_map" in named:
        return None
    name = str(named.get("tokenizer_class"))
    if (path / "config.json").is_file():
        model = from_json((path / "config.json").read_bytes())
        # by `model_name` it knows some whose files name the wrong class
        if model.get("model_type") not in _MODEL_TYPES or "model_name" in model:
            return None
        if name.removesuffix("Fast") in _NAMED_CLASSES:
            return getattr(transformers, name.removesuffix("Fast"))
    return PreTrainedTokenizerFast if name in _GENERIC else None


def load_any_tokenizer(path: str, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """A tokenizer from a directory, or from the hub when `path` is none. Raises ConfigError."""
    if Path(path).is_dir():
        if revision is not None:
            raise ConfigError(f"the tokenizer {path} is a directory; revision is for hub ids")
        return load_tokenizer(Path(path))
    if path.startswith((".", "/")) or path.count("/") != 1:
        raise ConfigError(f"no tokenizer at {path!r}: no such directory, nor is it a hub id")
    try:
        return transformers.AutoTokenizer.from_pretrained(path, revision=revision)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"no tokenizer at {path!r}: no directory here, and not to be had from the hub: {reason}"
        ) from error


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The tokens that a tokenizer marks as special."""
    added = tokenizer.added_tokens_decoder.items()
    return {token.content: number for number, token in added if token.special}


def largest_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The largest id in use. An id space may have holes, so the vocabulary's length is no bound."""
    return max(tokenizer.get_vocab().values())


def token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int | None:
    """The id of a token; None where the vocabulary lacks it.

    A fast tokenizer is asked for the one: `get_vocab` makes a dictionary of them all each time.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if isinstance(backend, tokenizers.Tokenizer):
        return backend.token_to_id(token)
    return tokenizer.get_vocab().get(token)


def special_tokens(
    tokenizer: PreTrainedTokenizerBase,
    *,
    end_token: str | None = None,
    template: ChatTemplate | None = None,
) -> SpecialTokens:
    """The end of a turn, what generation stops at, and the pad as it is: it may be the end.

    Args:
        end_token: closes a turn; None takes `<|im_end|>` where the vocabulary has it, else eos.
        template: the chat template that is rendered with; where it closes turns otherwise, as
            Gemma's does, whose eos ends documents, its own token is taken.

    Raises:
        ConfigError: no token closes a turn, or `end_token` is not in the vocabulary.
    """
    id_of = partial(token_id, tokenizer)
    eos = None if tokenizer.eos_token is None else str(tokenizer.eos_token)
    end = end_token or (eos if id_of(TURN_END) is None else TURN_END)
    if end_token is None and template is not None:
        ends = [token for token in turn_ends(template) if id_of(token) is not None]
        end = end if end in ends or not ends else ends[0]
    if end is None:
        raise ConfigError(
            f"the tokenizer {tokenizer.name_or_path!r} has no token that ends a turn: neither "
            f"{TURN_END} nor an eos_token"
        )
    end_id = id_of(end)
    if end_id is None:
        raise ConfigError(f"end_token {end!r} is not in the tokenizer's vocabulary")
    eos_id = end_id if eos is None else id_of(eos)
    if eos_id is None:
        raise ConfigError(f"the tokenizer's eos_token {eos!r} is not in its vocabulary")
    pad = end if tokenizer.pad_token is None else str(tokenizer.pad_token)
    pad_id = id_of(pad)
    stops = tuple(sorted({end_id, eos_id}))
    return SpecialTokens(end, end_id, pad, end_id if pad_id is None else pad_id, stops)


def saved_stops(path: str) -> tuple[int, ...]:
    """The ids at which a directory's generation config stops; () where it has none."""
    file = Path(path) / "generation_config.json"
    if not file.is_file():
        return ()
    stops = from_json(file.read_bytes()).get("eos_token_id")
    if stops is None:
        return ()
    return tuple(stops) if isinstance(stops, list) else (int(stops),)


def check_same_tokenizer(tokenizer: PreTrainedTokenizerBase, model: ModelConfig) -> None:
    """Raises ConfigError for a local checkpoint whose own tokenizer gives an id another token."""
    path = Path(model.path or "")
    if model.path is None or not (path / "tokenizer.json").is_file():
        return
    own, ours = load_tokenizer(path).get_vocab(), tokenizer.get_vocab()
    differing = sorted(token for token in own.keys() & ours.keys() if own[token] != ours[token])
    if differing:
        token = differing[0]
        raise ConfigError(
            f"{path} and the data use different tokenizers: {token!r} is {own[token]} in the model "
            f"and {ours[token]} in the data ({len(differing):,} tokens differ). "
            "Build the data with the model's tokenizer"
        )


@dataclass(frozen=True, slots=True)
class Encoder:
    """Tokenisation without special tokens, truncation or padding.

    `fast` gives the same ids as `backend`, and the same spans with `fast_offsets`; where it is
    absent, `reason` says why. With `cuts` long texts are given to `backend` in pieces.
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
        spans = self.fast.offsets(text) if self.fast is not None and self.fast_offsets else None
        if spans is None:
            spans = self.backend.encode(text, add_special_tokens=False).offsets
        return spans

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
    encodings = backend.encode_batch_fast(list(texts), add_special_tokens=False)
    return [np.array(encoding.ids, np.int32) for encoding in encodings]


def _arrays_of_pieces(
    backend: tokenizers.Tokenizer, texts: Sequence[str]
) -> list[npt.NDArray[np.int32]]:
    cut = [[text] if len(text) <= 2 * PIECE else cut_lines(text) for text in texts]
    ids = iter(_arrays(backend, [piece for pieces in cut for piece in pieces]))
    return [np.concatenate(list(islice(ids, len(p)))) if len(p) > 1 else next(ids) for p in cut]


def encoder_of(
    tokenizer: PreTrainedTokenizerBase,
    *,
    backend: Backend = "tokenizers",
    probes: Sequence[str] = (),
) -> Encoder:
    """The encoder of a fast tokenizer, with any saved truncation or padding switched off.

    Args:
        backend: `auto` takes tiktoken where it is exact, which costs about a second to prove.
        probes: texts on which it must give the ids of `tokenizers`, beside the built-in ones.

    Raises:
        ConfigError: a tokenizer without a `tokenizers` backend, or one that puts a space before
            every text; or `tiktoken` was asked for and cannot give the same ids.
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
    described = from_json(text)
    cuts = parts_at_lines(described)
    if backend == "tokenizers":
        return Encoder(own, digest, cuts=cuts)
    why = ranks = ranks_of(own, described)
    if not isinstance(ranks, str):
        slow = partial(_arrays, own)
        fast = TiktokenEncoder(ranks, slow=slow)
        bad = disagreement(fast.arrays, slow, special=list(ranks.special), more=probes)
        if bad is None:
            return Encoder(own, digest, fast, fast_offsets=_same_offsets(own, fast))
        why = f"other ids for {bad!r:.80}"
    if backend == "tiktoken":
        raise ConfigError(
            f"tiktoken cannot stand for the tokenizer {tokenizer.name_or_path!r}: {why}; "
            "set tokenizer.backend to auto or tokenizers"
        )
    return Encoder(own, digest, reason=f"not tiktoken: {why}", cuts=cuts)


def _same_offsets(own: tokenizers.Tokenizer, fast: TiktokenEncoder) -> bool:
    """Check that the tokenizer gives the true spans of tokens; some leave out white space."""
    found = ((fast.offsets(text), text) for text in probe_texts([]))
    return all(
        spans is None or spans == own.encode(text, add_special_tokens=False).offsets
        for spans, text in found
    )


def parts_at_lines(tokenizer: Mapping[str, Any]) -> bool:
    """Check that the tokenizer of a `tokenizer.json` parts every text where `cut_lines` cuts.

    Of the listed patterns no match holds both a line's end and the ASCII letter or digit behind it.
    Added tokens must not reach across line ends, nor take the white space beside them.
    """
    pattern = pattern_of(tokenizer["pre_tokenizer"])
    plain = all(
        not (token["lstrip"] or token["rstrip"] or token["single_word"])
        and "\n" not in token["content"]
        for token in tokenizer["added_tokens"]
    )
    return (
        tokenizer["model"]["type"] == "BPE"
        and tokenizer["model"].get("dropout") is None
        and tokenizer["normalizer"] in (None, {"type": "NFC"})
        and pattern in {PATTERNS[name] for name in _PART_AT_LINES}
        and plain
    )


def cut_lines(text: str) -> list[str]:
    """The text in pieces of about `PIECE` characters: `tokenizers` is slower on one."""
    pieces: list[str] = []
    start = 0
    while len(text) - start > 2 * PIECE and (line_end := _LINE.search(text, start + PIECE)):
        pieces.append(text[start : line_end.end()])
        start = line_end.end()
    return [*pieces, text[start:]]
