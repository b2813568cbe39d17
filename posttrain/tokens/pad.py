"""Choice of the pad that a model is trained with: a token that stands nowhere else.

Inference masks its padding, so any pad will do there. What trains writes its pad into the model's
files, where other tools take it from, and a pad that ends turns teaches a model never to stop.

special = training_tokens(tokenizer, end_token=None, pad_token=None, key="pad_token")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from posttrain.chat import ChatTemplate
from posttrain.errors import ConfigError
from posttrain.tokens.marks import probe_samples
from posttrain.tokens.tokenizer import SpecialTokens, special_ids, special_tokens, token_id

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
