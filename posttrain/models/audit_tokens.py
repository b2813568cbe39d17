"""The tokenizer of a data set that is to be audited: of its own, or named.

audit_tokens(recipe, first=Path("runs/tiny/sft_data"))  →  AuditTokens(encoder, stop_ids=(2,), …)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from posttrain.chat import ChatTemplate
from posttrain.config.audit import AuditConfig, AuditTokenizer
from posttrain.errors import ConfigError
from posttrain.models.chat_template import chat_template_of
from posttrain.models.encoding import Encoder, encoder_of, load_any_tokenizer
from posttrain.models.tokenizer import TURN_END, largest_id


@dataclass(frozen=True, slots=True)
class AuditTokens:
    """What is known of a data set's tokens; `special` maps texts to ids."""

    encoder: Encoder
    special: Mapping[str, int]
    stop_ids: tuple[int, ...]
    pad_id: int | None
    largest_id: int
    template: ChatTemplate | None


def audit_tokens(recipe: AuditConfig, *, first: Path) -> AuditTokens:
    """Load the tokenizer that the recipe names, or else the one in the data's first path.

    Raises:
        ConfigError: there is none, or it lacks a stop token that the recipe names.
    """
    named = recipe.tokenizer
    if named is None:
        if not (first / "tokenizer").is_dir():
            raise ConfigError(f"{first} carries no tokenizer: name it with tokenizer.path=…")
        named = AuditTokenizer(path=str(first / "tokenizer"))
    tokenizer = load_any_tokenizer(named.path, revision=named.revision)
    vocabulary = tokenizer.get_vocab()
    missing = [token for token in named.stop_tokens if token not in vocabulary]
    if missing:
        raise ConfigError(f"tokenizer.stop_tokens: {missing[0]!r} is not in the vocabulary")
    stops = {vocabulary[token] for token in named.stop_tokens}
    stops |= {vocabulary[TURN_END]} if TURN_END in vocabulary else set[int]()
    if tokenizer.eos_token is not None:
        stops.add(vocabulary[str(tokenizer.eos_token)])
    if not stops:
        raise ConfigError("this tokenizer has no eos token: name tokenizer.stop_tokens")
    return AuditTokens(
        encoder=encoder_of(tokenizer),
        special=special_ids(tokenizer),
        stop_ids=tuple(sorted(stops)),
        pad_id=None if tokenizer.pad_token is None else vocabulary[str(tokenizer.pad_token)],
        largest_id=largest_id(tokenizer),
        template=_template(tokenizer, named.chat_template),
    )


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The tokens that a tokenizer marks as special."""
    added = tokenizer.added_tokens_decoder.items()
    return {token.content: number for number, token in added if token.special}


def _template(tokenizer: PreTrainedTokenizerBase, choice: str) -> ChatTemplate | None:
    if choice == "own" and not isinstance(tokenizer.chat_template, str):
        return None
    return chat_template_of(tokenizer, choice=choice)
