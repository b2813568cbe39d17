"""The pad that a model is trained with: a token that stands nowhere else.

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
# the end of a document, of a message: what a base model has learnt to stop at
_END = re.compile(r"end|eo[stmd](?![a-z])|</s>", re.IGNORECASE)
_NAMED = 5  # tokens that an error names
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
    """End and pad for training, the pad written into the tokenizer.

    Args:
        end_token: as of `special_tokens`.
        pad_token: the recipe's; None takes the tokenizer's own, and where that ends turns, or where
            there is none, a special token that is used nowhere.
        key: where the recipe names the pad, for messages.
        template: the chat template that is rendered with.
        stops: further ids at which generation stops; none of them is chosen.
        in_data: whether the data hold a special token, by its text and id.

    Raises:
        ConfigError: the recipe's pad is not in the vocabulary or ends turns, or no token is free.
    """
    special = special_tokens(tokenizer, end_token=end_token, template=template)
    pad = pad_token or tokenizer.pad_token
    free = partial(free_tokens, tokenizer, template, {*special.stop_ids, *stops})
    if pad_token is None and (pad is None or token_id(tokenizer, str(pad)) in special.stop_ids):
        pad = next((token for token, number in free() if not in_data(token, number)), None)
        if pad is None:
            raise ConfigError(
                f"{_why_not(tokenizer)}, and this tokenizer has no special token that is used "
                f"nowhere: set {key} to a token of its vocabulary that neither your data nor the "
                f"chat template holds{_of_no_text(tokenizer, key)}"
            )
    pad = str(pad)
    pad_id = token_id(tokenizer, pad)
    if pad_id is None:
        likely = [token for token, _ in free()[:_NAMED]]
        hint = f"; try {', '.join(likely)}" if likely else ""
        raise ConfigError(f"{key} {pad!r} is not in the tokenizer's vocabulary{hint}")
    if pad_id in special.stop_ids:
        raise ConfigError(
            f"{key} {pad!r} ends turns: a model trained so never learns to stop, or stops at once. "
            f"Leave {key} out, then a token is chosen that is used nowhere"
        )
    tokenizer.pad_token = pad
    return replace(special, pad_token=pad, pad_id=pad_id)


def _why_not(tokenizer: PreTrainedTokenizerBase) -> str:
    if tokenizer.pad_token is None:
        return "the tokenizer has no pad token"
    return f"pad and end of turn are both {str(tokenizer.pad_token)!r}"


def _of_no_text(tokenizer: PreTrainedTokenizerBase, key: str) -> str:
    """The pad to type where the vocabulary has one for a byte that stands in no UTF-8 text."""
    for token in _NO_TEXT:
        if token_id(tokenizer, token) is not None:
            return f", such as that of the byte 0xFF, which no text has: {key}='{token}'"
    return ""


def describe_choice(before: Any, special: SpecialTokens) -> str | None:
    """Describe a pad that was chosen, for the console; None where it is the tokenizer's own.

    Args:
        before: the tokenizer's pad as it was loaded.
    """
    if before == special.pad_token:
        return None
    why = "the tokenizer has none" if before is None else f"the tokenizer's {before} ends turns"
    return f"{special.pad_token} (id {special.pad_id}): {why}"


def free_tokens(
    tokenizer: PreTrainedTokenizerBase, template: ChatTemplate | None, stop_ids: Collection[int]
) -> list[tuple[str, int]]:
    """Special tokens with no part in anything, with their ids, the likeliest pad first.

    Of two alike the later in the vocabulary comes first: SmolLM2's last ten were never trained
    (their rows are equal), the earlier `<repo_name>` and `<filename>` were.
    """
    roles = {str(token) for token in tokenizer.special_tokens_map.values()}
    roles -= {str(tokenizer.pad_token)}
    rendered = "" if template is None else template.source
    if template is not None:
        for sample in probe_samples(template):
            rendered += "".join(part.text for part in sample.segments)
    free = [
        (text, number)
        for text, number in special_ids(tokenizer).items()
        if number not in stop_ids
        and text not in roles
        and text not in rendered
        and not _MEDIA.search(text)
    ]
    free.sort(
        key=lambda item: (
            not _PAD.search(item[0]),
            not _RESERVED.search(item[0]),
            _END.search(item[0]) is not None,
            -item[1],
        )
    )
    return free
