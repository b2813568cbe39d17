"""Tokenizer of a stage: loading it, the tokens that end its turns, its encoder, its pad.

encoder = encoder_of(load_any_tokenizer("Qwen/Qwen3-0.6B", revision="c1899de…"))
encoder.arrays(["Hi"]), encoder.offsets("Hi there")   [array([13048])], [(0, 2), (2, 8)]
special = training_tokens(tokenizer, end_token=None, pad_token=None, key="pad_token")

Inference masks its padding, so any pad will do there. What trains writes its pad into the model's
files, where other tools take it from, and a pad that ends turns teaches a model never to stop.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tokenizers
import transformers
from pydantic_core import from_json
from tokenizers import models, normalizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from posttrain.chat.profile import turn_ends
from posttrain.chat.template import ChatTemplate
from posttrain.config.sft import ModelConfig
from posttrain.errors import ConfigError, DataError
from posttrain.tokens.supervision import probe_samples
from posttrain.tokens.tiktoken import (
    PATTERNS,
    TiktokenEncoder,
    disagreement,
    pattern_of,
    probe_texts,
    ranks_of,
)

TURN_END = "<|im_end|>"
Backend = Literal["auto", "tokenizers", "tiktoken"]
# how SentencePiece and byte-level vocabularies write a space
_SPACES = ("\u2581", "\u0120")
# `AutoTokenizer`, which would choose the class, imports torch: seconds before the first row. For
# these kinds of model it takes the class that tokenizer_config.json names (a test holds it to that)
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
_NAMED_CLASSES = ("GPT2Tokenizer", "Qwen2Tokenizer")
_MODEL_TYPES = ("llama", "qwen3", "qwen3_moe")
# characters of a piece of a long text, at least
PIECE = 2048
_LINE_START = re.compile(r"\n(?=[A-Za-z0-9])")
# without GPT-2's, which splits a run of line ends before a letter otherwise than at the text's end
_PART_AT_LINES = ("cl100k, llama_3", "qwen_2", "qwen_3_5", "tekken, nemotron", "o200k")
# how vocabularies name a pad, and tokens that are kept for later; placeholders of images and the
# like are neither, though they may be named `<|image_pad|>`
_PAD = re.compile(r"(?<![a-z])pad", re.IGNORECASE)
_RESERVED = re.compile(r"reserved|unused|extra|dummy|placeholder|control|SPECIAL_", re.IGNORECASE)
_MEDIA = re.compile(r"image|img|vision|video|audio|speech", re.IGNORECASE)
# ends of documents and messages, at which a base model has learnt to stop
_END = re.compile(r"end|eo[stmd](?![a-z])|</s>", re.IGNORECASE)
# tokens that an error proposes
_PROPOSED = 5
# the byte 0xFF, as vocabularies with byte fallback and those of bytes write it
_NO_TEXT = ("<0xFF>", "ÿ")


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """End and pad of a tokenizer.

    Attributes:
        end_token, end_id: Token that closes an assistant turn.
        pad_token, pad_id: Token of padding; in training none of `stop_ids`
            (`training_tokens`).
        stop_ids: Ids at which generation stops.
    """

    end_token: str
    end_id: int
    pad_token: str
    pad_id: int
    stop_ids: tuple[int, ...]


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer saved in a directory. Runs no remote code and does not ask the hub.

    Raises:
        DataError: the directory holds no tokenizer.
    """
    has_tokenizer = (path / "tokenizer.json").exists()
    has_config = (path / "tokenizer_config.json").exists()
    if not has_tokenizer and not has_config:
        raise DataError(f"{path} holds no tokenizer files")
    loader = _named_class(path) if has_tokenizer and has_config else None
    if loader is None:
        loader = transformers.AutoTokenizer
    return loader.from_pretrained(str(path), local_files_only=True)


def _named_class(path: Path) -> type[PreTrainedTokenizerBase] | None:
    """Class that a directory's tokenizer names, if `AutoTokenizer` would take it too; else None."""
    tokenizer_config = from_json((path / "tokenizer_config.json").read_bytes())
    # code of the directory's own
    if "auto_map" in tokenizer_config:
        return None
    name = str(tokenizer_config.get("tokenizer_class"))
    if (path / "config.json").is_file():
        model_config = from_json((path / "config.json").read_bytes())
        # by `model_name` AutoTokenizer knows models whose files name the wrong class
        if model_config.get("model_type") not in _MODEL_TYPES or "model_name" in model_config:
            return None
        if name.removesuffix("Fast") in _NAMED_CLASSES:
            return getattr(transformers, name.removesuffix("Fast"))
    return PreTrainedTokenizerFast if name in _GENERIC else None


def load_any_tokenizer(path: str, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a directory, or from the hub where `path` is no directory.

    Raises:
        ConfigError: neither has it, or a revision of a directory.
        DataError: the directory holds no tokenizer.
    """
    if Path(path).is_dir():
        if revision is not None:
            raise ConfigError(f"the tokenizer {path} is a directory; revision is for hub ids")
        return load_tokenizer(Path(path))
    if path.startswith((".", "/")) or path.count("/") != 1:
        problem = f"no tokenizer at {path!r}: no such directory, nor is it a hub id"
        raise ConfigError(problem, path=path)
    try:
        return transformers.AutoTokenizer.from_pretrained(path, revision=revision)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"no tokenizer at {path!r}: no directory here, and not to be had from the hub: "
            f"{reason}",
            path=path,
        ) from error


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Tokens that a tokenizer marks as special, text → id."""
    added_tokens = tokenizer.added_tokens_decoder.items()
    return {token.content: number for number, token in added_tokens if token.special}


def largest_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Largest id in use. Ids may have gaps, so that the vocabulary's length is no bound."""
    return max(tokenizer.get_vocab().values())


def token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int | None:
    """Id of a token; None where the vocabulary lacks it."""
    # asked for one token, since `get_vocab` makes a dictionary of all of them each time
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
    """Tokens at which turns end and generation stops, and the pad, which may be one of them.

    Args:
        end_token: token that closes a turn; None takes `<|im_end|>` where the vocabulary has it,
            else eos.
        template: chat template of the turns; where it closes them with another token, as Gemma's
            does, whose eos ends documents, that one is taken.

    Raises:
        ConfigError: no token closes a turn, or `end_token` is not in the vocabulary.
    """
    id_of = partial(token_id, tokenizer)
    eos = None if tokenizer.eos_token is None else str(tokenizer.eos_token)
    end = end_token or (eos if id_of(TURN_END) is None else TURN_END)
    if end_token is None and template is not None:
        template_ends = [token for token in turn_ends(template) if id_of(token) is not None]
        if template_ends and end not in template_ends:
            end = template_ends[0]
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
    return SpecialTokens(
        end_token=end,
        end_id=end_id,
        pad_token=pad,
        pad_id=end_id if pad_id is None else pad_id,
        stop_ids=tuple(sorted({end_id, eos_id})),
    )


def saved_stops(path: str) -> tuple[int, ...]:
    """Ids at which a directory's generation config stops; () where it has none."""
    file = Path(path) / "generation_config.json"
    if not file.is_file():
        return ()
    stop_ids = from_json(file.read_bytes()).get("eos_token_id")
    if stop_ids is None:
        return ()
    return tuple(stop_ids) if isinstance(stop_ids, list) else (int(stop_ids),)


def check_same_tokenizer(tokenizer: PreTrainedTokenizerBase, model: ModelConfig) -> None:
    """Refuse a local checkpoint whose tokenizer gives another id to a token of the data's.

    Args:
        tokenizer: tokenizer of the data.

    Raises:
        ConfigError: the ids of a token differ.
    """
    path = Path(model.path or "")
    if model.path is None or not (path / "tokenizer.json").is_file():
        return
    model_ids = load_tokenizer(path).get_vocab()
    data_ids = tokenizer.get_vocab()
    shared_tokens = model_ids.keys() & data_ids.keys()
    differing = sorted(token for token in shared_tokens if model_ids[token] != data_ids[token])
    if differing:
        token = differing[0]
        raise ConfigError(
            f"{path} and the data use different tokenizers: {token!r} is {model_ids[token]} in the "
            f"model and {data_ids[token]} in the data ({len(differing):,} tokens differ). "
            "Build the data with the model's tokenizer"
        )


@dataclass(frozen=True, slots=True)
class Encoder:
    """Encoder of texts, which adds no special tokens and neither truncates nor pads.

    Attributes:
        backend: The tokenizer.
        digest: Digest of the tokenizer as text, without truncation and padding.
        fast: Encoder that gives the same ids as `backend`, only faster.
        reason: Reason why there is no `fast`.
        fast_offsets: True if `fast` gives the same spans as `backend` too.
        cuts: True if `backend` may be given a long text in pieces.
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
        if self.cuts:
            return _encode_in_pieces(self.backend, texts)
        return _encode_whole(self.backend, texts)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Character span `(start, end)` of each token."""
        if self.fast is not None and self.fast_offsets:
            spans = self.fast.offsets(text)
            if spans is not None:
                return spans
        return self.backend.encode(text, add_special_tokens=False).offsets

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        return self.backend.decode(list(ids), skip_special_tokens=False)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Texts that become special tokens wherever they stand."""
        added_tokens = self.backend.get_added_tokens_decoder().values()
        return tuple(sorted(token.content for token in added_tokens if token.special))

    @property
    def name(self) -> Backend:
        """Name of the library that makes the ids."""
        return "tokenizers" if self.fast is None else "tiktoken"

    def describe(self) -> str:
        """Library that makes the ids and the reason for it, in one line for the log."""
        if self.fast is not None:
            return "tiktoken, whose ids agreed with those of tokenizers on every probe"
        return f"tokenizers ({self.reason})" if self.reason else "tokenizers"


def _encode_whole(
    backend: tokenizers.Tokenizer, texts: Sequence[str]
) -> list[npt.NDArray[np.int32]]:
    """Token ids of each text, (n,) int32."""
    encodings = backend.encode_batch_fast(list(texts), add_special_tokens=False)
    return [np.array(encoding.ids, np.int32) for encoding in encodings]


def _encode_in_pieces(
    backend: tokenizers.Tokenizer, texts: Sequence[str]
) -> list[npt.NDArray[np.int32]]:
    """Token ids of each text, (n,) int32; long texts are tokenised in pieces."""
    pieces: list[str] = []
    counts: list[int] = []
    for text in texts:
        text_pieces = [text] if len(text) <= 2 * PIECE else cut_lines(text)
        pieces += text_pieces
        counts.append(len(text_pieces))
    piece_ids = iter(_encode_whole(backend, pieces))
    text_ids: list[npt.NDArray[np.int32]] = []
    for count in counts:
        if count == 1:
            text_ids.append(next(piece_ids))
        else:
            text_ids.append(np.concatenate(list(islice(piece_ids, count))))
    return text_ids


def encoder_of(
    tokenizer: PreTrainedTokenizerBase,
    *,
    backend: Backend = "tokenizers",
    probes: Sequence[str] = (),
) -> Encoder:
    """Make the encoder of a fast tokenizer, with any saved truncation or padding switched off.

    Args:
        backend: `auto` takes tiktoken where it is exact, which costs about a second to prove.
        probes: texts on which tiktoken must give the ids of `tokenizers`, beside the built-in
            ones.

    Raises:
        ConfigError: a tokenizer without a `tokenizers` backend, or one that puts a space before
            every text; or `tiktoken` was asked for and cannot give the same ids.
    """
    shared_backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(shared_backend, tokenizers.Tokenizer):
        raise ConfigError(
            f"the tokenizer {tokenizer.name_or_path!r} has no tokenizer.json; convert it first "
            "(AutoTokenizer.from_pretrained(…, from_slow=True).save_pretrained(…))"
        )
    # copied from its text, which the digest needs as well and which costs most of the time
    text = shared_backend.to_str()
    copy = tokenizers.Tokenizer.from_str(text)
    if copy.truncation is not None or copy.padding is not None:
        copy.no_truncation()
        copy.no_padding()
        text = copy.to_str()
    first_tokens = copy.encode("a", add_special_tokens=False).tokens[:1]
    if first_tokens and first_tokens[0].startswith(_SPACES):
        raise ConfigError(
            f"the tokenizer {tokenizer.name_or_path!r} puts a space before every text, so a "
            "completion would begin with one that its text does not have; set add_prefix_space or "
            "prepend_scheme in its tokenizer.json so that it adds none"
        )
    digest = hashlib.sha256(text.encode()).hexdigest()
    cuts = parts_at_lines(copy)
    if backend == "tokenizers":
        return Encoder(copy, digest, cuts=cuts)
    ranks = ranks_of(copy, from_json(text))
    if isinstance(ranks, str):
        obstacle = ranks
    else:
        slow = partial(_encode_whole, copy)
        fast = TiktokenEncoder(ranks, slow=slow)
        probe = disagreement(fast.arrays, slow, special=list(ranks.special), more=probes)
        if probe is None:
            return Encoder(copy, digest, fast, fast_offsets=_has_same_offsets(copy, fast))
        obstacle = f"other ids for {probe!r:.80}"
    if backend == "tiktoken":
        raise ConfigError(
            f"tiktoken cannot stand for the tokenizer {tokenizer.name_or_path!r}: {obstacle}"
        )
    return Encoder(copy, digest, reason=f"not tiktoken: {obstacle}", cuts=cuts)


def _has_same_offsets(backend: tokenizers.Tokenizer, fast: TiktokenEncoder) -> bool:
    """Check that both give the same spans; some tokenizers leave white space out of theirs."""
    for text in probe_texts([]):
        spans = fast.offsets(text)
        if spans is None:
            continue
        if spans != backend.encode(text, add_special_tokens=False).offsets:
            return False
    return True


def parts_at_lines(backend: tokenizers.Tokenizer) -> bool:
    """Check that a tokenizer splits every text where `cut_lines` cuts.

    No match of the listed patterns holds both a line's end and the ASCII letter or digit behind it.
    Added tokens must not reach across line ends, nor take the white space beside them.
    """
    for token in backend.get_added_tokens_decoder().values():
        if token.lstrip or token.rstrip or token.single_word:
            return False
        if "\n" in token.content:
            return False
    # with dropout merges are random, and other normalisers may join what a cut parts
    if not isinstance(backend.model, models.BPE) or backend.model.dropout is not None:
        return False
    if not isinstance(backend.normalizer, normalizers.NFC | None):
        return False
    if backend.pre_tokenizer is None:
        return False
    # the state of a part is its JSON in `tokenizer.json`
    pattern = pattern_of(from_json(backend.pre_tokenizer.__getstate__()))
    return pattern in {PATTERNS[name] for name in _PART_AT_LINES}


def cut_lines(text: str) -> list[str]:
    """Cut a text into pieces of about `PIECE` characters, which `tokenizers` encodes faster."""
    pieces: list[str] = []
    start = 0
    while len(text) - start > 2 * PIECE:
        line_end = _LINE_START.search(text, start + PIECE)
        if line_end is None:
            break
        pieces.append(text[start : line_end.end()])
        start = line_end.end()
    return [*pieces, text[start:]]


# -- the pad that a model is trained with: a token that stands nowhere else ------------------------


def training_tokens(
    tokenizer: PreTrainedTokenizerBase,
    *,
    end_token: str | None,
    pad_token: str | None,
    key: str,
    template: ChatTemplate | None = None,
    stops: Collection[int] = (),
    in_data: Callable[[str, int], bool] = lambda text, number: False,
) -> SpecialTokens:
    """Choose end and pad for training, and set the pad on the tokenizer.

    Args:
        end_token: token that closes a turn; None chooses as `special_tokens` does.
        pad_token: pad of the recipe; None takes the tokenizer's, and where that ends turns, or
            where there is none, a special token that is used nowhere.
        key: recipe key of the pad, for messages.
        template: chat template of the turns.
        stops: further ids at which generation stops; none of them is chosen.
        in_data: function that tells whether the data hold a special token, by its text and id.

    Raises:
        ConfigError: the recipe's pad is not in the vocabulary or ends turns, or no token is free.
    """
    special = special_tokens(tokenizer, end_token=end_token, template=template)
    pad = pad_token or tokenizer.pad_token
    list_free_tokens = partial(free_tokens, tokenizer, template, {*special.stop_ids, *stops})
    if pad_token is None and (pad is None or token_id(tokenizer, str(pad)) in special.stop_ids):
        candidates = list_free_tokens()
        pad = next((token for token, number in candidates if not in_data(token, number)), None)
        if pad is None:
            raise ConfigError(
                f"{_why_unusable(tokenizer)}, and this tokenizer has no special token that is used "
                f"nowhere: set {key} to a token of its vocabulary that neither your data nor the "
                f"chat template holds{_byte_hint(tokenizer, key)}"
            )
    pad = str(pad)
    pad_id = token_id(tokenizer, pad)
    if pad_id is None:
        proposed = [token for token, _ in list_free_tokens()[:_PROPOSED]]
        hint = f"; try {', '.join(proposed)}" if proposed else ""
        raise ConfigError(f"{key} {pad!r} is not in the tokenizer's vocabulary{hint}")
    if pad_id in special.stop_ids:
        raise ConfigError(
            f"{key} {pad!r} ends turns: a model trained so never learns to stop, or stops at once. "
            f"Leave {key} out, then a token is chosen that is used nowhere"
        )
    tokenizer.pad_token = pad
    return replace(special, pad_token=pad, pad_id=pad_id)


def _why_unusable(tokenizer: PreTrainedTokenizerBase) -> str:
    """Reason why the tokenizer's pad cannot be trained with."""
    if tokenizer.pad_token is None:
        return "the tokenizer has no pad token"
    return f"pad and end of turn are both {str(tokenizer.pad_token)!r}"


def _byte_hint(tokenizer: PreTrainedTokenizerBase, key: str) -> str:
    """Hint to a token for a byte that stands in no UTF-8 text; "" where there is none."""
    for token in _NO_TEXT:
        if token_id(tokenizer, token) is not None:
            return f", such as that of the byte 0xFF, which no text has: {key}='{token}'"
    return ""


def describe_choice(before: Any, special: SpecialTokens) -> str | None:
    """Describe a pad that was chosen, for the console; None where it is the tokenizer's own.

    Args:
        before: pad of the tokenizer as it was loaded.
    """
    if before == special.pad_token:
        return None
    reason = "the tokenizer has none" if before is None else f"the tokenizer's {before} ends turns"
    return f"{special.pad_token} (id {special.pad_id}): {reason}"


def free_tokens(
    tokenizer: PreTrainedTokenizerBase, template: ChatTemplate | None, stop_ids: Collection[int]
) -> list[tuple[str, int]]:
    """Special tokens that nothing uses, with their ids, the likeliest pad first.

    Among equally likely ones the later in the vocabulary comes first: SmolLM2's last ten were never
    trained (their rows are equal), the earlier `<repo_name>` and `<filename>` were.
    """
    roles = {str(token) for token in tokenizer.special_tokens_map.values()}
    roles -= {str(tokenizer.pad_token)}
    rendered = "" if template is None else template.source
    if template is not None:
        for sample in probe_samples(template):
            rendered += "".join(part.text for part in sample.segments)
    free: list[tuple[str, int]] = []
    for text, number in special_ids(tokenizer).items():
        is_used = number in stop_ids or text in roles or text in rendered
        if not is_used and not _MEDIA.search(text):
            free.append((text, number))
    return sorted(free, key=_pad_likelihood)


def _pad_likelihood(token: tuple[str, int]) -> tuple[bool, bool, bool, int]:
    """Sort key of a token's text and id: the likeliest pad sorts first."""
    text, number = token
    is_pad = _PAD.search(text) is not None
    is_reserved = _RESERVED.search(text) is not None
    is_end = _END.search(text) is not None
    return not is_pad, not is_reserved, is_end, -number
