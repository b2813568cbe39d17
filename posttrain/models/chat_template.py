"""The chat template to use with a tokenizer, in our form.

chat_template_of(AutoTokenizer.from_pretrained("Qwen/Qwen3-0.6B"), choice="own")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from posttrain.chat import ChatTemplate, nemotron_3_nano_template
from posttrain.errors import ConfigError


def chat_template_of(
    tokenizer: PreTrainedTokenizerBase,
    *,
    choice: str = "nemotron_3_nano",
    variables: dict[str, Any] | None = None,
) -> ChatTemplate:
    """The template a recipe names, bound to a tokenizer's special tokens.

    Args:
        tokenizer: gives the special tokens, and its own template for `own`.
        choice: `nemotron_3_nano` (from the installed TRL, pinned), `own` (the tokenizer's), or the
            path of a Jinja file.
        variables: fixed template variables, e.g. `{"date_string": "26 Jul 2024"}`.

    Raises:
        ConfigError: `own` without a template, or a file that is not there.
        RenderError: the template does not compile, or is not the pinned one.
    """
    shared: dict[str, Any] = {**tokenizer.special_tokens_map, **(variables or {})}
    splits = exact_split_tokens(tokenizer)
    if choice == "nemotron_3_nano":
        return nemotron_3_nano_template(variables=shared, special_tokens=splits)
    if choice == "own":
        source = tokenizer.chat_template
        if not isinstance(source, str):
            raise ConfigError(
                f"the tokenizer {tokenizer.name_or_path!r} has no chat template of its own; "
                "set chat_template to nemotron_3_nano or to a Jinja file"
            )
        return ChatTemplate(source, name="own", variables=shared, special_tokens=splits)
    path = Path(choice)
    if not path.is_file():
        raise ConfigError(f"chat_template {choice!r} is neither nemotron_3_nano, own, nor a file")
    source = path.read_text(encoding="utf-8")
    return ChatTemplate(source, name=path.name, variables=shared, special_tokens=splits)


def exact_split_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Added tokens the tokenizer always splits at, whatever stands around them."""
    added = tokenizer.added_tokens_decoder.values()
    return tuple(
        sorted(
            token.content
            for token in added
            if not (token.lstrip or token.rstrip or token.single_word or token.normalized)
        )
    )
