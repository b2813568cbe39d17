"""The tokenizer of a stage: loaded from an artifact, with an end and a pad that cannot be mistaken.

special = special_tokens(tokenizer, end_token=None, pad_token=None)
special.end_id, special.pad_id, special.stop_ids  → 2, 0, (2,)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from posttrain.config.sft import ModelConfig
from posttrain.errors import ConfigError, DataError

TURN_END = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """`end_id` closes an assistant turn, generation stops at `stop_ids`, `pad_id` is no stop."""

    end_token: str
    end_id: int
    pad_token: str
    pad_id: int
    stop_ids: tuple[int, ...]


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """A tokenizer saved in a directory; never runs remote code, never asks the hub."""
    if not (path / "tokenizer.json").is_file() and not (path / "tokenizer_config.json").is_file():
        raise DataError(f"{path} holds no tokenizer files")
    return AutoTokenizer.from_pretrained(str(path), local_files_only=True)


def largest_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The largest id in use. An id space may have holes, so the vocabulary's length is no bound."""
    return max(tokenizer.get_vocab().values())


def special_tokens(
    tokenizer: PreTrainedTokenizerBase, *, end_token: str | None, pad_token: str | None
) -> SpecialTokens:
    """Choose end and pad, and write the pad into the tokenizer.

    Args:
        end_token: closes a turn; None takes `<|im_end|>` where the vocabulary has it, else eos.
        pad_token: None takes the tokenizer's own.

    Raises:
        ConfigError: a token is not in the vocabulary, or pad is one of the stop tokens.
    """
    vocabulary = tokenizer.get_vocab()
    eos = None if tokenizer.eos_token is None else str(tokenizer.eos_token)
    end = end_token or (TURN_END if TURN_END in vocabulary else eos)
    if end is None or end not in vocabulary:
        raise ConfigError(f"end_token {end!r} is not in the tokenizer's vocabulary")
    own_pad = None if tokenizer.pad_token is None else str(tokenizer.pad_token)
    pad = pad_token or own_pad
    free = _candidates(tokenizer, taken={end, eos})
    if pad is None:
        raise ConfigError(f"the tokenizer has no pad token; set pad_token: to one of {free}")
    if pad not in vocabulary:
        raise ConfigError(f"pad_token {pad!r} is not in the tokenizer's vocabulary; try {free}")
    if pad in (end, eos):
        raise ConfigError(
            f"pad and end of turn are both {pad!r}: a model trained so never learns to stop, "
            f"or stops at once. Set pad_token: to another special token, e.g. one of {free}"
        )
    tokenizer.pad_token = pad
    stops = {vocabulary[end]}
    if eos is not None:
        stops.add(vocabulary[eos])
    return SpecialTokens(end, vocabulary[end], pad, vocabulary[pad], tuple(sorted(stops)))


def _candidates(tokenizer: PreTrainedTokenizerBase, taken: set[str | None]) -> list[str]:
    special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    likely = [token for token in special if token not in taken]
    likely.sort(key=lambda token: ("pad" not in token.lower(), "reserved" not in token.lower()))
    return likely[:5]


def check_same_tokenizer(tokenizer: PreTrainedTokenizerBase, model: ModelConfig) -> None:
    """Refuse a checkpoint whose own tokenizer gives the ids another meaning.

    Only a local checkpoint that carries tokenizer files is compared.

    Raises:
        ConfigError: naming a token whose id differs.
    """
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
